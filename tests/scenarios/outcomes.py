"""What became of a group, by its coordinator's records: real and simulated ones alike."""

import random
from collections.abc import Iterable
from typing import NamedTuple

from fleet.log.records import (
    AssignmentEpoch,
    CurrentAssignment,
    GroupMetadata,
    Record,
    Tombstone,
    decode,
)
from fleet.sim.scenarios.play import play_records
from tests.scenarios.generated import Tale

CALM = 6
"""Seeds that are tried for each story with the delays of this machine at rest,"""
OTHER = 16
"""and with those of others."""


class Delays(NamedTuple):
    """From a process's start to its coordinator at least, how much longer, and a message's (ms)."""

    lag: int
    start: int
    message: int


LATE = 60
"""Milliseconds that a process needs at most to do what it does."""
AT_REST = (Delays(45, 15, 3),)
OTHERWISE = (Delays(10, 20, 2), Delays(45, 300, 10), Delays(45, 600, 30), Delays(45, 900, 45))
"""A faster machine, and busy ones."""


class Outcome(NamedTuple):
    """Rebalances after each event, and who owns what in the end.

    Classic groups: partitions by member number. KIP-848: the sizes of all shares, since member
    ids, by which the coordinator walks them, are random.
    """

    rebalances: tuple[int, ...]
    owners: tuple[tuple[int, ...], ...]


class Seen(NamedTuple):
    """An outcome and how long it took after each event until the coordinator wrote no more (ms)."""

    outcome: Outcome
    settled: tuple[int, ...]


def seen(records: Iterable[Record], tale: Tale) -> Seen:
    """`records` of one group with times in ms from the start of all."""
    counted = [0] * len(tale.windows)
    settled = [0] * len(tale.windows)
    group = _Group()
    for record in records:
        rebalanced = group.take(record)
        for place, (start, end) in enumerate(tale.windows):
            if start <= record.timestamp_ms < end:
                counted[place] += rebalanced
                settled[place] = max(settled[place], record.timestamp_ms - start)
    return Seen(Outcome(tuple(counted), group.owners()), tuple(settled))


class _Group:
    def __init__(self) -> None:
        self.generation = 0
        self.classic: GroupMetadata | None = None
        self.epochs: dict[str, CurrentAssignment] = {}
        self.epoch = 1

    def take(self, record: Record) -> int:
        """Rebalances that it tells of."""
        match record:
            case GroupMetadata():
                more = record.generation - self.generation
                self.generation, self.classic = record.generation, record
                return more
            case AssignmentEpoch() if record.epoch != self.epoch:
                self.epoch = record.epoch
                return 1
            case CurrentAssignment():
                self.epochs[record.member_id] = record
            case Tombstone(type=8):
                self.epochs.pop(str(record.key[0]), None)
        return 0

    def owners(self) -> tuple[tuple[int, ...], ...]:
        if self.classic is not None:
            members = sorted(self.classic.members, key=lambda member: member.member_id)
            return tuple(
                (_number(m.client_id), *sorted(p for of in m.assigned.values() for p in of))
                for m in members
            )
        sizes = (sum(map(len, m.assigned.values())) for m in self.epochs.values())
        return tuple((size,) for size in sorted(sizes))


def _number(client_id: str) -> int:
    return int(client_id.rpartition("-")[2])


def modelled(tale: Tale) -> list[Seen]:
    """What the model says, by seed: first the calm ones."""
    found = []
    for seed in range(CALM + OTHER):
        rng = random.Random(f"{tale.name} {seed}")
        delays = AT_REST if seed < CALM else OTHERWISE
        lag, start, message = delays[seed % len(delays)]
        scenario = tale.scenario._replace(
            connects_in=lag, connects_within=start, longest_delay=message
        )
        if seed >= CALM:  # a process does not act, or close, at the very moment
            late = tuple(
                each._replace(at=each.at + rng.randint(0, LATE)) for each in scenario.events
            )
            scenario = scenario._replace(events=late)
        written = play_records(scenario, rng)
        found.append(seen((_decoded(*each) for each in written), tale))
    return found


def _decoded(at: int, key: bytes, value: bytes | None) -> Record:
    return decode(key, value, offset=0, timestamp=at)
