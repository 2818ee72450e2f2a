"""How Fleet writes counts, lengths of time and lists of slots for people.

Problem: the same 90 minutes read `90 m` in one command and `2 h` in the next, and slots were
listed in three ways. Choice: what every message, table and page uses stands here. Cost: one
rounding for all; machines read seconds from `-o json`, never these texts.
"""

import re
from collections.abc import Sequence
from typing import Final

_ACTING: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
"""What acts on a terminal instead of standing on it: control characters but for tabs and line
breaks, and those that turn the direction of what follows."""
_LONGEST_NAME: Final = 300
"""Characters; topics and instance ids have 249 at most."""
_ENDS: Final = 60
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def duration(seconds: float | None) -> str:
    """A length of time: 0.25 s, 3.4 s, 5 s, 119 s, 90 min, 5 h, 2 d; `-` where it is not known.

    A unit begins at two of it, so that no figure is off by more than a quarter.
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
    """A text that may hold what others chose, such as a group's id, for a terminal."""
    return _ACTING.sub("\ufffd", text)


def plural(count: int, noun: str) -> str:
    """`1 slot`, `3 slots`, `1,200 slots`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def count_of(items: Sequence[object], noun: str) -> str:
    """`plural` of how many there are."""
    return plural(len(items), noun)


def brief(name: str) -> str:
    """A name for a sentence: of a long one the ends, which tell it from others.

    A client's id may have 32,767 characters; sentences are kept in annotations and labels.
    """
    return name if len(name) <= _LONGEST_NAME else f"{name[:_ENDS]}…{name[-_ENDS:]}"


def few(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(map(brief, names[:most])) + (f" and {rest} more" if rest > 0 else "")


def numbers_of(values: Sequence[int]) -> str:
    """Numbers of slots or partitions: `0-3, 7`; `-` where there are none."""
    runs: list[tuple[int, int]] = []
    for value in sorted(set(values)):
        if runs and runs[-1][1] == value - 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs) or "-"


def slots_of(values: Sequence[int]) -> str:
    """`slot 3`, `slots 0-3, 7`."""
    return f"{'slot' if len(set(values)) == 1 else 'slots'} {numbers_of(values)}"


def expected_within(expected: int | None, low: int | None, high: int | None) -> str:
    """What is expected and, where they say something else, its bounds: `2 (1-2)`, `1-2`, `?`."""
    if low is None or high is None:
        return "?" if expected is None else str(expected)
    bounds = str(high) if low == high else f"{low}-{high}"
    return bounds if expected is None or low == high else f"{expected} ({bounds})"
