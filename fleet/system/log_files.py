"""Log files of the processes we start: bounded, and quotable.

Problem: a process writes to its log for weeks, and when it dies people ask for its last words.
Choice: a log that has grown too large is set aside when its process starts, with one older file
kept; of workers that were removed the logs of the latest stay. Cost: a process that never restarts
is not bounded by this.
"""

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import Final

LARGEST_BYTES: Final = 10 * 2**20
KEPT_LOGS: Final = 50
"""Of workers that were removed: those that were written last."""
_TAIL_BYTES: Final = 8192


def set_aside(log: Path) -> None:
    """Rename a log of more than LARGEST_BYTES to `.1`, over the older one."""
    try:
        if log.stat().st_size > LARGEST_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
    except FileNotFoundError:
        return


def thin_out(folder: Path, *, living: Collection[Path], keep: int = KEPT_LOGS) -> None:
    """Delete the logs of removed workers but for the latest; those of `living` all stay."""
    with contextlib.suppress(OSError):  # one that is gone meanwhile: next time
        gone = [log for log in folder.glob("*.log") if log not in living]
        for log in sorted(gone, key=lambda each: -each.stat().st_mtime)[keep:]:
            log.unlink(missing_ok=True)
            log.with_name(f"{log.name}.1").unlink(missing_ok=True)


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
