"""Counts rebalances, moves and pauses from the coordinator's records. Pure.

Problem: no metric says how often a group rebalanced or what a change cost; the log does, but
only as states (one record per completed generation, or KIP-848's several per change).
Choice: replay the records in order, as the coordinator does, and compare each completed
generation with the state before it. Members are named by instance id where they have one, so
that a static restart is no change of owner. A partition that a cooperative round withholds
(KIP-429) keeps its last owner until somebody else gets it, so that it moves once.
Cost: the replay needs the state before the stretch (`GroupLog.last_state`), and what caused
a departure (leave, expiry) cannot be told from these records.

Classic: each generation number is a round; a gap is rounds that never completed. The record
of a created, still empty group (generation 0) is none. KIP-848: each new assignment epoch
(type 6) is a rebalance.

A pause [27] runs from the last commit of a partition before its hand-over to the first one
after, by record time, less the median gap between up to 20 commits before; only commits that
advance the offset count. Where fewer than two came before, nothing can be said.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from types import SimpleNamespace as Counted
from types import SimpleNamespace as Generation

from fleet.log.records import (
    AssignmentEpoch,
    ConsumerGroupEpoch,
    ConsumerGroupMember,
    CurrentAssignment,
    GroupMetadata,
    OffsetCommit,
    Record,
    TargetAssignment,
    Tombstone,
    Undecoded,
)
from fleet.model import TopicPartition

_GAPS = 20


def count(
    records: Sequence[Record],
    *,
    before: Record | Sequence[Record] | None = None,
    topics: Mapping[str, str] | None = None,
) -> Counted:
    """What `records` of one group (in order of the log) cost.

    `before` is the state at their start (`GroupLog.last_state`, or a single record); `topics`
    names topic ids that no commit in the records names.
    """
    earlier = (before,) if isinstance(before, Record) else tuple(before or ())
    names = dict(topics or {})
    for record in (*earlier, *records):
        if isinstance(record, OffsetCommit) and record.topic_id is not None:
            names[record.topic_id] = record.tp.topic
    replay = _Replay(names)
    replay.run(earlier)
    replay.start()
    replay.run(records)
    return replay.result()


@dataclass(slots=True)
class _Commits:
    """The advancing commits of one partition."""

    committed: int = -1
    times: deque[float] = field(default_factory=lambda: deque(maxlen=_GAPS + 1))

    def usual_gap(self) -> float | None:
        gaps = [b - a for a, b in pairwise(self.times)]
        return median(gaps) if gaps else None


@dataclass(slots=True)
class _Round:
    """A generation being compared with the one before."""

    number: int
    at: float
    members: frozenset[str]
    joined: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    resubscribed: frozenset[str] = frozenset()
    added: tuple[TopicPartition, ...] = ()
    moved: list[TopicPartition] = field(default_factory=list)
    aborted: int = 0
    protocol: str | None = None

    def frozen(self) -> Generation:
        return Generation(
            number=self.number,
            at=self.at,
            members=self.members,
            joined=self.joined,
            left=self.left,
            replaced=self.replaced,
            resubscribed=self.resubscribed,
            added_partitions=self.added,
            moved=tuple(sorted(self.moved)),
            aborted=self.aborted,
            protocol=self.protocol,
        )


class _Replay:
    """The group's state as the records so far leave it, and what was counted on the way."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._group = ""
        self._number: int | None = None
        self._first: int | None = None
        self._rounds: list[_Round] = []
        self._replacements = 0
        self._undecoded = 0
        # Who is in the group, and what they subscribe to, by identity.
        self._members: dict[str, str] = {}
        self._topics: dict[str, frozenset[str]] = {}
        # Who has each partition now, and who had it last (a withheld one has no owner now).
        self._owners: dict[TopicPartition, str] = {}
        self._last_owner: dict[TopicPartition, str] = {}
        self._width: dict[str, int] = {}
        # Commits, hand-overs that wait for the new owner's first commit, and their pauses.
        self._commits: dict[TopicPartition, _Commits] = {}
        self._waiting: dict[TopicPartition, tuple[float, float] | None] = {}
        self._pauses: dict[TopicPartition, float] = {}
        self._every_pause: list[float] = []
        # KIP-848 only: identity by member id, who was there at the last assignment, and what
        # was seen since.
        self._identity: dict[str, str] = {}
        self._before: dict[str, str] = {}
        self._topics_before: dict[str, frozenset[str]] = {}
        self._gone: dict[str, str] = {}
        self._added: list[TopicPartition] = []

    def start(self) -> None:
        """Counting starts here; what came before only made the state."""
        self._first = self._number
        self._rounds, self._replacements, self._undecoded = [], 0, 0
        self._waiting, self._pauses, self._every_pause = {}, {}, []

    def run(self, records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, OffsetCommit):
                self._commit(record)
            elif isinstance(record, GroupMetadata):
                self._classic(record)
            elif isinstance(record, Undecoded):
                self._undecoded += 1
            else:
                self._consumer(record)

    def result(self) -> Counted:
        return Counted(
            group=self._group,
            generations=tuple(each.frozen() for each in self._rounds),
            replacements=self._replacements,
            pauses=dict(self._pauses),
            every_pause=tuple(self._every_pause),
            from_generation=self._first,
            to_generation=self._number,
            owners=dict(self._owners),
            undecoded=self._undecoded,
        )

    # --- commits and pauses -----------------------------------------------------------------

    def _commit(self, record: OffsetCommit) -> None:
        self._group = record.group
        known = self._commits.setdefault(record.tp, _Commits())
        advances = record.committed > known.committed
        known.committed = record.committed
        if not advances:
            return
        at = record.timestamp_ms / 1000
        if record.tp in self._waiting:
            start = self._waiting.pop(record.tp)
            if start is not None:
                pause = max(0.0, at - start[0] - start[1])
                self._pauses[record.tp] = max(pause, self._pauses.get(record.tp, 0.0))
                self._every_pause.append(pause)
        known.times.append(at)

    def _handed_over(self, tp: TopicPartition) -> None:
        if tp in self._waiting:
            return  # passed on before its owner committed anything: one pause
        known = self._commits.get(tp)
        gap = known.usual_gap() if known else None
        self._waiting[tp] = None if known is None or gap is None else (known.times[-1], gap)

    # --- ownership --------------------------------------------------------------------------

    def _owned(self, owners: Mapping[TopicPartition, str]) -> list[TopicPartition]:
        """Note owners; the partitions that had another one before."""
        moved = []
        for tp, owner in owners.items():
            last = self._last_owner.get(tp)
            if last is not None and last != owner:
                moved.append(tp)
                self._handed_over(tp)
            self._last_owner[tp] = owner
        return moved

    def _grown(self, assigned: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Partitions beyond those ever assigned of a known topic; notes the new widths."""
        width = dict(self._width)
        added = []
        for tp in assigned:
            if tp.partition >= width.get(tp.topic, tp.partition + 1):
                added.append(tp)
            self._width[tp.topic] = max(self._width.get(tp.topic, 0), tp.partition + 1)
        return sorted(added)

    def _replaced(self, instances: Iterable[str]) -> None:
        for instance in instances:
            self._replacements += 1
            for tp, owner in self._last_owner.items():
                if owner == instance:
                    self._handed_over(tp)

    def _forget(self) -> None:
        """A group of the same name begins anew."""
        self._number = None
        self._members, self._topics, self._owners = {}, {}, {}
        self._last_owner, self._width = {}, {}
        self._identity, self._before, self._topics_before = {}, {}, {}
        self._gone, self._added = {}, []

    # --- classic groups ---------------------------------------------------------------------

    def _classic(self, record: GroupMetadata) -> None:
        self._group = record.group
        if self._number is not None and record.generation < self._number:
            self._forget()
        members = {m.instance_id or m.member_id: m.member_id for m in record.members}
        topics = {m.instance_id or m.member_id: frozenset(m.topics) for m in record.members}
        owners = {
            TopicPartition(topic, number): m.instance_id or m.member_id
            for m in record.members
            for topic, numbers in m.assigned.items()
            for number in numbers
        }
        replaced = {i for i in members.keys() & self._members if members[i] != self._members[i]}
        if record.generation != self._number and (record.generation > 0 or members):
            last = self._number
            self._rounds.append(
                _Round(
                    number=record.generation,
                    at=record.timestamp_ms / 1000,
                    members=frozenset(members),
                    joined=frozenset(members.keys() - self._members.keys()),
                    left=frozenset(self._members.keys() - members.keys()),
                    replaced=frozenset(replaced),
                    resubscribed=_changed(self._topics, topics),
                    added=tuple(self._grown(owners)),
                    aborted=0 if last is None else record.generation - last - 1,
                    protocol=record.protocol,
                )
            )
        self._replaced(replaced)
        moved = self._owned(owners)
        if record.generation != self._number and self._rounds:
            self._rounds[-1].moved.extend(moved)
        self._number = record.generation
        self._members, self._topics, self._owners = members, topics, owners

    # --- KIP-848 groups ---------------------------------------------------------------------

    def _consumer(self, record: Record) -> None:
        if isinstance(record, ConsumerGroupMember):
            self._group = record.group
            self._joins(record)
        elif isinstance(record, ConsumerGroupEpoch):
            self._group = record.group
            self._gone = {}  # an epoch was spent: who comes now joins, and does not replace
        elif isinstance(record, TargetAssignment):
            self._added += self._grown(self._named(record.partitions))
        elif isinstance(record, AssignmentEpoch):
            self._group = record.group
            self._assigned(record)
        elif isinstance(record, CurrentAssignment):
            self._owns(record)
        elif isinstance(record, Tombstone):
            self._deleted(record)

    def _named(self, partitions: Mapping[str, tuple[int, ...]]) -> list[TopicPartition]:
        return [
            TopicPartition(self._names.get(topic, topic), number)
            for topic, numbers in partitions.items()
            for number in numbers
        ]

    def _joins(self, record: ConsumerGroupMember) -> None:
        identity = record.instance_id or record.member_id
        self._identity[record.member_id] = identity
        self._members[identity] = record.member_id
        self._topics[identity] = frozenset((*record.topics, *filter(None, (record.regex,))))
        was = self._gone.pop(identity, None)
        if was is not None and was != record.member_id:
            self._replaced([identity])

    def _assigned(self, record: AssignmentEpoch) -> None:
        if record.epoch == self._number:
            return
        if self._number is not None and record.epoch < self._number:
            self._last_owner, self._before = {}, {}
        now, then = self._members, self._before
        self._rounds.append(
            _Round(
                number=record.epoch,
                at=record.timestamp_ms / 1000,
                members=frozenset(now),
                joined=frozenset(now.keys() - then.keys()),
                left=frozenset(then.keys() - now.keys()),
                replaced=frozenset(i for i in now.keys() & then if now[i] != then[i]),
                resubscribed=_changed(self._topics_before, self._topics),
                added=tuple(sorted(set(self._added))),
            )
        )
        self._number, self._added = record.epoch, []
        self._before, self._topics_before = dict(now), dict(self._topics)

    def _owns(self, record: CurrentAssignment) -> None:
        identity = self._identity.get(record.member_id, record.member_id)
        held = self._named(record.assigned)
        self._owners = {tp: owner for tp, owner in self._owners.items() if owner != identity}
        self._owners.update(dict.fromkeys(held, identity))
        moved = self._owned(dict.fromkeys(held, identity))
        if self._rounds:
            self._rounds[-1].moved.extend(moved)

    def _deleted(self, record: Tombstone) -> None:
        if record.type in (2, 3):
            # Type 2 also goes when the group is upgraded in place: numbers start again there.
            self._forget()
        elif record.type == 5:
            identity = self._identity.pop(str(record.key[0]), None)
            if identity is None:
                return
            self._gone[identity] = self._members.pop(identity, "")
            self._topics.pop(identity, None)
            self._owners = {tp: who for tp, who in self._owners.items() if who != identity}
        elif record.type == 1:
            topic, partition = record.key
            self._commits.pop(TopicPartition(str(topic), int(partition)), None)


def _changed(
    then: Mapping[str, frozenset[str]], now: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    return frozenset(member for member in then.keys() & now.keys() if then[member] != now[member])
