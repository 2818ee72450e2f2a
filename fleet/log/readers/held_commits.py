"""Offset commits inside transactions that have not ended yet: kept apart until they do.

Problem: a producer that died in a transaction with offsets leaves it open for minutes; who reads
committed records only then waits with everything behind it, other groups' members too. Choice:
the log is read to its end, and only the commits of a transaction wait, for the marker that ends
it, as in the coordinator itself: they count if it committed, unless what was written later for
the same partition of the same group, in another transaction or in none, counts already. Cost: a
transaction that began before the reading is known from its first record read.

Pure. Source: KIP-98, KIP-447; Kafka's OffsetMetadataManager.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple


class HeldRecord(NamedTuple):
    """A record of the offsets topic as it stands in the log; `ms` is its time."""

    offset: int
    ms: int
    key: bytes | None
    value: bytes | None


class OpenTransaction(NamedTuple):
    """A transaction with offsets that has not ended: in which partition of the offsets topic,
    whose, since when (wall time), and how many partitions' commits it holds.
    """

    partition: int
    producer: int
    since: float
    commits: int


class HeldCommits:
    """By partition of the offsets topic and producer."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], dict[bytes | None, HeldRecord]] = {}
        self._since: dict[tuple[int, int], int] = {}
        self._numbers: frozenset[int] = frozenset()

    def any_in(self, number: int) -> bool:
        """Whether a transaction is open in this partition of the topic."""
        return number in self._numbers

    def hold(self, number: int, producer: int, record: HeldRecord) -> None:
        """Keep a record until its transaction ends."""
        place = (number, producer)
        if place not in self._held:
            self._held[place], self._since[place] = {}, record.ms
            self._numbers |= {number}
        self._held[place].pop(record.key, None)
        self._held[place][record.key] = record

    def overtaken(self, number: int, by: HeldRecord) -> None:
        """This counts: what is held of the same key and was written before it is out."""
        for place, records in self._held.items():
            found = records.get(by.key) if place[0] == number else None
            if found is not None and found.offset < by.offset:
                del records[by.key]

    def end(self, number: int, producer: int, *, committed: bool) -> Iterable[HeldRecord]:
        """What counts from now on, in the order written."""
        place = (number, producer)
        found = self._held.pop(place, {})
        self._since.pop(place, None)
        self._numbers = frozenset(partition for partition, _ in self._held)
        return tuple(found.values()) if committed else ()

    def forget(self, number: int) -> None:
        """The partition is read anew."""
        for place in [each for each in self._held if each[0] == number]:
            self.end(*place, committed=False)

    def open(self) -> Collection[OpenTransaction]:
        """All that have not ended, oldest first."""
        found = [
            OpenTransaction(number, producer, self._since[number, producer] / 1000, len(records))
            for (number, producer), records in self._held.items()
        ]
        return sorted(found, key=lambda each: each.since)
