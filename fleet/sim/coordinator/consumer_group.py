"""A KIP-848 group as its coordinator holds it: changed only by records, so that a reload is exact.

Problem: a coordinator that takes over must stand where the last one stood, and knows no more
than the log. Choice: as Kafka's: everything that counts is changed by the group's records and by
nothing else; what is not in the log (when to look at the topics again) starts anew. Cost: an
event makes records first and is visible only when they are applied.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final, TypeAlias

from fleet.errors import FleetError
from fleet.sim.assignors import Target
from fleet.sim.coordinator.requests import ErrorCode, RequestRefused
from fleet.sim.hashing import HashOrder, SlotOrder

# A member of a KIP-848 group: what it told of itself, where it stands, what it owns.


Owned: TypeAlias = HashOrder[bytes, HashOrder[int, int]]
"""Partitions by topic id, each with the epoch in which it was given (KIP-1251)."""

LEFT: Final = -1
AWAY: Final = -2


class ConsumerMemberState(Enum):
    """Where a member stands on its way to its target.

    STABLE: it has all of its target, at its own epoch.
    UNREVOKED: it was told to give up partitions and has not yet said that it did; its epoch
      stays, and its rebalance timer runs.
    UNRELEASED: it has reached the target's epoch, but partitions of it are still another's.
    """

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


def _no_owned() -> Owned:
    return HashOrder()


def _no_names() -> HashOrder[str, None]:
    return HashOrder()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """One member; never changed in place. Times in ms, -1 where the member told none."""

    id: str
    epoch: int = 0
    previous_epoch: int = -1
    state: ConsumerMemberState = ConsumerMemberState.STABLE
    instance: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: int = -1
    client: str = ""
    host: str = ""
    topics: HashOrder[str, None] = field(default_factory=_no_names)
    assignor: str | None = None
    assigned: Owned = field(default_factory=_no_owned)
    revoking: Owned = field(default_factory=_no_owned)

    def having(self, **changed: Any) -> "ConsumerMember":
        """This member with fields changed. Raises TypeError for one that there is not.

        What `dataclasses.replace` does in a quarter of its time.
        """
        if not changed.keys() <= _FIELDS.keys():
            raise TypeError(f"a member has no {', '.join(changed.keys() - _FIELDS.keys())}")
        made = object.__new__(ConsumerMember)
        for name, (known, put) in _FIELDS.items():
            put(made, changed[name] if name in changed else known(self))
        return made

    def reached(self, epoch: int, **changed: Any) -> "ConsumerMember":
        """This member at an epoch, the one it had as its previous one."""
        return self.having(epoch=epoch, previous_epoch=self.epoch, **changed)

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether it has all of the target of that epoch."""
        return self.state is ConsumerMemberState.STABLE and self.epoch == epoch


_FIELDS: Final = {
    each.name: (slot.__get__, slot.__set__)
    for each in fields(ConsumerMember)
    for slot in (vars(ConsumerMember)[each.name],)
}
"""Field → how it is read and, once, written."""


class ConsumerGroupState(Enum):
    """Where a group stands; Kafka names them so in its answers.

    EMPTY: no members.
    ASSIGNING: the group epoch is newer than the target: nobody has computed it yet.
    RECONCILING: the target is there, and some member has not reached it.
    STABLE: every member has all of its target.
    """

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class BrokenLog(FleetError):
    """Records that no coordinator can take up: they contradict each other."""


class EpochGroup:
    """One group. Times in ms; the target of epoch 1 is that of a group nobody joined yet."""

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.epoch = 1
        self.metadata_hash = 0
        self.target_epoch = 1
        self.computed_ms = 0
        self.state = ConsumerGroupState.EMPTY
        self.members: SlotOrder[str, ConsumerMember] = SlotOrder()
        self.targets: dict[str, Target] = {}
        self.target_owners: dict[bytes, dict[int, str]] = {}
        self.statics: dict[str, str] = {}
        self.owner_epochs: dict[bytes, dict[int, int]] = {}
        # Not in the log: until when, and for which epoch, the topics were looked at.
        self.looked_until_ms = 0
        self.looked_at_epoch = 0
        self._behind = ""
        """Who had not reached the target when somebody looked last."""

    # Reading.

    @property
    def topics(self) -> HashOrder[str, None]:
        """The names to which every member subscribes."""
        first = next(iter(dict.values(self.members)), None)
        return _no_names() if first is None else first.topics

    def epoch_of(self, topic: bytes, partition: int) -> int:
        """The epoch of the member that owns a partition now, -1 where it is free."""
        owners = self.owner_epochs.get(topic)
        return -1 if owners is None else owners.get(partition, -1)

    def static_member(self, instance: str | None) -> ConsumerMember | None:
        """The member of an instance id.

        Raises RequestRefused (UNKNOWN_MEMBER_ID) where a member has taken another instance id
        and gone since: Kafka keeps the first one, of nobody.
        """
        known = None if instance is None else self.statics.get(instance)
        if known is not None and known not in self.members:
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        return None if known is None else self.members[known]

    def target_of(self, member: ConsumerMember) -> Target:
        """What a member shall own; a static one inherits its instance id's."""
        known: str | None = member.id
        if member.instance is not None:
            known = self.statics.get(member.instance)
        found = None if known is None else self.targets.get(known)
        return HashOrder() if found is None else found

    def must_check_topics(self, now: int) -> bool:
        """Whether the topics are to be looked at again."""
        return now >= self.looked_until_ms or self.epoch < self.looked_at_epoch

    def note_topic_check(self, until_ms: int, epoch: int) -> None:
        """The topics were looked at; `epoch` is what the group will have."""
        self.looked_until_ms, self.looked_at_epoch = until_ms, epoch

    # Changing: only records come here.

    def set_epoch(self, epoch: int, metadata_hash: int) -> None:
        """A new group epoch."""
        self.epoch, self.metadata_hash = epoch, metadata_hash

    def set_target_epoch(self, epoch: int, computed_ms: int) -> None:
        """The target is that of an epoch."""
        self.target_epoch, self.computed_ms = epoch, computed_ms

    def set_member(self, new: ConsumerMember) -> None:
        """Adds a member or puts it in the place of the one with its id.

        Raises BrokenLog where another member owns one of its partitions at that epoch or later.
        """
        old = self.members.get(new.id)
        self.members[new.id] = new
        if old is not None:
            self._release(old)
        for owned in (new.assigned, new.revoking):
            self._own(owned, new.epoch)
        if new.instance is not None:
            self.statics[new.instance] = new.id

    def remove_member(self, member_id: str) -> None:
        """Takes a member out."""
        old = self.members.pop(member_id)
        self._release(old)
        if old.instance is not None:
            self.statics.pop(old.instance, None)

    def set_target(self, member_id: str, new: Target) -> None:
        """What a member shall own; an empty target is one too."""
        self._retarget(member_id, new)
        self.targets[member_id] = new

    def remove_target(self, member_id: str) -> None:
        """A member has no target any more."""
        self._retarget(member_id, HashOrder())
        self.targets.pop(member_id, None)

    def settle(self) -> None:
        """Says where the group stands, after all records of one event."""
        if not self.members:
            self.state = ConsumerGroupState.EMPTY
        elif self.epoch > self.target_epoch:
            self.state = ConsumerGroupState.ASSIGNING
        else:
            reached = self._all_have_reached_the_target()
            stable, reconciling = ConsumerGroupState.STABLE, ConsumerGroupState.RECONCILING
            self.state = stable if reached else reconciling

    def _all_have_reached_the_target(self) -> bool:
        last = self.members.get(self._behind)
        if last is not None and not last.is_reconciled_to(self.target_epoch):
            return False
        for each in dict.values(self.members):
            if not each.is_reconciled_to(self.target_epoch):
                self._behind = each.id
                return False
        return True

    def _release(self, old: ConsumerMember) -> None:
        """Its partitions are free, but for those that another owns by now."""
        for owned in (old.assigned, old.revoking):
            for topic, partitions in owned.items():
                owners = self.owner_epochs.get(topic, {})
                for partition in partitions:
                    if owners.get(partition) == old.epoch:
                        del owners[partition]

    def _own(self, owned: Owned, epoch: int) -> None:
        for topic, partitions in owned.items():
            owners = self.owner_epochs.setdefault(topic, {})
            for partition in partitions:
                if partition in owners and owners[partition] >= epoch:
                    raise BrokenLog(
                        f"group {self.id}: partition {partition} of topic {topic.hex()} is owned "
                        f"at epoch {owners[partition]} and cannot be given at epoch {epoch}: the "
                        "log has lost a record in between"
                    )
                owners[partition] = epoch

    def _retarget(self, member_id: str, new: Target) -> None:
        old = self.targets.get(member_id) or HashOrder()
        for topic in {**dict.fromkeys(old), **dict.fromkeys(new)}:
            owners = self.target_owners.setdefault(topic, {})
            before: Mapping[int, None] = old.get(topic) or {}
            after: Mapping[int, None] = new.get(topic) or {}
            for partition in before:
                if partition not in after and owners.get(partition) == member_id:
                    del owners[partition]
            for partition in after:
                if partition not in before:
                    owners[partition] = member_id
