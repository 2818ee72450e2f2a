"""Processes that carry an id in their environment, which children inherit: found and ended.

Problem: what somebody started for one run has to be found again though whoever started it was
killed, its children too. Choice: a variable in the environment, which the kernel shows for as
long as a process lives. Cost: Linux only, own processes only, and a look takes milliseconds.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from fleet.system import processes
from fleet.system.processes import ProcessId


def carrying(variable: str, value: str) -> tuple[ProcessId, ...]:
    """Living processes with this in their environment, other than the caller; none of none."""
    if not value:
        return ()
    found = []
    for pid in processes.pids():
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if f"{variable}={value}".encode() in told:
                process = processes.identify(pid)
                if process is not None:
                    found.append(process)
    return tuple(found)


def end_all(found: tuple[ProcessId, ...], *, grace: float) -> None:
    """End exactly these: SIGTERM to all, `grace` seconds, SIGKILL; they are gone afterwards.

    One by one and not by process group: a leftover need not lead the group that it is in.
    """
    for number, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        for process in found:
            if processes.alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)
        deadline = time.monotonic() + wait
        while any(processes.alive(p) for p in found) and time.monotonic() < deadline:
            time.sleep(0.05)
