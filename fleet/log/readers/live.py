"""Who is in each group now, as the coordinator's records leave it.

Problem: describing all members of 1,000 groups through the AdminClient takes 0.9 s, and says
nothing of generations. Choice: the records that membership is stored in (docs/design/protocol.md
3.2) are read anyway, so the last ones are kept per group: classic groups tell everything in one
record, KIP-848 groups in one per member. Share and streams groups are counted, not taken apart.
Cost: states between records (a join phase) are not there: ListGroups tells them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fleet.log.records import (
    AssignmentEpoch,
    ConsumerGroupEpoch,
    ConsumerGroupMember,
    CurrentAssignment,
    GroupMetadata,
    Partitions,
    Raw,
    Record,
    Tombstone,
)
from fleet.model import Member, TopicPartition

_KINDS: Final = {
    **dict.fromkeys((2,), "classic"),
    **dict.fromkeys((3, 4, 5, 6, 7, 8, 16), "consumer"),
    **dict.fromkeys((10, 11, 12, 13, 14, 15), "share"),
    **dict.fromkeys((17, 19, 20, 21, 22, 23), "streams"),
}
_MEMBER_TYPES: Final = frozenset({5, 10, 19})
_EPOCH_TYPES: Final = frozenset({12, 20})
"""Target assignments of share and streams groups: version, then the epoch."""
_GROUP_TYPES: Final = frozenset({2, 3, 11, 17})


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGroup:
    """One group as its records leave it; commits are told apart (`Tail.commits`)."""

    group: str
    type: str
    """classic | consumer | share | streams | unknown (only commits were seen)."""
    assignor: str | None
    generation: int | None
    """Generation, or assignment epoch; None where no record tells."""
    members: tuple[Member, ...]
    """Share and streams members carry no partitions here."""
    changed_at: float | None
    """Wall time of the last membership record."""


class Summary(NamedTuple):
    """A group without its members' names."""

    type: str
    generation: int | None
    members: int


@dataclass(slots=True)
class _Who:
    instance_id: str | None
    client_id: str
    host: str
    assignor: str | None = None
    owned: Partitions = field(default_factory=dict)


class Membership:
    """One group's membership, fed with its records in order of the log (commits left out)."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._type = "unknown"
        self._assignor: str | None = None
        self._generation: int | None = None
        self._who: dict[str, _Who] = {}
        self._early: dict[str, Partitions] = {}
        """Owned by members whose own record compaction moved behind."""
        self.changed_ms: int | None = None

    @property
    def empty(self) -> bool:
        """Nothing is left of it."""
        return self._type == "unknown" and not self._who

    def feed(self, record: Record) -> None:
        """Take one record."""
        if record.timestamp_ms > 0:
            self.changed_ms = record.timestamp_ms
        if isinstance(record, Tombstone):
            self._deleted(record)
            return
        kind = _KINDS.get(record.type)
        if kind is None or record.type == 16:
            return
        if kind != self._type:
            self._begin(kind)
        if isinstance(record, GroupMetadata):
            self._classic(record)
        elif isinstance(record, ConsumerGroupMember):
            self._who[record.member_id] = _Who(
                record.instance_id,
                record.client_id,
                record.client_host,
                record.server_assignor,
                self._early.pop(record.member_id, {}) or self._owned(record.member_id),
            )
        elif isinstance(record, AssignmentEpoch):
            self._generation = record.epoch
        elif isinstance(record, ConsumerGroupEpoch):
            pass  # what counts is the assignment made for it
        elif isinstance(record, CurrentAssignment):
            who = self._who.get(record.member_id)
            if who is None:
                self._early[record.member_id] = record.assigned
            else:
                who.owned = record.assigned
        elif isinstance(record, Raw):
            self._counted(record)

    def now(self, names: Mapping[str, str]) -> LiveGroup:
        """The group as it is; `names` names topic ids (one that is not known stands as it is)."""
        members = tuple(
            Member(
                member_id=member,
                instance_id=who.instance_id,
                client_id=who.client_id,
                host=who.host,
                partitions=frozenset(
                    TopicPartition(names.get(topic, topic), number)
                    for topic, numbers in who.owned.items()
                    for number in numbers
                ),
            )
            for member, who in self._who.items()
        )
        return LiveGroup(
            group=self._group,
            type=self._type,
            assignor=self._assignor
            or next((who.assignor for who in self._who.values() if who.assignor), None),
            generation=self._generation,
            members=members,
            changed_at=None if self.changed_ms is None else self.changed_ms / 1000,
        )

    def topic_ids(self) -> set[str]:
        """Topic ids in what members own (KIP-848)."""
        if self._type != "consumer":
            return set()
        return {topic for who in self._who.values() for topic in who.owned}

    def summary(self) -> "Summary":
        """All that a metric needs, for nothing."""
        return Summary(self._type, self._generation, len(self._who))

    def _begin(self, kind: str) -> None:
        """Another protocol, or a first record: an upgrade in place (KIP-848) begins anew."""
        self._type, self._generation, self._assignor = kind, None, None
        self._who, self._early = {}, {}

    def _owned(self, member: str) -> Partitions:
        return self._who[member].owned if member in self._who else {}

    def _classic(self, record: GroupMetadata) -> None:
        self._generation, self._assignor = record.generation, record.protocol
        self._who = {
            m.member_id: _Who(m.instance_id, m.client_id, m.client_host, None, m.assigned)
            for m in record.members
        }

    def _counted(self, record: Raw) -> None:
        if record.type in _EPOCH_TYPES and len(record.value) >= 6:
            self._generation = int.from_bytes(record.value[2:6], "big", signed=True)
        elif record.type in _MEMBER_TYPES:
            member = _second_text(record.key, len(record.group.encode()))
            self._who.setdefault(member, _Who(None, "", ""))

    def _deleted(self, record: Tombstone) -> None:
        if _KINDS.get(record.type) != self._type:
            return  # of the protocol before an upgrade
        if record.type in _GROUP_TYPES:
            self._begin("unknown")
        elif record.type in _MEMBER_TYPES:
            member = str(record.key[0])
            self._who.pop(member, None)
            self._early.pop(member, None)


def _second_text(key: bytes, group: int) -> str:
    """The member id in a key of type, group and member."""
    return key[2 + 2 + group + 2 :].decode("utf-8", "replace")
