"""Files in memory that do not outlive the process that wrote them.

Problem: what a process puts into /dev/shm stays there when it is killed, and takes memory until
it is removed; a pid does not show whether the writer lives, since another container may have the
same one. Choice: each process has a folder, and beside it a file with a lock that the
kernel releases when the process ends, however it ends; a process that finds a lock free removes
the folder. Cost: one open file; nothing on systems without such a place.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import stat
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fleet.system.closing import Closing

# glibc's allocator: memory that is free goes back to the system. Elsewhere all of it does nothing.
#
# Problem: glibc keeps what is freed below anything that still lives, and from the first large
# block that is freed on it takes blocks of that size from there too, up to 32 MiB: columns that
# live for one refresh leave holes as large as themselves. Choice: the size from which a block is
# mapped by itself is set, which also ends its growing. And each thread has a heap of its own, with
# holes of its own: where memory counts more than threads that wait for one another, all share one.
# Cost: the kernel clears each such block, 0.1 ms a megabyte.


_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
"""mallopt(3)."""


def map_from(size: int) -> None:
    """From now on blocks of so many bytes are mapped one by one, and unmapped when freed."""
    _call("mallopt", _M_MMAP_THRESHOLD, size)


def one_heap() -> None:
    """For all threads that begin from now on."""
    _call("mallopt", _M_ARENA_MAX, 1)


def trim() -> None:
    """Give back what is free now (malloc_trim(3))."""
    _call("malloc_trim", 0)


def _call(function: str, *arguments: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # another C library has no such function
        getattr(ctypes.CDLL("libc.so.6"), function)(*arguments)


VARIABLE: Final = "FLEET_SHM"
_USUAL: Final = Path("/dev/shm")  # noqa: S108 - where Linux keeps files in memory
_LOCK: Final = ".lock"


def memory_place(environ: Mapping[str, str]) -> Path | None:
    """$FLEET_SHM, else /dev/shm; None where that is no folder, or $FLEET_SHM is empty."""
    named = environ.get(VARIABLE)
    place = _USUAL if named is None else Path(named)
    return place if named != "" and place.is_dir() else None


def free_bytes(place: Path) -> int:
    """How much may still be written there. Raises OSError."""
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


class MemoryFolder(Closing):
    """This process's folder below `place`, which no other user may read; `close` removes it.

    Raises OSError where there can be none.
    """

    def __init__(self, place: Path) -> None:
        ours = _ours(place)
        ours.mkdir(mode=0o700, exist_ok=True)
        _trusted(ours)
        sweep(place)
        while True:
            self.path = ours / uuid.uuid4().hex
            self._lock_file = self.path.with_suffix(_LOCK)
            self._lock = os.open(self._lock_file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(self._lock).st_nlink:  # no other process swept it between the two
                    break
            os.close(self._lock)
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Remove it with all that is in it."""
        if self._lock >= 0:
            _remove(self.path, self._lock_file)
            os.close(self._lock)
            self._lock = -1


def sweep(place: Path) -> int:
    """Remove the folders that no living process has; how many there were."""
    removed = 0
    for lock_file in _locks(place):
        with contextlib.suppress(OSError):  # removed meanwhile, or locked
            lock = os.open(lock_file, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(lock_file.with_suffix(""), lock_file)
                removed += 1
            finally:
                os.close(lock)
    return removed


def sweep_all(environ: Mapping[str, str]) -> int:
    """The same, where processes of this environment have their files."""
    place = memory_place(environ)
    return 0 if place is None else sweep(place)


def _locks(place: Path) -> list[Path]:
    ours = _ours(place)
    try:
        _trusted(ours)
        return sorted(ours.glob(f"*{_LOCK}"))
    except OSError:
        return []


def _ours(place: Path) -> Path:
    """Of this user: /dev/shm is everybody's."""
    return place / f"fleet-{os.getuid()}"


def _trusted(ours: Path) -> None:
    """Raises OSError if another user made it, or may read it."""
    found = ours.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{ours} is not a folder of this user alone (mode 0700)")


def _remove(folder: Path, lock_file: Path) -> None:
    """The lock's file last: while it is there, what is left of the folder will be removed."""
    shutil.rmtree(folder, ignore_errors=True)
    lock_file.unlink(missing_ok=True)
