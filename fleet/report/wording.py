"""A rebalance in words: who, why, how long, and how sure. Pure.

Problem: tables, pictures and hover titles say the same things of a rebalance, and what is not
known must read differently from zero everywhere. Choice: the words stand here once. Times are
UTC, since a picture is passed on to people elsewhere.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from fleet.model.rebalances import Cause, Confidence, Known, Rebalance
from fleet.text import duration

_UUID: Final = 36
_NAMED: Final = 2
_NAME_WIDTH: Final = 24
_COLUMN: Final = 48


def clock_text(at: float, *, date: bool = True) -> str:
    """Wall time as `2026-11-21 16:02:40`, or without the date."""
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S")


def took(rebalance: Rebalance) -> str:
    """Its duration with how it is known: `2.3 s`, `~2.3 s` (looks at its state), `≥ 2.3 s`, `-`.

    Commits at revocation say that it began no later, so that it took at least as long.
    """
    if rebalance.seconds is None:
        return "-"
    ways = (rebalance.start_source, rebalance.end_source)
    about = "~" if Known.POLLED in ways or Known.STATES in ways else ""
    return (about if rebalance.is_timed else "≥ ") + duration(rebalance.seconds)


def cause_text(rebalance: Rebalance) -> str:
    """The cause, what else changed, and the confidence where it is not certain."""
    told = ", ".join(dict.fromkeys([rebalance.cause.value, *(c.value for c in rebalance.also)]))
    certain = rebalance.confidence is Confidence.CERTAIN
    return told if certain else f"{told} ({rebalance.confidence.value})"


def short(member: str) -> str:
    """A member's name without most of a random end: `<client>-<uuid>` keeps four of its digits."""
    base, dash = member[: -_UUID - 1], member[-_UUID - 1 : -_UUID]
    if base and dash == "-" and member[-_UUID:].count("-") == 4:
        member = f"{base}-{member[-_UUID:][:4]}…"
    if len(member) > _NAME_WIDTH:
        member = f"{member[:10]}…{member[-(_NAME_WIDTH - 11) :]}"
    return member


def in_table(name: str) -> str:
    """A name of a group, topic or partition for a column: a long one without its middle.

    Kafka allows 249 characters for topics and any number for groups; the ends tell them apart.
    """
    if len(name) <= _COLUMN:
        return name
    tail = _COLUMN // 3
    return f"{name[: _COLUMN - tail - 1]}…{name[-tail:]}"


def who(rebalance: Rebalance, *, most: int = _NAMED) -> str:
    """`+joined -left ~replaced`, at most so many of each by name, the rest counted."""
    groups = (("+", rebalance.joined), ("-", rebalance.left), ("~", rebalance.replaced))
    return " ".join(part for sign, names in groups for part in _some(sign, names, most))


def _some(sign: str, names: Sequence[str], most: int) -> Iterable[str]:
    """A last one that would only be counted is named: `+1 more` says less than its name."""
    shown = names if len(names) <= most + 1 else names[:most]
    yield from (f"{sign}{short(name)}" for name in shown)
    if len(names) > len(shown):
        yield f"{sign}{len(names) - len(shown)} more"


def number_word(protocol: str) -> str:
    """What counts a group's rebalances: classic generations, or epochs."""
    return "generation" if protocol == "classic" else "epoch"


def sentence(rebalance: Rebalance) -> str:
    """The whole of it in one line, for hover titles and logs."""
    parts = [cause_text(rebalance)]
    if people := who(rebalance, most=6):
        parts.append(people)
    moved = len(rebalance.moved)
    parts.append(f"{moved} partition{'' if moved == 1 else 's'} moved")
    parts.append(
        "its beginning is not known" if took(rebalance) == "-" else f"took {took(rebalance)}"
    )
    if rebalance.aborted:
        parts.append(f"{rebalance.aborted} round{'' if rebalance.aborted == 1 else 's'} aborted")
    head = f"{number_word(rebalance.protocol)} {rebalance.number}, {clock_text(rebalance.ended_at)}"
    return f"{head}: {'; '.join(parts)}"


def by_cause(rebalances: Iterable[Rebalance]) -> list[tuple[Cause, int]]:
    """How often each cause was seen, most frequent first."""
    counted = Counter(rebalance.cause for rebalance in rebalances)
    return sorted(counted.items(), key=lambda item: (-item[1], item[0].value))
