"""What the kernel shows of this process, its arguments and environment, changed after its start.

Problem: our processes are known by their environment (`fleet.system.home_processes`) and people
know them by `ps`, both of which the kernel reads where the program put them when it was started;
a process that is forked and starts no program shows what its parent was. Choice: the text is
written over in place, within the room that it has: who forks leaves enough of it. Cost: Linux
only, and `ctypes`. What the program itself sees, `os.environ` and `sys.argv`, is left alone.

Source: proc_pid_stat(5), arg_start to env_end.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_ARGUMENTS: Final = 48
_ENVIRONMENT: Final = 50
"""Numbers of the fields of /proc/PID/stat where these begin; they end where the next one says."""


def show_arguments(arguments: Sequence[str]) -> None:
    """Show these as the arguments; cut where there is no more room."""
    start, size = _area(_ARGUMENTS)
    text = b"".join(each.encode(errors="surrogateescape") + b"\0" for each in arguments)
    _write(start, text[: size - 1], size)


def show_variable(name: str, value: str) -> None:
    """Show this value of a variable that the program was started with.

    Raises ValueError where it was not, or where the value then was shorter than this one.
    """
    start, size = _area(_ENVIRONMENT)
    text = b"\0" + ctypes.string_at(start, size)
    mark = f"\0{name}=".encode()
    at = text.find(mark)
    if at < 0:
        raise ValueError(f"{name} was not in the environment at the start")
    first = at + len(mark)
    room = text.index(b"\0", first) - first
    new = value.encode(errors="surrogateescape")
    if len(new) > room:
        raise ValueError(f"{name} has room for {room} bytes, and its value has {len(new)}")
    _write(start + first - 1, new, room)


def _area(field: int) -> tuple[int, int]:
    """(address, bytes) of this process's."""
    text = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    fields = text.rpartition(")")[2].split()  # the first of these is number 3
    start, end = int(fields[field - 3]), int(fields[field - 2])
    return start, end - start


def _write(address: int, text: bytes, size: int) -> None:
    ctypes.memmove(address, text.ljust(size, b"\0"), size)
