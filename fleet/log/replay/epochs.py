"""Replays a KIP-848, share or streams group, epoch by epoch.

Problem: one change is several records, in several writes: an event raises the group epoch (type 3),
a target assignment may answer several epochs at once (type 6, KIP-1263), and each member follows at
its own heartbeat (type 8). Choice: every group epoch is one event with one cause; an assignment
epoch is a rebalance, caused by the first event since the assignment before; it began at its group
epoch's record and ends when the last member is stable at it, or is gone
(docs/contributing/protocol.md 3.5). Cost: it is told only then, and meanwhile is `pending`; a group
that never settles keeps the newest `_OPEN` of them and gives up on the end of the others.

Share and streams groups have the same shape with other types (10-15, 17-23). Their members share
partitions or own tasks, so the replay reports no moves.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final, get_args, get_origin, get_type_hints

from fleet.log.records import (
    AssignmentEpoch,
    ConsumerGroupEpoch,
    ConsumerGroupMember,
    CurrentAssignment,
    Record,
    TargetAssignment,
    Tombstone,
    Unused,
)
from fleet.log.replay.group_state import (
    AWAY,
    STABLE,
    UNREVOKED,
    ReplayedGroup,
    ReplayedMember,
    kept_under,
)
from fleet.log.replay.reasons import EpochChange, Reason, Silence, of_assignment, of_epoch
from fleet.model import TopicPartition
from fleet.model.rebalances import Cause, Confidence, MembershipSpan, Rebalance, TimeSource

# Its JSON form outlives a release, so a field that is renamed there is lost.

_KEPT_PENDING: Final = tuple(
    each.name
    for each in fields(Rebalance)
    if each.compare and each.name not in {"cluster", "group", "moved", "aborted"}
)


_HINTS: Final = get_type_hints(Rebalance)


def _from_json(hint: Any, value: Any) -> Any:
    """A field of that type: JSON has no tuples and no names."""
    if get_origin(hint) is tuple:
        return tuple(_from_json(get_args(hint)[0], each) for each in value)
    return hint(value) if isinstance(hint, type) and issubclass(hint, StrEnum) else value


@dataclass(slots=True)
class Open:
    """A rebalance whose end is not known yet."""

    rebalance: Rebalance
    waiting: set[str]
    moved: set[TopicPartition] = field(default_factory=set)

    def ended(self, at: float, known: TimeSource = TimeSource.RECORD) -> Rebalance:
        """As a value, ended then."""
        return replace(
            self.rebalance, ended_at=at, end_source=known, moved=tuple(sorted(self.moved))
        )

    def as_json(self) -> dict[str, Any]:
        """For JSON: all but what is not kept (`Rebalance.resubscribed`, `added`)."""
        return {
            **{name: getattr(self.rebalance, name) for name in _KEPT_PENDING},
            "waiting": sorted(self.waiting),
            "moved": [[tp.topic, tp.partition] for tp in sorted(self.moved)],
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], group: ReplayedGroup) -> "Open":
        """Restores the output of `as_json`."""
        values = kept_under(_KEPT_PENDING, kept)
        rebalance = Rebalance(
            cluster=group.cluster,
            group=group.group,
            **{name: _from_json(_HINTS[name], each) for name, each in values.items()},
        )
        moved = {TopicPartition(topic, number) for topic, number in kept["moved"]}
        return cls(rebalance, set(kept["waiting"]), moved)


PROTOCOLS: Final[Mapping[int, str]] = {
    **dict.fromkeys((3, 4, 5, 6, 7, 8, 16), "consumer"),
    **dict.fromkeys((10, 11, 12, 13, 14, 15), "share"),
    **dict.fromkeys((17, 19, 20, 21, 22, 23), "streams"),
}
"""Record type → the protocol of its group."""
_INITIALISED: Final = 15
_GROUP, _MEMBER = frozenset({3, 11, 17}), frozenset({5, 10, 19})
_KEPT: Final = (
    *("epoch", "epoch_at", "hash", "joined", "resubscribed", "assignor"),
    *("initialised", "last_at", "last_assignor"),
)
_OPEN: Final = 32
_STEPS: Final = 16

Rows = list[Rebalance | MembershipSpan]


@dataclass(slots=True)
class Epochs:
    """What has happened since the last assignment, and which rebalances are open."""

    epoch: int | None = None
    """The group epoch, and when it was written."""
    epoch_at: float = 0.0
    hash: int = 0
    roster: dict[str, str] = field(default_factory=dict)
    """Member ids by identity at the last assignment."""
    steps: list[Reason] = field(default_factory=list)
    joined: bool = False
    resubscribed: bool = False
    assignor: bool = False
    initialised: bool = False
    """A share group may be given partitions that it could not be given before (type 15)."""
    subscribed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Topics by member at the last assignment; not kept, nor is what follows."""
    width: dict[str, int] = field(default_factory=dict)
    """Partition counts assigned until then: one growth is spread over the members' targets."""
    added: set[TopicPartition] = field(default_factory=set)
    """Partitions beyond those."""
    open: list[Open] = field(default_factory=list)
    last_at: float = 0.0
    last_assignor: str | None = None

    def feed(self, group: ReplayedGroup, record: Record) -> Rows:
        """One record; `group` is brought up to date."""
        if isinstance(record, Unused) and record.type != _INITIALISED:
            return []
        self.last_at = max(self.last_at, record.timestamp_ms / 1000)
        if isinstance(record, Tombstone):
            return self._deleted(group, record)
        if not self._opened(group, record):
            return []
        if isinstance(record, ConsumerGroupMember):
            return self._member(group, record)
        if isinstance(record, ConsumerGroupEpoch):
            return self._group_epoch(group, record)
        if isinstance(record, AssignmentEpoch):
            return self._assigned(group, record)
        if isinstance(record, CurrentAssignment):
            return self._current(group, record)
        if isinstance(record, TargetAssignment):
            self._targeted(group, group.named(record.partitions))
        elif record.type == _INITIALISED:
            self.initialised = True
        return []

    def _opened(self, group: ReplayedGroup, record: Record) -> bool:
        """Settle what a deletion before this record meant; False where it cannot be placed."""
        protocol = PROTOCOLS.get(record.type)
        if protocol is None:
            return False
        if group.closed_at is not None:
            at, group.closed_at = group.closed_at, None
            if at == record.timestamp_ms / 1000 and group.protocol == "classic":
                self._reset()
                group.origin, group.origin_at = Cause.MIGRATION, at
                self._called(group)
            else:
                self._forget(group)
        if group.protocol not in {None, protocol, "classic"}:
            self._forget(group)  # another kind of group under the same name
        group.protocol = protocol
        return True

    def _forget(self, group: ReplayedGroup) -> None:
        group.forget()
        self._reset()

    def _reset(self) -> None:
        self.epoch, self.hash = None, 0
        self.roster, self.steps = {}, []
        self.subscribed, self.width, self.added = {}, {}, set()
        self.joined = self.resubscribed = self.assignor = self.initialised = False

    def _called(self, group: ReplayedGroup) -> None:
        """Note who is there, for the next assignment to be compared with."""
        self.roster = {who: member.member_id for who, member in group.members.items()}
        self.subscribed = {who: member.topics for who, member in group.members.items()}
        self.width, self.added = dict(group.width), set()

    def _targeted(self, group: ReplayedGroup, partitions: tuple[TopicPartition, ...]) -> None:
        """Note what a member shall own."""
        more = {tp for tp in partitions if tp.partition >= self.width.get(tp.topic, math.inf)}
        self.added |= more
        group.grown(partitions)

    # --- members ----------------------------------------------------------------------------

    def _member(self, group: ReplayedGroup, record: ConsumerGroupMember) -> Rows:
        topics = tuple(sorted((*record.topics, *filter(None, (record.regex,)))))
        now = ReplayedMember(
            member_id=record.member_id,
            instance_id=record.instance_id,
            client_id=record.client_id,
            host=record.client_host,
            topics=topics,
            rebalance_s=record.rebalance_timeout_ms / 1000,
            assignor=record.server_assignor,
            alive_at=record.timestamp_ms / 1000,
        )
        who = now.identity
        was = group.members.get(who) or group.gone.pop(who, None)
        group.members[who] = now
        self.last_assignor = record.server_assignor or self.last_assignor
        early = group.early.pop(record.member_id, None)
        if was is None and early is None:
            self.joined = True
            return [self._row(group, "joined", now, record)]
        known = was or early
        assert known is not None
        now.owned, now.epoch = known.owned, known.epoch
        now.state, now.state_since = known.state, known.state_since
        if was is None:  # nobody new: it was there when its partitions were given to it
            if group.protocol == "consumer":
                group.owns(who, now.owned)
            self.roster[who], self.subscribed[who] = now.member_id, topics
            return [self._row(group, "owns", now, record)]
        self.resubscribed |= was.topics != now.topics
        self.assignor |= was.assignor != now.assignor and group.origin is not Cause.MIGRATION
        if was.member_id != now.member_id:
            return [self._row(group, "replaced", now, record)]
        return []

    def _current(self, group: ReplayedGroup, record: CurrentAssignment) -> Rows:
        member = _by_id(group, record.member_id)
        if member is None:  # its own record may come yet: compaction keeps the later one
            _hold(
                group,
                group.early.setdefault(record.member_id, ReplayedMember(record.member_id)),
                record,
            )
            return []
        at = record.timestamp_ms / 1000
        changed = _hold(group, member, record)
        held = group.named(record.assigned)
        moved = group.owns(member.identity, held) if group.protocol == "consumer" else []
        if moved and self.open:
            self.open[-1].moved.update(moved)
        rows: Rows = [self._row(group, "owns", member, record)] if changed else []
        if record.epoch == AWAY:
            return rows + self._arrived(member.identity, None, at)
        if record.state == STABLE:
            return rows + self._arrived(member.identity, record.epoch, at)
        return rows

    def _arrived(self, who: str, epoch: int | None, at: float) -> Rows:
        """A member is stable at an epoch, or (None) need not be waited for any more."""
        rows: Rows = []
        for each in list(self.open):
            if epoch is None or epoch >= each.rebalance.number:
                each.waiting.discard(who)
            if not each.waiting:
                self.open.remove(each)
                rows.append(each.ended(at))
        return rows

    # --- epochs -----------------------------------------------------------------------------

    def _group_epoch(self, group: ReplayedGroup, record: ConsumerGroupEpoch) -> Rows:
        at = record.timestamp_ms / 1000
        rows: Rows = []
        if self.epoch is not None and record.epoch < self.epoch:
            self._forget(group)
        if self.epoch is None and group.number is None and group.origin is None:
            known = record.epoch <= 2 and self.joined
            group.origin = Cause.CREATED if known else None
        left = tuple(_silence(group, member, at) for member in group.gone.values())
        for member in group.gone.values():
            rows.append(self._row(group, "left", member, record))
            rows += self._arrived(member.identity, None, at)
            if member.identity in self.roster:
                self.roster[member.identity] = ""  # also if it comes back before the assignment
        group.gone = {}
        step = EpochChange(
            joined=self.joined,
            left=left,
            resubscribed=self.resubscribed,
            assignor=self.assignor,
            hash_changed=self.epoch is not None
            and (record.metadata_hash != self.hash or self.initialised),
        )
        self.joined = self.resubscribed = self.assignor = self.initialised = False
        if record.epoch not in {self.epoch, group.number}:
            self._step(of_epoch(step), emptied=not group.members)
        self.epoch, self.epoch_at, self.hash = record.epoch, at, record.metadata_hash
        return rows

    def _step(self, reason: Reason, *, emptied: bool) -> None:
        """One more event since the last assignment; the first one counts, and each kind once."""
        if emptied:
            # Nobody is left to assign to: what comes next is what sets off the next assignment.
            self.steps = []
        elif len(self.steps) < _STEPS and all(each.cause != reason.cause for each in self.steps):
            self.steps.append(reason)

    def _assigned(self, group: ReplayedGroup, record: AssignmentEpoch) -> Rows:
        if record.epoch == group.number:
            return []  # what an upgraded group already had
        rows: Rows = []
        if group.number is not None and record.epoch < group.number:
            self._forget(group)
        first = group.number is None and group.origin is None
        at = record.timestamp_ms / 1000
        is_current = self.epoch == record.epoch
        now = {who: member.member_id for who, member in group.members.items()}
        then = now if first else self.roster
        returned = {who for who in now if then.get(who) == ""}
        topics = {who: member.topics for who, member in group.members.items()}
        reason = (
            Reason(Cause.UNKNOWN, Confidence.AMBIGUOUS)
            if first
            else of_assignment(self.steps, group.origin)
        )
        rebalance = Rebalance(
            cluster=group.cluster,
            group=group.group,
            protocol=group.protocol or "consumer",
            number=record.epoch,
            before=group.number,
            incarnation=group.incarnation,
            started_at=self.epoch_at if is_current else None,
            start_source=TimeSource.RECORD if is_current else TimeSource.NOT,
            ended_at=at,
            end_source=TimeSource.NOT,
            cause=reason.cause,
            confidence=reason.confidence,
            also=reason.also,
            joined=tuple(sorted((now.keys() - then.keys()) | returned)),
            resubscribed=tuple(
                sorted(w for w in now if self.subscribed.get(w, topics[w]) != topics[w])
            ),
            added=tuple(sorted(self.added)),
            left=tuple(sorted((then.keys() - now.keys()) | returned)),
            replaced=tuple(sorted(w for w in now if then.get(w) and now[w] != then[w])),
            members=len(now),
            assignor=self.last_assignor,
            log_partition=group.log_partition,
            log_offset=record.offset,
        )
        waiting = {who for who, member in group.members.items() if member.epoch != AWAY}
        self.open.append(Open(rebalance, waiting))
        if len(self.open) > _OPEN:
            rows.append(self.open.pop(0).ended(at, TimeSource.NOT))
        self._called(group)
        self.steps = []
        group.number, group.origin, group.origin_at = record.epoch, None, None
        if not waiting:  # its members' records are older than the log: whom to wait for?
            rows.append(self.open.pop().ended(at, TimeSource.NOT))
        return rows

    # --- deletions --------------------------------------------------------------------------

    def _deleted(self, group: ReplayedGroup, record: Tombstone) -> Rows:
        if record.type in _MEMBER:
            member = _by_id(group, str(record.key[0])) if record.key else None
            group.early.pop(str(record.key[0]) if record.key else "", None)
            if member is not None:
                group.gone[member.identity] = group.members.pop(member.identity)
        elif record.type in _GROUP and group.protocol == PROTOCOLS[record.type]:
            group.closed_at = record.timestamp_ms / 1000
            rows: Rows = [each.ended(group.closed_at, TimeSource.NOT) for each in self.open]
            self.open = []
            return rows
        return []

    def _row(
        self, group: ReplayedGroup, event: str, member: ReplayedMember, record: Record
    ) -> MembershipSpan:
        at = record.timestamp_ms / 1000
        return group.row(event, member, at=at, number=member.epoch, offset=record.offset)

    # --- state ------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        return {
            "epoch": self.epoch,
            "epoch_at": self.epoch_at,
            "hash": self.hash,
            "roster": self.roster,
            "steps": [[s.cause, s.confidence, list(s.also)] for s in self.steps],
            "joined": self.joined,
            "resubscribed": self.resubscribed,
            "assignor": self.assignor,
            "initialised": self.initialised,
            "last_at": self.last_at,
            "last_assignor": self.last_assignor,
            "open": [each.as_json() for each in self.open],
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], group: ReplayedGroup) -> "Epochs":
        """Restores the output of `as_json`."""
        steps = [
            Reason(Cause(cause), Confidence(sure), tuple(Cause(each) for each in also))
            for cause, sure, also, *_ in kept["steps"]
        ]
        found = [Open.from_json(each, group) for each in kept["open"]]
        plain = kept_under(_KEPT, kept)
        return cls(**{**plain, "steps": steps, "open": found, "roster": dict(kept["roster"])})


def _by_id(group: ReplayedGroup, member_id: str) -> ReplayedMember | None:
    found = group.members.get(member_id)
    if found is not None and found.member_id == member_id:
        return found
    return next((m for m in group.members.values() if m.member_id == member_id), None)


def _hold(group: ReplayedGroup, member: ReplayedMember, record: CurrentAssignment) -> bool:
    """Note what a member has and how it stands; whether what it has is something else now."""
    at = record.timestamp_ms / 1000
    owned = tuple(sorted({*group.named(record.assigned), *group.named(record.revoking)}))
    changed, member.owned = owned != member.owned, owned
    if record.epoch != AWAY:
        member.alive_at = at
    if record.state != member.state or record.epoch == AWAY != member.epoch:
        member.state_since = at
    member.epoch, member.state = record.epoch, record.state
    return changed


def _silence(group: ReplayedGroup, member: ReplayedMember, at: float) -> Silence:
    """The evidence on a member that is removed at that time."""
    commit = group.last_commit(member.owned)
    if commit is not None and commit.at < member.state_since:
        commit = None
    revoking = member.state == UNREVOKED and member.rebalance_s is not None
    session = group.session(group.protocol or "consumer", at)
    return Silence(
        quiet_s=max(0.0, at - member.alive_at),
        since_commit_s=None if commit is None else max(0.0, at - commit.at),
        gap_s=None if commit is None else commit.gap,
        session_s=None if session is None else session.least_s,
        longest_s=None if session is None else session.most_s,
        silent_s=0.0 if session is None else session.silent_s,
        sure=session is None or session.sure,
        rebalance_s=member.rebalance_s,
        overdue=revoking and at - member.state_since >= (member.rebalance_s or 0.0),
        away=member.epoch == AWAY,
    )
