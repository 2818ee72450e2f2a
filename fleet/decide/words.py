"""Counted things in sentences."""

from collections.abc import Sequence


def plural(count: int, noun: str) -> str:
    """`1 slot`, `3 slots`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def count_of(items: Sequence[object], noun: str) -> str:
    """`plural` of how many there are."""
    return plural(len(items), noun)


def few(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def numbers_of(numbers: Sequence[int]) -> str:
    """`0-3, 7`."""
    parts: list[str] = []
    run: list[int] = []
    for number in [*sorted(numbers), -1]:
        if run and number == run[-1] + 1:
            run.append(number)
            continue
        if run:
            parts.append(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}")
        run = [number]
    return ", ".join(parts)
