"""Lays out a group's rebalances and members as a timeline. Pure.

Problem: a picture shows an incident faster than a table. Rows of rebalances and memberships are
no picture: ownership is spread over events, a downtime is seconds within hours, and a client that
restarts often leaves a hundred member ids. Choice: one lane per member, with a bar for each time
with the same number of partitions. All stays of one client id share a lane if they never overlap.
A lane shows a downtime if it had to stop: every lane of an eager group, else those that gave up
partitions. `fleet.report.timeline_html` draws the layout. Cost: `max_lanes` lanes at most; the
members that owned least are counted but not drawn.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from math import ceil
from typing import Final

from fleet.model import TopicPartition
from fleet.model.rebalances import Cause, MembershipSpan, Rebalance
from fleet.report.wording import count_by_cause, short_member_name

_EAGER: Final = frozenset({"range", "roundrobin", "sticky"})
_STEPS: Final = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200),
    *(3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400, 14 * 86400, 30 * 86400),
)
_LEAST_SPAN: Final = 10.0
_LATE: Final = 1.0
"""Seconds after the end of a rebalance until which a member's record still counts (KIP-848)."""


@dataclass(frozen=True, slots=True)
class Span:
    """A time range in wall-clock seconds."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A time range in which a lane's member owned the same number of partitions."""

    start: float
    end: float
    owned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One member, or all stays of a client id if no two of them overlap."""

    label: str
    members: tuple[str, ...]
    bars: tuple[Bar, ...]
    pauses: tuple[Span, ...] = ()
    replaced: tuple[float, ...] = ()
    """Times at which another process replaced the static member under its instance id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The layout of one group between two times."""

    cluster: str
    group: str
    protocol: str
    since: float
    until: float
    lanes: tuple[Lane, ...]
    marks: tuple[Rebalance, ...]
    """The rebalances that ended in this time, in order."""
    before: int | None
    """The generation at `since`."""
    storms: tuple[Span, ...]
    ticks: tuple[tuple[float, str], ...]
    counts: tuple[tuple[Cause, int], ...]
    hidden: int = 0
    """Members without a lane."""

    @property
    def most_owned(self) -> int:
        """Returns the most partitions that one lane owned; at least 1."""
        return max((bar.owned for lane in self.lanes for bar in lane.bars), default=0) or 1

    @property
    def longest(self) -> float | None:
        """Returns the seconds of the longest rebalance; None if no duration is known."""
        return max((m.seconds for m in self.marks if m.seconds is not None), default=None)


def lay_out(
    *,
    rebalances: Sequence[Rebalance],
    memberships: Sequence[MembershipSpan],
    since: float,
    until: float,
    storms: Sequence[Span] = (),
    max_lanes: int = 60,
) -> Timeline:
    """Lays out one group between two times; earlier memberships give the owners at `since`.

    Raises ValueError if there is no rebalance, or if they belong to several groups.
    """
    groups = {(r.cluster, r.group) for r in rebalances}
    if len(groups) != 1:
        raise ValueError(f"a timeline shows one group with rebalances, not {len(groups)}")
    ((cluster, group),) = groups
    shown = sorted(
        (r for r in rebalances if since <= r.ended_at <= until), key=lambda r: r.ended_at
    )
    earlier = [r for r in rebalances if r.ended_at < since]
    before = max(earlier, key=lambda r: r.ended_at).number if earlier else None
    if before is None and shown:
        before = shown[0].before
    lanes = _lanes(memberships, since, until)
    kept = _with_most(lanes, max_lanes)
    return Timeline(
        cluster=cluster,
        group=group,
        protocol=rebalances[-1].protocol,
        since=since,
        until=until,
        lanes=tuple(replace(ln, pauses=tuple(_pauses(stays, shown))) for ln, stays in kept),
        marks=tuple(shown),
        before=before,
        storms=tuple(_clip(storms, since, until)),
        ticks=ticks(since, until),
        counts=tuple(count_by_cause(shown)),
        hidden=sum(len(ln.members) for ln, _ in lanes) - sum(len(ln.members) for ln, _ in kept),
    )


def extent(rebalances: Sequence[Rebalance], *, now: float) -> Span:
    """Returns a time range that shows these rebalances, and the present if it is near."""
    begins = [r.started_at if r.started_at is not None else r.ended_at for r in rebalances]
    first, last = min(begins, default=now), max((r.ended_at for r in rebalances), default=now)
    air = max((last - first) * 0.05, _LEAST_SPAN / 2)
    end = now if now - last <= (last - first) / 2 else last + air
    return Span(first - air, max(min(end, now), last + air / 5))


def ticks(since: float, until: float, *, most: int = 8) -> tuple[tuple[float, str], ...]:
    """Returns round UTC times between two times with labels; the first of a day has the date."""
    span = max(until - since, 0.1)
    step = next(
        (s for s in _STEPS if span / s <= most), _STEPS[-1] * ceil(span / _STEPS[-1] / most)
    )
    number = int(since // step) + 1
    found: list[tuple[float, str]] = []
    day = ""
    while number * step <= until:
        at = number * step
        moment = datetime.fromtimestamp(at, tz=UTC)
        today = moment.strftime("%b %d")
        clock = moment.strftime("%H:%M" if step >= 60 else "%H:%M:%S")
        if step < 1:
            clock += f".{int(at * 10) % 10}"
        fresh, day = today != day, today
        text = today if step >= 86400 else f"{today} {clock}" if fresh else clock
        found.append((at, text))
        number += 1
    return tuple(found)


def choose_labels(places: Iterable[float], gap: float) -> list[bool]:
    """Which of these places, in order, can carry a label at least `gap` from the last one."""
    last = float("-inf")
    chosen = []
    for place in places:
        fits = place - last >= gap
        chosen.append(fits)
        last = place if fits else last
    return chosen


def _clip(spans: Iterable[Span], since: float, until: float) -> Iterable[Span]:
    for span in spans:
        if span.end >= since and span.start <= until:
            yield Span(max(span.start, since), min(span.end, until))


# --- lanes ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stay:
    """One member from its first event to its leaving."""

    member: str
    instance: bool
    client: str
    came: float
    bars: list[Bar]
    replaced: list[float]
    lost: list[float]
    """When partitions were taken from it, be it for as many others; its leaving too; in order."""
    owned: frozenset[TopicPartition] = frozenset()
    went: float | None = None

    def owns(self, at: float, owned: Iterable[TopicPartition]) -> None:
        """From now on these."""
        before, self.owned = self.owned, frozenset(owned)
        if before - self.owned:
            self.lost.append(at)
        if self.bars and self.bars[-1].owned == len(self.owned):
            return
        self.close(at)
        self.bars.append(Bar(at, at, len(self.owned)))

    def leaves(self, at: float) -> None:
        """It is no member from now on."""
        self.lost.append(at)
        self.close(at)
        self.went = at

    def close(self, at: float) -> None:
        """Its last bar reaches until here."""
        if self.bars:
            last = self.bars.pop()
            if at > last.start:
                self.bars.append(replace(last, end=at))


def _lanes(
    memberships: Sequence[MembershipSpan], since: float, until: float
) -> list[tuple[Lane, Sequence[_Stay]]]:
    """In their order, without pauses; and the stays that each is of, one after the other."""
    stays = _stays(memberships, until)
    visible = [s for s in stays if s.came <= until and (s.went or until) > since]
    together: dict[str, list[_Stay]] = defaultdict(list)
    for stay in visible:
        together[stay.member].append(stay)
    made = [(_lane(label, own, since, until), own) for label, own in _share_lane(together)]
    static = {stay.member for stay in visible if stay.instance}
    return sorted(made, key=lambda each: _order(each[0], static=each[0].members[0] in static))


def _stays(memberships: Sequence[MembershipSpan], until: float) -> list[_Stay]:
    present: dict[str, _Stay] = {}
    done: list[_Stay] = []
    for row in sorted(memberships, key=lambda m: m.at):
        if row.event == "left":
            if (gone := present.pop(row.member, None)) is not None:
                gone.leaves(row.at)
                done.append(gone)
            continue
        stay = present.get(row.member)
        if stay is None:
            stay = _Stay(row.member, row.instance_id is not None, row.client_id, row.at, [], [], [])
            present[row.member] = stay
        if row.event == "replaced":
            stay.replaced.append(row.at)
            continue
        stay.owns(row.at, row.owned)
    for stay in present.values():
        stay.close(until)
    return done + list(present.values())


def _share_lane(together: dict[str, list[_Stay]]) -> list[tuple[str, list[_Stay]]]:
    """Dynamic members of one client id share a lane where they never met."""
    lanes: list[tuple[str, list[_Stay]]] = []
    clients: dict[str, list[_Stay]] = defaultdict(list)
    for member, stays in together.items():
        if stays[0].instance or not stays[0].client:
            lanes.append((short_member_name(member), stays))
        else:
            clients[stays[0].client].extend(stays)
    for client, stays in clients.items():
        ordered = sorted(stays, key=lambda s: s.came)
        met = any((a.went is None or a.went > b.came) for a, b in pairwise(ordered))
        if not met and len({s.member for s in ordered}) > 1:
            lanes.append((f"{client} ({len({s.member for s in ordered})} in turn)", ordered))
            continue
        by_member: dict[str, list[_Stay]] = defaultdict(list)
        for stay in ordered:
            by_member[stay.member].append(stay)
        lanes.extend((short_member_name(member), own) for member, own in by_member.items())
    return lanes


def _lane(label: str, stays: Sequence[_Stay], since: float, until: float) -> Lane:
    bars = [
        Bar(max(bar.start, since), min(bar.end, until), bar.owned)
        for stay in stays
        for bar in stay.bars
        if bar.end > since and bar.start < until
    ]
    return Lane(
        label=label,
        members=tuple(dict.fromkeys(stay.member for stay in stays)),
        bars=tuple(bars),
        replaced=tuple(at for stay in stays for at in stay.replaced if since <= at <= until),
    )


def _pauses(stays: Sequence[_Stay], shown: Sequence[Rebalance]) -> Iterable[Span]:
    """While it was a member already: who joins with a rebalance had nothing to pause.

    Who leaves had paused from its last sign of life on; who only gets more goes on reading.
    """
    for stay in stays:
        within = slice(
            bisect_left(shown, stay.came, key=_ended_at),
            None if stay.went is None else bisect_right(shown, stay.went, key=_ended_at),
        )
        for rebalance in shown[within]:
            start, end = rebalance.started_at, rebalance.ended_at
            if start is None or end <= start or start < stay.came:
                continue
            eager = rebalance.protocol == "classic" and rebalance.assignor in _EAGER
            lost = bisect_left(stay.lost, start)
            if eager or (lost < len(stay.lost) and stay.lost[lost] <= end + _LATE):
                yield Span(start, end)


def _ended_at(rebalance: Rebalance) -> float:
    return rebalance.ended_at


def _with_most(
    lanes: Sequence[tuple[Lane, Sequence[_Stay]]], most: int
) -> Sequence[tuple[Lane, Sequence[_Stay]]]:
    """The lanes that held partitions longest, in their order."""
    if len(lanes) <= most:
        return lanes
    held = [sum((b.end - b.start) * (b.owned + 0.01) for b in lane.bars) for lane, _ in lanes]
    kept = sorted(range(len(lanes)), key=lambda number: -held[number])[:most]
    return [lanes[number] for number in sorted(kept)]


def _order(lane: Lane, *, static: bool) -> tuple[object, ...]:
    """Sorts static members by number, dynamic ones by the time they joined."""
    parts = re.split(r"(\d+)", lane.label)
    natural = tuple((int(p), "") if p.isdecimal() else (-1, p) for p in parts)
    came = lane.bars[0].start if lane.bars else 0.0
    return (0, natural) if static else (1, came, natural)
