"""CPU seconds and memory of a benchmark's processes, from /proc.

Problem: on a machine that is shared a rate says as much of the others as of us, and where a run's
time goes is guessed. Choice: the CPU that every process spent between two moments, which others
slow but hardly change; a process' ended children count as its own. Cost: Linux.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
Pids = Callable[[], Iterable[int]]


class Spent:
    """From its making to `seconds`: what the processes of each name spent, new ones too."""

    def __init__(self, pids: Mapping[str, Pids]) -> None:
        self._pids = pids
        self._before = {name: _each(found()) for name, found in pids.items()}

    def seconds(self) -> dict[str, float]:
        """CPU seconds, user and system, of all threads."""
        return {
            name: sum(now - self._before[name].get(pid, 0.0) for pid, now in _each(found()).items())
            for name, found in self._pids.items()
        }


def _each(pids: Iterable[int]) -> dict[int, float]:
    """CPU seconds so far; 0 of a process that is gone."""
    found = {}
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # Behind the name: state is field 3; utime, stime, cutime and cstime are 14 to 17.
        found[pid] = sum(map(int, text.rpartition(")")[2].split()[11:15])) / _TICKS
    return found


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far, with its ended children; 0 where it is gone."""
    return _each([pid]).get(pid, 0.0)


def peak(pid: int) -> float:
    """VmHWM in MB; 0 where the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(sizes[0]) / 1024 if sizes else 0.0


def below(pid: int) -> list[int]:
    """All descendants."""
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                children = [int(each) for each in task.read_text(encoding="ascii").split()]
            except OSError:
                continue
            found += children
            waiting += children
    return found


def pss_of(pid: int | str) -> float:
    """Proportional set size in MB: shared pages count by their share; 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    sizes = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
    return sizes[0] / 1024 if sizes else 0.0
