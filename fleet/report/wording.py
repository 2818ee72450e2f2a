"""A rebalance as text: who, why, how long, and how certain. Pure.

Problem: tables, timelines and hover titles describe the same rebalance. An unknown figure must
never read like zero. Choice: this module holds the words once. Times are UTC, because people in
other time zones read the timelines.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from fleet.model.rebalances import Cause, Confidence, Rebalance, TimeSource
from fleet.text import duration

_UUID: Final = 36
_NAMED: Final = 2
_NAME_WIDTH: Final = 24
_COLUMN: Final = 48


def clock_text(at: float, *, date: bool = True) -> str:
    """Formats a wall-clock time as `2026-11-21 16:02:40`, or without the date."""
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S")


def duration_text(rebalance: Rebalance) -> str:
    """Formats the duration and its source: `2.3 s`, `~2.3 s` (state polls), `≥ 2.3 s`, `-`.

    Commits at a revocation bound the start, so the duration is then a lower bound.
    """
    if rebalance.seconds is None:
        return "-"
    ways = (rebalance.start_source, rebalance.end_source)
    about = "~" if TimeSource.POLLED in ways or TimeSource.STATES in ways else ""
    return (about if rebalance.is_timed else "≥ ") + duration(rebalance.seconds)


def cause_text(rebalance: Rebalance) -> str:
    """Names the cause, what else changed, and the confidence if it is not certain."""
    causes = ", ".join(dict.fromkeys([rebalance.cause.value, *(c.value for c in rebalance.also)]))
    certain = rebalance.confidence is Confidence.CERTAIN
    return causes if certain else f"{causes} ({rebalance.confidence.value})"


def short_member_name(member: str) -> str:
    """Shortens a member's name: `<client>-<uuid>` keeps four digits of the UUID."""
    base, dash = member[: -_UUID - 1], member[-_UUID - 1 : -_UUID]
    if base and dash == "-" and member[-_UUID:].count("-") == 4:
        member = f"{base}-{member[-_UUID:][:4]}…"
    if len(member) > _NAME_WIDTH:
        member = f"{member[:10]}…{member[-(_NAME_WIDTH - 11) :]}"
    return member


def shorten_for_table(name: str) -> str:
    """Cuts the middle of a long group, topic or partition name so that it fits a column.

    Kafka allows 249 characters for topics and any number for groups; names differ at their ends.
    """
    if len(name) <= _COLUMN:
        return name
    tail = _COLUMN // 3
    return f"{name[: _COLUMN - tail - 1]}…{name[-tail:]}"


def members_text(rebalance: Rebalance, *, most: int = _NAMED) -> str:
    """Lists `+joined -left ~replaced`: `most` members of each by name, the rest as a count."""
    groups = (("+", rebalance.joined), ("-", rebalance.left), ("~", rebalance.replaced))
    return " ".join(part for sign, names in groups for part in _some(sign, names, most))


def _some(sign: str, names: Sequence[str], most: int) -> Iterable[str]:
    """Names a single remaining member: `+1 more` says less than its name."""
    shown = names if len(names) <= most + 1 else names[:most]
    yield from (f"{sign}{short_member_name(name)}" for name in shown)
    if len(names) > len(shown):
        yield f"{sign}{len(names) - len(shown)} more"


def number_word(protocol: str) -> str:
    """Returns what counts a group's rebalances: `generation` (classic) or `epoch`."""
    return "generation" if protocol == "classic" else "epoch"


def sentence(rebalance: Rebalance) -> str:
    """Describes the rebalance in one line, for hover titles and logs."""
    parts = [cause_text(rebalance)]
    if people := members_text(rebalance, most=6):
        parts.append(people)
    moved = len(rebalance.moved)
    parts.append(f"{moved} partition{'' if moved == 1 else 's'} moved")
    took = duration_text(rebalance)
    parts.append("start unknown" if took == "-" else f"took {took}")
    if rebalance.aborted:
        parts.append(f"{rebalance.aborted} round{'' if rebalance.aborted == 1 else 's'} aborted")
    head = f"{number_word(rebalance.protocol)} {rebalance.number}, {clock_text(rebalance.ended_at)}"
    return f"{head}: {'; '.join(parts)}"


def count_by_cause(rebalances: Iterable[Rebalance]) -> list[tuple[Cause, int]]:
    """Counts the rebalances of each cause, most frequent first."""
    counted = Counter(rebalance.cause for rebalance in rebalances)
    return sorted(counted.items(), key=lambda item: (-item[1], item[0].value))
