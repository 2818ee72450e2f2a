"""The invariants of a KIP-848 group that its own records decide: I1, I2, I4, I9, and the count.

The coordinator writes down what each member has (type 8) and gives up (pending revocation), and
who the member is (type 5), so that the owner of a partition at any position of the log is known,
and with it whose commit stands there. Partitions go by their topic's id: who has one of a topic
that was deleted shares nothing with who has that of the topic recreated under its name. The other
invariants are the same as of a classic group.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.support.kafka_tools import Record

GROUP, MEMBER, TARGET, CURRENT = 3, 5, 6, 8


@dataclass(slots=True)
class Owners:
    """Who has what at one position of the log."""

    clients: dict[str, str] = field(default_factory=dict)
    """Member → client id: its worker's name."""
    has: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    """Member → topic ids and partitions, those that it still has to give up too."""
    newest: str = ""
    """The topic's id as it is now."""
    known: set[str] = field(default_factory=set)
    """All that it had."""

    def owners(self, partition: int, topic_id: str | None = None) -> set[str]:
        """Of the topic with this id; None: with any."""
        return {
            self.clients.get(member, member)
            for member, parts in self.has.items()
            if any(p == partition and topic_id in {None, of} for of, p in parts)
        }

    def feed(self, record: Record) -> None:
        member = str(record.key.get("memberId"))
        known: dict[str, Any] = {MEMBER: self.clients, CURRENT: self.has}.get(record.type, {})
        if record.value is None:
            known.pop(member, None)
        elif record.type == MEMBER:
            self.clients[member] = str(record.value["clientId"])
        elif record.type == CURRENT:
            mine = _partitions(record, "assignedPartitions")
            self.has[member] = mine | _partitions(record, "partitionsPendingRevocation")
            for topic_id in {of for of, _ in mine} - self.known:
                self.known.add(topic_id)
                self.newest = topic_id


def _partitions(record: Record, name: str) -> set[tuple[str, int]]:
    parts = record.value[name] or ()
    return {(str(each["topicId"]), int(p)) for each in parts for p in each["partitions"]}


def replay(records: Sequence[Record]) -> Iterator[tuple[Record, Owners]]:
    """Each record with what holds after it."""
    owners = Owners()
    for record in records:
        owners.feed(record)
        yield record, owners


def assignments(records: Sequence[Record]) -> int:
    """New assignments that were computed."""
    epochs = {r.value["assignmentEpoch"] for r in records if r.type == TARGET and r.value}
    return len(epochs - {0})


def shared_partitions(records: Sequence[Record]) -> list[str]:
    """I1 on the coordinator's clock: nobody gets what another still has."""
    found = []
    for record, owners in replay(records):
        if record.type != CURRENT:
            continue
        count = Counter(p for each in owners.has.values() for p in each)
        found += [
            f"I1: at offset {record.offset} {sorted(owners.owners(p, of))} have partition {p}"
            for (of, p), members in count.items()
            if members > 1
        ]
    return found


def unowned(records: Sequence[Record], partitions: Sequence[int]) -> list[int]:
    """I2: partitions of the topic as it is now that nobody has after the last record."""
    last = Owners()
    for record in records:
        last.feed(record)
    return [p for p in sorted(partitions) if not last.owners(p, last.newest)]


def strange_commits(records: Sequence[Record], events: Sequence[dict[str, Any]]) -> list[str]:
    """I4: a commit that a worker told of stands where the log has it as the owner.

    A worker may die between its commit and telling of it: such a commit is nobody's here. One
    that does not go ahead names the next planned end in its metadata [4], and is told by nobody.
    """
    tellers: dict[tuple[int, int], set[str]] = defaultdict(set)
    for event in events:
        if event["event"] == "committed":
            for name, end in event["offsets"].items():
                tellers[int(name.rpartition("-")[2]), int(end)].add(event["worker"])
    found = []
    latest: dict[int, int] = {}
    for record, owners in replay(records):
        if record.type not in {0, 1} or record.value is None:
            continue
        partition, offset = int(record.key["partition"]), int(record.value["offset"])
        ahead = offset > latest.get(partition, -1)
        latest[partition] = offset
        if not ahead:
            continue
        writers, had = tellers[partition, offset], owners.owners(partition)
        if writers and not writers & had:
            found.append(
                f"I4: {sorted(writers)} committed partition {partition} at {offset}, "
                f"which {sorted(had)} had"
            )
    return found


def shrinking(records: Sequence[Record]) -> list[str]:
    """I9: group epochs and assignment epochs only grow."""
    found = []
    for kind, name in ((GROUP, "epoch"), (TARGET, "assignmentEpoch")):
        numbers = [int(r.value[name]) for r in records if r.type == kind and r.value]
        found += [f"I9: {name} {b} after {a}" for a, b in pairwise(numbers) if b < a]
    return found
