"""A KIP-848 group as its coordinator holds it: changed only by records, so that a reload is exact.

Problem: a coordinator that takes over must stand where the last one stood, and knows no more
than the log. Choice: as Kafka's: everything that counts is changed by the group's records and by
nothing else; what is not in the log (when to look at the topics again) starts anew. Cost: an
event makes records first and is visible only when they are applied.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from fleet.errors import FleetError
from fleet.sim.assignors import Target
from fleet.sim.coordinator.requests import ErrorCode, RequestRefused
from fleet.sim.hashing import HashOrder, SlotOrder

# A member of a KIP-848 group: what it told of itself, where it stands, what it owns.
#
# The machine of a member (`ConsumerMemberState`) moves by what the coordinator finds at a
# heartbeat (`MemberAction`); `MOVES` is the one table, `moved` the one way through it.


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
    UNKNOWN: a record of a newer broker said something else; it must come back with nothing.
    """

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2
    UNKNOWN = 127

    @classmethod
    def of(cls, number: int) -> "ConsumerMemberState":
        """The state that a record names; UNKNOWN for a number of a newer broker."""
        return cls(number) if number in _NUMBERS else cls.UNKNOWN


_NUMBERS: Final = {0, 1, 2}


class MemberAction(Enum):
    """What the coordinator finds for a member at a heartbeat.

    REVOKE: the member owns partitions that are not in its target, and has not let them go.
    WAIT: it owns nothing too much, but some of its target is still owned by another.
    SETTLE: it owns all of its target.
    PRUNE: its subscription changed: what it no longer subscribes to goes before a new target.
    """

    REVOKE = "revoke"
    WAIT = "wait"
    SETTLE = "settle"
    PRUNE = "prune"


_RECONCILED: Final = {
    MemberAction.REVOKE: ConsumerMemberState.UNREVOKED,
    MemberAction.WAIT: ConsumerMemberState.UNRELEASED,
    MemberAction.SETTLE: ConsumerMemberState.STABLE,
}
MOVES: Final[Mapping[tuple[ConsumerMemberState, MemberAction], frozenset[ConsumerMemberState]]] = {
    **{
        (old, what): frozenset({new})
        for old in ConsumerMemberState
        for what, new in _RECONCILED.items()
    },
    (ConsumerMemberState.STABLE, MemberAction.PRUNE): frozenset(
        {ConsumerMemberState.STABLE, ConsumerMemberState.UNREVOKED}
    ),
    (ConsumerMemberState.UNREVOKED, MemberAction.PRUNE): frozenset({ConsumerMemberState.UNREVOKED}),
}


def moved(
    old: ConsumerMemberState, what: MemberAction, new: ConsumerMemberState
) -> ConsumerMemberState:
    """The new state. Raises FleetError for a move that the table does not have."""
    legal = MOVES.get((old, what), frozenset())
    if new not in legal:
        allowed = ", ".join(sorted(each.name for each in legal)) or "nothing"
        raise FleetError(
            f"a member in state {old.name} cannot become {new.name} by {what.name}: "
            f"from there it leads to {allowed}; this is a bug of the model"
        )
    return new


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
    regex: str | None = ""
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

    @property
    def subscribed_regex(self) -> str | None:
        """The regular expression, None where it has none."""
        return self.regex or None


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
    DEAD: deleted.
    """

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


_ALIVE: Final = frozenset(
    {ConsumerGroupState.ASSIGNING, ConsumerGroupState.RECONCILING, ConsumerGroupState.STABLE}
)
GROUP_MOVES: Final[Mapping[ConsumerGroupState, frozenset[ConsumerGroupState]]] = {
    ConsumerGroupState.EMPTY: _ALIVE | {ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD},
    ConsumerGroupState.ASSIGNING: _ALIVE | {ConsumerGroupState.EMPTY},
    ConsumerGroupState.RECONCILING: _ALIVE | {ConsumerGroupState.EMPTY},
    ConsumerGroupState.STABLE: _ALIVE | {ConsumerGroupState.EMPTY},
    ConsumerGroupState.DEAD: frozenset(),
}
"""State → where the records of one event may lead: a join, a leave, a target, a deletion."""


class Subscribers(NamedTuple):
    """Of one topic: members that name it, and regular expressions that match it."""

    by_name: int = 0
    by_regex: int = 0


@dataclass(frozen=True, slots=True)
class Resolved:
    """The topics that a regular expression matched; `at_ms` when, at a version of the metadata."""

    topics: HashOrder[str, None]
    version: int
    at_ms: int


class BrokenLog(FleetError):
    """Records that no coordinator can take up: they contradict each other."""


_NOBODY: Final = Subscribers()


def counted(
    topics: dict[str, Subscribers], names: Iterable[str], by_name: int = 0, by_regex: int = 0
) -> None:
    """Adds or takes away subscribers of topics; a topic without any is dropped."""
    for name in names:
        old = topics.get(name)
        if by_name + by_regex < 0 and old is None:
            continue
        now = old or _NOBODY
        new = Subscribers(now.by_name + by_name, now.by_regex + by_regex)
        if new == _NOBODY:
            topics.pop(name, None)
        else:
            topics[name] = new


def tallied(counts: dict[str, int], name: str | None, by: int) -> None:
    """Adds one to a count or takes one away; a count of none is dropped."""
    if name is None:
        return
    value = counts.get(name, 0) + by
    if value > 0:
        counts[name] = value
    else:
        counts.pop(name, None)


def is_homogeneous(
    regexes: Mapping[str, int], topics: Mapping[str, Subscribers], members: int
) -> bool:
    """Whether all members subscribe to the same topics, by which an assignor picks its way."""
    if not regexes:
        return all(each.by_name == members for each in topics.values())
    if next(iter(regexes.values())) != members:
        return False
    return all(each.by_regex == 1 and each.by_name <= 0 for each in topics.values())


class EpochGroup:
    """One group. Times in ms; the target of epoch 1 is that of a group nobody joined yet."""

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.epoch = 1
        self.metadata_hash = 0
        self.target_epoch = 1
        self.computed_ms = 0
        self.state = ConsumerGroupState.EMPTY
        self.homogeneous = True
        self.members: SlotOrder[str, ConsumerMember] = SlotOrder()
        self.targets: dict[str, Target] = {}
        self.target_owners: dict[bytes, dict[int, str]] = {}
        self.statics: dict[str, str] = {}
        self.assignors: SlotOrder[str, int] = SlotOrder()
        self.topics: dict[str, Subscribers] = {}
        self.regexes: SlotOrder[str, int] = SlotOrder()
        self.resolved: SlotOrder[str, Resolved] = SlotOrder()
        self.owner_epochs: dict[bytes, dict[int, int]] = {}
        self.has_old_metadata = False
        # Not in the log: until when, and for which epoch, the topics were looked at.
        self.looked_until_ms = 0
        self.looked_at_epoch = 0
        self._behind = ""
        """Who had not reached the target when somebody looked last."""

    # Reading.

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

    def topics_with(
        self, old: ConsumerMember | None, new: ConsumerMember | None
    ) -> dict[str, Subscribers]:
        """Subscribers by topic as they will be when a member is another; None: no such member."""
        topics = dict(self.topics)
        if old is not None:
            counted(topics, old.topics, by_name=-1)
        if new is not None:
            counted(topics, new.topics, by_name=1)
        before = old.subscribed_regex if old is not None else None
        after = new.subscribed_regex if new is not None else None
        if before is not None and before != after and self.regexes.get(before) == 1:
            known = self.resolved.get(before)
            counted(topics, known.topics if known else (), by_regex=-1)
        return topics

    def regexes_with(self, old: ConsumerMember, new: ConsumerMember) -> Mapping[str, int]:
        """Members by regular expression as they will be when one is another."""
        if old.subscribed_regex == new.subscribed_regex:
            return self.regexes
        counts = HashOrder.copied(self.regexes)
        recount(counts, old.subscribed_regex, new.subscribed_regex)
        return counts

    def names_of(self, member: ConsumerMember) -> Mapping[str, None]:
        """The topics that a member subscribes to, by name or by its resolved expression."""
        known = self.resolved.get(member.regex) if member.regex else None
        if known is None or not known.topics:
            return member.topics
        if not member.topics:
            return known.topics
        large, small = known.topics, member.topics
        if len(small) > len(large):
            large, small = small, large
        return dict.fromkeys((*large, *small))

    # Changing: only records come here.

    def set_epoch(self, epoch: int, metadata_hash: int) -> None:
        """A new group epoch."""
        self.epoch, self.metadata_hash = epoch, metadata_hash

    def set_target_epoch(self, epoch: int, computed_ms: int) -> None:
        """The target is that of an epoch; -1 when there is none any more."""
        self.target_epoch, self.computed_ms = epoch, computed_ms

    def set_member(self, new: ConsumerMember) -> None:
        """Adds a member or puts it in the place of the one with its id.

        Raises BrokenLog where another member owns one of its partitions at that epoch or later.
        """
        old = self.members.get(new.id)
        self.members[new.id] = new
        self._recount(old, new)
        if old is not None:
            self._release(old)
        for owned in (new.assigned, new.revoking):
            self._own(owned, new.epoch)
        if new.instance is not None:
            self.statics[new.instance] = new.id

    def remove_member(self, member_id: str) -> None:
        """Takes a member out."""
        old = self.members.pop(member_id)
        self._recount(old, None)
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

    def set_resolved(self, regex: str, new: Resolved | None) -> None:
        """What a regular expression matched; None where nobody uses it any more."""
        old = self.resolved.pop(regex, None)
        if old is not None:
            counted(self.topics, old.topics, by_regex=-1)
        if new is not None:
            self.resolved[regex] = new
            counted(self.topics, new.topics, by_regex=1)

    def settle(self, *, deleted: bool = False) -> None:
        """Says where the group stands, after all records of one event.

        Raises FleetError for a move that the table does not have.
        """
        if deleted:
            new = ConsumerGroupState.DEAD
        elif not self.members:
            new = ConsumerGroupState.EMPTY
        elif self.epoch > self.target_epoch:
            new = ConsumerGroupState.ASSIGNING
        else:
            reached = self._all_have_reached_the_target()
            new = ConsumerGroupState.STABLE if reached else ConsumerGroupState.RECONCILING
        if new not in GROUP_MOVES[self.state]:
            raise FleetError(
                f"group {self.id} with {len(self.members)} members at epoch {self.epoch} cannot go "
                f"from {self.state.value} to {new.value}: only an empty group can be deleted, and "
                "nothing comes after that"
            )
        self.state = new

    def _all_have_reached_the_target(self) -> bool:
        last = self.members.get(self._behind)
        if last is not None and not last.is_reconciled_to(self.target_epoch):
            return False
        for each in dict.values(self.members):
            if not each.is_reconciled_to(self.target_epoch):
                self._behind = each.id
                return False
        return True

    def _recount(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        if old is not None:
            counted(self.topics, old.topics, by_name=-1)
            tallied(self.assignors, old.assignor, -1)
            tallied(self.regexes, old.subscribed_regex, -1)
        if new is not None:
            counted(self.topics, new.topics, by_name=1)
            tallied(self.assignors, new.assignor, 1)
            tallied(self.regexes, new.subscribed_regex, 1)
        self.homogeneous = is_homogeneous(self.regexes, self.topics, len(self.members))

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


def recount(counts: HashOrder[str, int], old: str | None, new: str | None) -> None:
    """Takes one from the old and adds one to the new, as Java's `compute` does."""
    if old is not None and old in counts:
        if counts[old] == 1:
            del counts[old]
        else:
            counts[old] -= 1
    if new is not None:
        counts.put_first(new, counts.get(new, 0) + 1)
