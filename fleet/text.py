"""Formats counts, durations and lists of slots for people.

Problem: the same 90 minutes read `90 m` in one command and `2 h` in the next. Choice: every
message, table and page uses these functions. Cost: one rounding for all; programs read seconds
from `-o json` instead.
"""

import re
from collections.abc import Sequence
from typing import Final

_ACTING: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
"""Characters that control a terminal, without tabs and line breaks, or the text direction."""
_LONGEST_NAME: Final = 300
"""Characters; topics and instance ids have 249 at most."""
_ENDS: Final = 60
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def duration(seconds: float | None) -> str:
    """Formats a duration: 0.25 s, 3.4 s, 5 s, 119 s, 90 min, 5 h, 2 d; `-` if unknown.

    A unit begins at two of it, so that the error is at most a quarter.
    """
    if seconds is None:
        return "-"
    if seconds < 10:
        figure = f"{seconds:.2f}" if seconds < 1 else f"{seconds:.1f}"
        return f"{figure.removesuffix('.00').removesuffix('.0')} s"
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def visible(text: str) -> str:
    """Replaces control characters in a text, such as a group's id, for a terminal."""
    return _ACTING.sub("\ufffd", text)


def plural(count: int, noun: str) -> str:
    """Returns `1 slot`, `3 slots` or `1,200 slots`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def count_of(items: Sequence[object], noun: str) -> str:
    """Returns `plural` of the number of items."""
    return plural(len(items), noun)


def brief(name: str) -> str:
    """Shortens a long name to its two ends, which identify it.

    A client's id may have 32,767 characters; annotations and labels store the sentences.
    """
    return name if len(name) <= _LONGEST_NAME else f"{name[:_ENDS]}…{name[-_ENDS:]}"


def few(names: Sequence[str], most: int = 3) -> str:
    """Returns the first names and the number of the others."""
    rest = len(names) - most
    return ", ".join(map(brief, names[:most])) + (f" and {rest} more" if rest > 0 else "")


def numbers_of(values: Sequence[int]) -> str:
    """Formats numbers of slots or partitions as `0-3, 7`; `-` if there are none."""
    runs: list[tuple[int, int]] = []
    for value in sorted(set(values)):
        if runs and runs[-1][1] == value - 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs) or "-"


def slots_of(values: Sequence[int]) -> str:
    """Returns `slot 3` or `slots 0-3, 7`."""
    return f"{'slot' if len(set(values)) == 1 else 'slots'} {numbers_of(values)}"


def expected_within(expected: int | None, low: int | None, high: int | None) -> str:
    """Returns an expected value with its bounds if they differ: `2 (1-2)`, `1-2`, `?`."""
    if low is None or high is None:
        return "?" if expected is None else str(expected)
    bounds = str(high) if low == high else f"{low}-{high}"
    return bounds if expected is None or low == high else f"{expected} ({bounds})"
