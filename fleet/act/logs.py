"""Log files of the processes we start: bounded, and quotable.

Problem: a process writes to its log for weeks, and when it dies people ask for its last words.
Choice: a log that has grown too large is set aside when its process starts; one older file is
kept. Cost: a process that never restarts is not bounded by this.
"""

from pathlib import Path
from typing import Final

LARGEST_BYTES: Final = 10 * 2**20
_TAIL_BYTES: Final = 8192


def set_aside(log: Path) -> None:
    """Rename a log of more than LARGEST_BYTES to `.1`, over the older one."""
    try:
        if log.stat().st_size > LARGEST_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
    except FileNotFoundError:
        return


def last_line(log: Path) -> str:
    """The last line that is not blank, shortened; empty where there is none."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
