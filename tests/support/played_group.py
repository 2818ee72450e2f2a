"""A coordinator that is played: it writes what Kafka writes for a group, and knows what it did.

Classic groups (eager and cooperative), KIP-848 groups, static and dynamic members, replacements,
leaves, growth, deletion, conversion both ways; partitions of one topic. The order of the records is
docs/contributing/protocol.md's 3.4 and 3.5. What happened is kept beside the records, so that
a counter can be compared with it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from fleet.log.records import (
    AssignmentEpoch,
    ClassicMember,
    ConsumerGroupEpoch,
    ConsumerGroupMember,
    CurrentAssignment,
    GroupMetadata,
    OffsetCommit,
    Record,
    TargetAssignment,
    Tombstone,
)
from fleet.model import TopicPartition

GROUP, TOPIC, TOPIC_ID = "g", "t", "ab" * 16


@dataclass(slots=True)
class Member:
    """One member; of a static one the name stays and the id changes."""

    name: str
    id: str
    static: bool
    topics: tuple[str, ...] = (TOPIC,)
    owns: set[int] = field(default_factory=set)
    epoch: int = 0


@dataclass(slots=True)
class Happened:
    """One rebalance, as the coordinator knows it; `place` is its record's offset."""

    place: int
    number: int
    joined: tuple[str, ...]
    left: tuple[str, ...]
    replaced: tuple[str, ...]
    resubscribed: tuple[str, ...]
    added: tuple[int, ...]
    aborted: int = 0
    moved: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Then:
    """What a rebalance is compared with."""

    ids: dict[str, str] = field(default_factory=dict)
    topics: dict[str, tuple[str, ...]] = field(default_factory=dict)


class PlayedGroup:
    """Every method is one thing that happens; `records` is the log."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.records: list[Record] = []
        self.rebalances: list[Happened] = []
        self.replacements: list[int] = []
        self.whole: list[int] = []
        """Places at which all is owned, by those who were there at the last rebalance.

        Of others compaction leaves too little: that a static member came back, or whose a
        partition was that nobody has.
        """
        self.members: dict[str, Member] = {}
        self.partitions = 4
        self.number: int | None = None
        self.at = 1_000_000
        self._made = 0
        self._then = Then()
        self._last: dict[int, str] = {}
        self._width = 0
        self._same_time = False

    # --- what happens -------------------------------------------------------------------------

    def change(
        self,
        *,
        joins: Sequence[bool] = (),
        leaves: Sequence[str] = (),
        resubscribes: str | None = None,
        grows: int = 0,
        aborted: int = 0,
    ) -> None:
        """Members come (static or not) and go, one has other topics, the topic grows: at once."""
        gone = [self.members.pop(name) for name in leaves]
        come = [self._member(static) for static in joins]
        self.members |= {each.name: each for each in come}
        self.partitions += grows
        again = self.members.get(resubscribes or "")
        if again is not None:
            again.topics = (TOPIC,) if len(again.topics) > 1 else (TOPIC, "u")
        if self.protocol == "consumer":
            self._change_epoch(come, gone, again)
        else:
            self._generation(1 + aborted)
        self._settled()

    def replace(self, name: str) -> None:
        """A static member comes back under a new id, at no rebalance."""
        member = self.members[name]
        old, member.id = member.id, self._id()
        self.replacements.append(len(self.records))
        if self.protocol != "consumer":
            self._then.ids[name] = member.id  # seen in this very record
            self._metadata()
            return
        for kind in (8, 7, 5):
            self._write(Tombstone, kind, key=(old,))
        self._own_record(member)
        self._target(member)
        self._current(member)

    def moves_host(self, name: str) -> None:
        """A KIP-848 member has another address: its own record again, and nothing else."""
        if self.protocol == "consumer":
            self._own_record(self.members[name])
        self._settled()

    def commits(self) -> None:
        """Everybody commits what it owns."""
        for member in self.members.values():
            for number in sorted(member.owns):
                self._write(
                    OffsetCommit,
                    1,
                    tp=TopicPartition(TOPIC, number),
                    committed=len(self.records),
                    leader_epoch=-1,
                    metadata="",
                    commit_timestamp_ms=0,
                    topic_id=TOPIC_ID,
                )

    def deleted(self) -> None:
        """Somebody deletes the group, which is empty; it may be recreated."""
        if self.members or self.number is None:
            return
        for kind in (6, 3) if self.protocol == "consumer" else (2,):
            self._write(Tombstone, kind, key=())
        self.number, self._then, self._last, self._width = None, Then(), {}, 0

    def converted(self) -> None:
        """In place, in one write, with the same members and numbers: no rebalance."""
        if not self.members or self.number is None:
            return
        self._same_time = True
        self._then.ids = {each.name: each.id for each in self.members.values()}
        if self.protocol == "consumer":
            self.protocol = "range"
            for each in self.members.values():
                for kind in (8, 7, 5):
                    self._write(Tombstone, kind, key=(each.id,))
            for kind in (6, 3):
                self._write(Tombstone, kind, key=())
            self._metadata()
        else:
            self.protocol = "consumer"
            self._write(Tombstone, 2, key=())
            for each in self.members.values():
                self._own_record(each)
            self._write(ConsumerGroupEpoch, 3, epoch=self.number, metadata_hash=1)
            for each in self.members.values():
                self._target(each)
            self._write(AssignmentEpoch, 6, epoch=self.number)
            for each in self.members.values():
                each.epoch = self.number
                self._current(each)
        self._same_time = False

    # --- classic ------------------------------------------------------------------------------

    def _generation(self, steps: int) -> None:
        if self.number is None and self.members:
            self.number = 0
            everybody, self.members = self.members, {}
            self._metadata()
            self.members = everybody
        self.number = (self.number or 0) + steps
        wanted = self._shares()
        late = False
        for each in self.members.values():
            share = wanted[each.name]
            if self.protocol == "cooperative-sticky":
                others = {n for m in self.members.values() if m is not each for n in m.owns}
                late |= bool(share & others)
                share = share - others
            wanted[each.name] = share
        for each in self.members.values():
            each.owns = wanted[each.name]
        self._happened(steps - 1)
        self._metadata()
        self._moved()
        if late:
            self._generation(1)

    def _metadata(self) -> None:
        self._write(
            GroupMetadata,
            2,
            protocol_type="consumer",
            generation=self.number,
            protocol=self.protocol if self.members else None,
            leader=None,
            state_timestamp_ms=None,
            members=tuple(
                ClassicMember(
                    member_id=each.id,
                    instance_id=each.name if each.static else None,
                    client_id="c",
                    client_host="h",
                    rebalance_timeout_ms=1,
                    session_timeout_ms=1,
                    subscription=b"",
                    assignment=b"",
                    topics=each.topics,
                    assigned={TOPIC: tuple(sorted(each.owns))},
                )
                for each in self.members.values()
            ),
        )

    # --- KIP-848 ------------------------------------------------------------------------------

    def _change_epoch(
        self, come: Sequence[Member], gone: Sequence[Member], again: Member | None
    ) -> None:
        for each in gone:
            for kind in (8, 7, 5):
                self._write(Tombstone, kind, key=(each.id,))
        for each in come:
            self._own_record(each)
        if again is not None and again not in come:
            self._own_record(again)
        self.number = (self.number or 0) + 1
        self._write(ConsumerGroupEpoch, 3, epoch=self.number, metadata_hash=self.partitions)
        wanted = self._shares()
        for each in self.members.values():
            kept, each.owns = each.owns, wanted[each.name]
            self._target(each)
            each.owns = kept
        self._happened(0)
        self._write(AssignmentEpoch, 6, epoch=self.number)
        for each in self.members.values():  # who has to give up says so first
            rest = each.owns - wanted[each.name]
            each.owns &= wanted[each.name]
            if rest:
                self._current(each, revoking=rest)
        for each in reversed(self.members.values()):
            each.owns, each.epoch = wanted[each.name], self.number
            self._current(each)
            self._moved()

    def _own_record(self, member: Member) -> None:
        self._write(
            ConsumerGroupMember,
            5,
            member_id=member.id,
            instance_id=member.name if member.static else None,
            rack_id=None,
            client_id="c",
            client_host=f"h{len(self.records)}",
            topics=member.topics,
            regex="",
            rebalance_timeout_ms=1,
            server_assignor=None,
        )

    def _target(self, member: Member) -> None:
        self._write(TargetAssignment, 7, member_id=member.id, partitions=_by_id(member.owns))

    def _current(self, member: Member, revoking: Iterable[int] = ()) -> None:
        self._write(
            CurrentAssignment,
            8,
            member_id=member.id,
            epoch=member.epoch,
            previous_epoch=0,
            state=1 if revoking else 0,
            assigned=_by_id(member.owns),
            revoking=_by_id(revoking),
        )

    # --- both ---------------------------------------------------------------------------------

    def _shares(self) -> dict[str, set[int]]:
        """Even shares; who has something keeps as much of it as it may."""
        if not self.members:
            return {}
        names = list(self.members)
        most = -(-self.partitions // len(names))
        shares = {n: set(sorted(self.members[n].owns)[:most]) for n in names}
        free = [p for p in range(self.partitions) if not any(p in s for s in shares.values())]
        for number in free:
            min(shares.values(), key=len).add(number)
        return shares

    def _settled(self) -> None:
        owned = {number for each in self.members.values() for number in each.owns}
        ids = {each.name: each.id for each in self.members.values()}
        if owned == set(range(self.partitions)) and ids == self._then.ids:
            self.whole.append(len(self.records))

    def _happened(self, aborted: int) -> None:
        """A rebalance, whose record is the next one."""
        ids = {each.name: each.id for each in self.members.values()}
        topics = {each.name: each.topics for each in self.members.values()}
        both = sorted(ids.keys() & self._then.ids.keys())
        width = self.partitions if self.members else 0
        assert self.number is not None
        self.rebalances.append(
            Happened(
                place=len(self.records),
                number=self.number,
                joined=tuple(sorted(ids.keys() - self._then.ids.keys())),
                left=tuple(sorted(self._then.ids.keys() - ids.keys())),
                replaced=tuple(n for n in both if ids[n] != self._then.ids[n]),
                resubscribed=tuple(n for n in both if topics[n] != self._then.topics[n]),
                added=tuple(range(self._width, width)) if self._width else (),
                aborted=aborted,
            )
        )
        self._width = max(self._width, width)
        self._then = Then(ids, topics)

    def _moved(self) -> None:
        for each in self.members.values():
            for number in each.owns:
                if self._last.get(number, each.name) != each.name:
                    self.rebalances[-1].moved.add(number)
                self._last[number] = each.name

    def _member(self, static: bool) -> Member:
        made = self._id()
        return Member(f"i{made}" if static else made, made, static)

    def _id(self) -> str:
        self._made += 1
        return f"m{self._made}"

    def _write(self, kind: type[Record], number: int, **values: Any) -> None:
        if not self._same_time:
            self.at += 1000
        place = {"offset": len(self.records), "timestamp_ms": self.at, "type": number}
        self.records.append(kind(**place, group=GROUP, **values))


def _by_id(numbers: Iterable[int]) -> dict[str, tuple[int, ...]]:
    found = tuple(sorted(numbers))
    return {TOPIC_ID: found} if found else {}


@st.composite
def played_groups(draw: st.DrawFn, *, converts: bool = False) -> PlayedGroup:
    """A group's life of some twenty events."""
    group = PlayedGroup(draw(st.sampled_from(["range", "cooperative-sticky", "consumer"])))
    for _ in range(draw(st.integers(1, 20))):
        names = sorted(group.members)
        static = [name for name in names if group.members[name].static]
        what = draw(st.integers(0, 9))
        if what <= 4 or not names:
            leaves = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
            stay = sorted(set(names) - set(leaves))
            joins = draw(st.lists(st.booleans(), max_size=3))
            again = draw(st.none() | st.sampled_from(stay)) if stay else None
            grows, aborted = draw(st.sampled_from([0, 0, 0, 2])), draw(st.sampled_from([0, 0, 2]))
            if joins or leaves or again or group.members:
                group.change(
                    joins=joins, leaves=leaves, resubscribes=again, grows=grows, aborted=aborted
                )
            else:
                group.deleted()
        elif what == 5 and static:
            group.replace(draw(st.sampled_from(static)))
        elif what == 6:
            group.moves_host(draw(st.sampled_from(names)))
        elif what == 7 and converts:
            group.converted()
        else:
            group.commits()
    return group


def compacted(records: Sequence[Record]) -> list[Record]:
    """The last record of each key, where it was; tombstones have done their work."""
    last = {_key(record): record for record in records}
    return [r for r in records if last[_key(r)] is r and not isinstance(r, Tombstone)]


def _key(record: Record) -> tuple[Any, ...]:
    if isinstance(record, Tombstone):
        return record.type, *record.key
    if isinstance(record, OffsetCommit):
        return record.type, record.tp.topic, record.tp.partition
    return record.type, *filter(None, (getattr(record, "member_id", None),))
