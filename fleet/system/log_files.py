"""Log files of the processes we start: bounded, quotable, and read on from where one was.

Problem: a process writes to its log for weeks, and when it dies people ask for its last words.
Choice: a log that has grown too large is set aside when its process starts, with one older file
kept; of workers that were removed the logs of the latest stay. Cost: a process that never restarts
is not bounded by this.
"""

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Final

LARGEST_BYTES: Final = 10 * 2**20
KEPT_LOGS: Final = 50
"""Of workers that were removed: those that were written last."""
_TAIL_BYTES: Final = 8192
_READ_BYTES: Final = 4 * 2**20
"""Of a log that is read for the first time: its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line; at: its wall time, None if neither it nor a line before it has one."""

    at: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """Whole lines of a log, and the place to read on from."""

    lines: tuple[LogLine, ...]
    place: str


def set_aside(log: Path) -> None:
    """Rename a log of more than LARGEST_BYTES to `.1`, over the older one."""
    try:
        if log.stat().st_size > LARGEST_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
    except FileNotFoundError:
        return


def thin_out(folder: Path, *, living: Collection[Path], keep: int = KEPT_LOGS) -> None:
    """Delete the logs of removed workers but for the latest; those of `living` all stay."""
    with contextlib.suppress(OSError):  # one was deleted meanwhile: next time
        removed = [log for log in folder.glob("*.log") if log not in living]
        for log in sorted(removed, key=lambda each: -each.stat().st_mtime)[keep:]:
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


def read_log(log: Path, place: str | None = None) -> LogPart:
    """What was written since `place`; None: the end of the log, with the older file before it."""
    older = log.with_name(f"{log.name}.1")
    inode, offset = (0, 0) if place is None else map(int, place.split(":"))
    text, end = b"", 0
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        now = os.fstat(file.fileno()).st_ino
        if place is not None and now == inode:
            text, end = _rest(file, offset)
        else:  # the first read, or the log was renamed meanwhile
            text, end = _rest(file, 0)
            text = _of_older(older, inode, offset, first=place is None) + text
        inode = now
    return LogPart(lines=lines_of(text.decode(errors="replace")), place=f"{inode}:{end}")


def _of_older(older: Path, inode: int, offset: int, *, first: bool) -> bytes:
    with contextlib.suppress(FileNotFoundError), older.open("rb") as file:
        if first or os.fstat(file.fileno()).st_ino == inode:
            return _rest(file, 0 if first else offset)[0]
    return b""


def _rest(file: IO[bytes], offset: int) -> tuple[bytes, int]:
    """Whole lines from an offset on, of too many the last, and where they end."""
    size = file.seek(0, 2)
    start = max(offset, size - _READ_BYTES)
    file.seek(start)
    text = file.read()
    text = text[: text.rfind(b"\n") + 1]
    return text, start + len(text)


def lines_of(text: str) -> tuple[LogLine, ...]:
    """Lines with the time that they begin with; one without has that of the line before it."""
    found: list[LogLine] = []
    at: float | None = None
    for line in text.splitlines():
        at = time_of(line.partition(" ")[0]) or at
        found.append(LogLine(at=at, text=line))
    return tuple(found)


def time_of(word: str) -> float | None:
    """Wall time of an ISO 8601 time with a zone; None where it is none."""
    if not word[:4].isdigit() or "T" not in word:
        return None
    try:
        return datetime.fromisoformat(word).timestamp()
    except ValueError:
        return None
