"""A group as its recorded history shows it, and its next change of size as a story. Pure.

Problem: what four more members would cost is asked before anybody declares anything. Choice: the
last rebalance tells protocol, assignor and members, what members own tells the partitions, and
instance ids tell whether they are static. A group that Fleet runs is changed as Fleet does it, by
one gate or one leave; members of others come and go as processes do, two seconds apart, with
librdkafka's own timeouts, which no record tells. Cost: a group whose history was cut off before its
members joined is not known.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from fleet.config.spec import Worker
from fleet.decide.forecast.expected_costs import SMALL_BATCH, group_of_workers
from fleet.decide.forecast.step_stories import story_of
from fleet.errors import FleetError
from fleet.model.rebalances import MembershipSpan, Rebalance
from fleet.sim.scenarios.group_story import PROTOCOLS, Happening, Scenario

_APART: Final = 2_000
"""Milliseconds between processes that nobody lets in together."""
_BEGINS: Final = 60_000


class RecordedGroup(NamedTuple):
    """What a story needs of it."""

    members: int
    static: bool
    partitions: int
    protocol: str
    """One of PROTOCOLS."""


def modelled(kind: str, assignor: str | None) -> str | None:
    """Which of PROTOCOLS a group of this type with this assignor is; None: it is not modelled."""
    if kind == "consumer":
        return kind
    return assignor if kind == "classic" and assignor in PROTOCOLS else None


def recorded_group(
    name: str, rebalances: Sequence[Rebalance], spans: Iterable[MembershipSpan]
) -> RecordedGroup:
    """From rows, oldest first. Raises FleetError where they tell too little, or of no consumers."""
    if not rebalances:
        raise FleetError(
            f"no rebalance of group {name} is recorded: `fleet rebalances {name}` shows what is"
        )
    last = rebalances[-1]
    protocol = modelled(last.protocol, last.assignor)
    if protocol is None:
        raise FleetError(
            f"group {name} is of protocol {last.protocol} with assignor "
            f"{last.assignor or 'unknown'}, which is not modelled (allowed: {', '.join(PROTOCOLS)})"
        )
    there: dict[str, MembershipSpan] = {}
    for span in spans:
        if span.event == "left":
            there.pop(span.member, None)
        else:
            there[span.member] = span
    owned = {tp for span in there.values() for tp in span.owned}
    if not last.members or not owned:
        raise FleetError(f"group {name} had no member with a partition when it was last recorded")
    static = all(span.instance_id is not None for span in there.values())
    return RecordedGroup(last.members, static, len(owned), protocol)


def scaled_to(
    group: RecordedGroup, members: int, worker: Worker | None, rng: random.Random
) -> Scenario:
    """The story of its change to so many members, as Fleet does it where `worker` is declared."""
    more, fewer = max(0, members - group.members), max(0, group.members - members)
    if worker is not None:
        played = group_of_workers(worker, group.partitions, batch=SMALL_BATCH)
        played = played._replace(protocol=group.protocol, static=group.static)
        return story_of(
            played,
            "open" if more else "leave",
            staying=group.members - fewer,
            changing=more or fewer,
            rng=rng,
        )
    changes = (
        *(Happening(_BEGINS + _APART * n, "start", group.members + n) for n in range(more)),
        *(Happening(_BEGINS + _APART * n, "leave", members + n) for n in range(fewer)),
    )
    usual = Scenario(group.members, group.static, group.partitions, happenings=changes)
    return usual.by(group.protocol)
