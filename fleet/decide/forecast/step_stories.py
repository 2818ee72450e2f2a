"""A membership change of a Fleet group as a story for the coordinator's model.

Problem: what a change costs is decided by heartbeats, batches in hand and the assignor, and no
formula has all of it. Choice: the change is told as it is carried out: joint joins, one batched
leave after the drain, handovers one after the other; workers heartbeat and wait as theirs do, and
each has a batch in hand of which a random part is left. Cost: the group is balanced when the story
begins, its topics are one topic with all partitions, and members that are not ours are no part of
it. A large group is played by a smaller one of the same proportions (`scaled`).
"""

import random
from typing import Final, Literal, NamedTuple

from fleet.sim.scenarios.group_story import Happening, Scenario
from fleet.sim.scenarios.library import FLEET_NUDGE, HANDOVER

ChangeKind = Literal["open", "leave", "hand over", "rejoin"]

MOST_MEMBERS: Final = 32
"""Of a story, with those that come; a larger group is scaled to so many."""
MOST_HANDOVERS: Final = 6
"""Of a story; a roll of more takes as much longer."""
MOST_PARTITIONS: Final = 384
_LEAVE_REQUEST: Final = 80
"""From the last drain until the coordinator has the request: it is seen, and then asked."""
_SECOND_ROUND: Final = 250
"""A cooperative worker's wait before it asks for the next round: its protocol's `rejoins_after`."""
_BEGINS: Final = {"classic": 10_000, "consumer": 30_000}
"""When the group has settled after its start."""
_LOOKS_EVERY: Final = 100
"""How often whoever carries out a change looks whether all have drained."""
_JOINS_APART: Final = 30
"""Workers that a gate lets in subscribe within so long."""


class PlayedGroup(NamedTuple):
    """What a story has to know of a group. Times in ms."""

    protocol: str
    """range, cooperative-sticky, or consumer (KIP-848)."""
    static: bool
    partitions: int
    heartbeat: int
    session: int
    max_poll: int
    batch: int
    """How long one batch takes."""
    initial_delay: int = 3_000
    """group.initial.rebalance.delay.ms"""
    rest: int = 0
    """From the end of one batch to the next; 0 of a group that is behind."""


def scaled(group: PlayedGroup, kind: ChangeKind, staying: int, changing: int) -> float:
    """What part of the group is played: 1.0 for all of it."""
    members = staying + changing if kind in {"open", "leave"} else staying
    most = MOST_HANDOVERS if kind == "hand over" else MOST_MEMBERS
    of = changing if kind == "hand over" else members
    return min(1.0, most / max(1, of), MOST_PARTITIONS / max(1, group.partitions))


def story_of(
    group: PlayedGroup,
    kind: ChangeKind,
    *,
    staying: int,
    changing: int,
    width: int = 1,
    rng: random.Random,
) -> Scenario:
    """One change: `changing` members join beside `staying`, or leave them, or are handed over.

    Handed over and rejoining members are among the `staying`; `width` hand over at once.
    """
    is_consumer = group.protocol == "consumer"
    at = _BEGINS["consumer" if is_consumer else "classic"] + rng.randint(0, group.heartbeat)
    usual = Scenario(
        members=staying + (changing if kind == "leave" else 0),
        static=group.static,
        partitions=group.partitions,
        session_timeout=group.session,
        heartbeat_interval=group.heartbeat,
        max_poll_interval=group.max_poll,
        protocol=group.protocol,
        initial_delay=group.initial_delay,
        nudge=FLEET_NUDGE if is_consumer else 0,
        connects_within=_JOINS_APART,
        connected=True,
        rejoins_after=_SECOND_ROUND,
    )
    happens: tuple[Happening, ...]
    match kind:
        case "open":
            happens = (Happening(at, "start", staying, together=changing),)
        case "leave":
            happens = (_leave(at, staying, changing, group, rng),)
        case "hand over":
            happens = _handovers(at, changing, width, group)
        case "rejoin":
            happens = (
                Happening(at, "batched-leave", staying - 1, lasts=0),
                Happening(at + 4 * usual.longest_delay, "start", staying - 1),
            )
    busy = _batches_in_hand(at, staying, group, rng) if kind != "hand over" else ()
    return usual._replace(happenings=(*busy, *happens))


def _leave(at: int, first: int, leaving: int, group: PlayedGroup, rng: random.Random) -> Happening:
    """The request comes when the last of them has drained."""
    drains = [rng.randint(0, group.batch) for _ in range(leaving)]
    waits = max(drains) - sum(drains) // leaving + _LEAVE_REQUEST
    return Happening(at, "batched-leave", first, lasts=waits, together=leaving)


def beyond_usual(group: PlayedGroup, kind: ChangeKind, unowned: int) -> int:
    """The pause that commits show of a partition that had no owner for so long, as receipts do.

    From the last commit before to the first one after, less the usual time between two, which is
    a rest and a batch: what was left of the last batch was done before the partition went, and
    the new owner's first one, with the fetch before it, has fewer records than usual. Where a
    cooperative member gives partitions up, it begins one more batch with what it has read of them
    (docs/design/rules.md, 52).
    """
    last = group.batch if kind == "open" and group.protocol == "cooperative-sticky" else 0
    return max(0, unowned - group.rest - last)


def handover_every(group: PlayedGroup) -> int:
    """Milliseconds from one handover to the next: a drain, a first batch, and a look at both."""
    return group.batch // 2 + HANDOVER + group.batch + _LOOKS_EVERY


def _handovers(at: int, rolled: int, width: int, group: PlayedGroup) -> tuple[Happening, ...]:
    return tuple(
        Happening(
            at + turn * handover_every(group),
            "restart",
            first,
            lasts=HANDOVER,
            together=min(width, rolled - first),
        )
        for turn, first in enumerate(range(0, rolled, width))
    )


def _batches_in_hand(
    at: int, members: int, group: PlayedGroup, rng: random.Random
) -> tuple[Happening, ...]:
    """Who hears of a rebalance within a batch ends it first."""
    return tuple(
        Happening(at, "slow", number, lasts=left)
        for number in range(members)
        if (left := rng.randint(0, group.batch))
    )
