"""Replays a classic group, generation by generation, from its GroupMetadata records (type 2).

Problem: the coordinator writes one record when a round completes, and none for what led to it.
Choice: compare each record with the one before; a generation number that jumps by more than one
hides rounds that never completed; the same number again is a static member that was replaced
(KIP-345) and no rebalance (docs/contributing/protocol.md 3.4, 3.5). Cost: the start of a round is
not in the log but for a group's first one, for its last member's leave, and as a bound where
members' commits show when they gave up their partitions; who looks at the group's state meanwhile
knows it (`round_starts`).

Times: `end` is the record's timestamp, when the leader's assignment arrived. All members had joined
at the record's `currentStateTimestamp`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.log.records import ClassicMember, GroupMetadata
from fleet.log.replay.group_state import CLOSE_S, ReplayedGroup, ReplayedMember
from fleet.log.replay.reasons import GenerationChange, Reason, Silence, of_generation
from fleet.model import TopicPartition
from fleet.model.rebalances import Cause, MembershipSpan, Rebalance, TimeSource

_REPLACEMENT_S = 60.0
"""A first record whose state is older than this was rewritten for a replaced member."""
_MOVED_S = 60.0
"""A coordinator's move explains what comes within its members' sessions, and at most this."""


@dataclass(slots=True)
class ClassicReplay:
    """What a classic group's next record is compared with, besides the members."""

    at: float | None = None
    """When the last record was written."""
    assignor: str | None = None
    withheld: tuple[TopicPartition, ...] = ()
    """Owned before the last record by members still there, and by nobody after it."""
    left: tuple[str, ...] = ()
    """Gone with the group's conversion from KIP-848."""
    grew: bool = False
    """The last round was for a topic that grew, or for members that noticed it later."""

    def as_json(self) -> list[object]:
        """Returns the state as JSON values."""
        withheld = [[tp.topic, tp.partition] for tp in self.withheld]
        return [self.at, self.assignor, withheld, list(self.left), self.grew]

    @classmethod
    def from_json(cls, kept: list[object]) -> "ClassicReplay":
        """Restores the output of `as_json`."""
        at, assignor, withheld, left, grew, *_ = kept
        assert isinstance(withheld, list)
        assert isinstance(left, list)
        return cls(
            at=at if isinstance(at, int | float) else None,
            assignor=assignor if isinstance(assignor, str) else None,
            withheld=tuple(TopicPartition(topic, number) for topic, number in withheld),
            left=tuple(left),
            grew=bool(grew),
        )

    def feed(self, group: ReplayedGroup, record: GroupMetadata) -> list[Rebalance | MembershipSpan]:
        """One record; `group` is brought up to date."""
        converted = _opened(group, record)
        if group.number is not None and record.generation < group.number and not converted:
            group.forget()
        group.protocol = "classic"
        before, now = group.members, _members(group, record)
        first = group.number is None
        rows = _rows(group, before, now, record, first=first)
        if converted:
            # Its members go on under the same numbers; the round that follows is the rebalance.
            self.left = tuple(sorted(before.keys() - now.keys()))
            group.origin, group.origin_at = Cause.MIGRATION, record.timestamp_ms / 1000
            self.withheld = ()
        elif first and not record.members and record.generation == 0:
            group.origin = group.origin or Cause.CREATED
            # Written at the first member's first request.
            group.origin_at = _joined_at(record)
        elif record.generation != group.number and not (first and _is_rewritten(record)):
            rows.insert(0, self._rebalance(group, record, before, now))
        self._settle(group, record, before, now, converted=converted)
        return rows

    def _rebalance(
        self,
        group: ReplayedGroup,
        record: GroupMetadata,
        before: Mapping[str, ReplayedMember],
        now: Mapping[str, ReplayedMember],
    ) -> Rebalance:
        if group.number is None and record.generation == 1 and group.origin is None:
            group.origin = Cause.CREATED
        known = group.number is not None or group.origin is not None
        aborted = 0 if group.number is None else record.generation - group.number - 1
        started_at, start_source = self._start(group, record, before, now, aborted)
        about = started_at if start_source is TimeSource.STATES else None
        stay = sorted(before.keys() & now.keys())
        resubscribed = tuple(who for who in stay if before[who].topics != now[who].topics)
        added = group.grown(tp for each in now.values() for tp in each.owned)
        reason = self._reason(
            group,
            record,
            before,
            now,
            aborted=aborted,
            # A start between two looks may be a second too early, which is much of a silence.
            started_at=started_at if about is None else min(about + CLOSE_S, _joined_at(record)),
            resubscribed=bool(resubscribed),
            grown=bool(added),
        )
        self.grew = reason.cause is Cause.PARTITIONS
        moved = [tp for who in sorted(now) for tp in group.owns(who, now[who].owned)]
        return Rebalance(
            cluster=group.cluster,
            group=group.group,
            protocol="classic",
            number=record.generation,
            before=group.number,
            incarnation=group.incarnation,
            started_at=started_at,
            start_source=start_source,
            ended_at=record.timestamp_ms / 1000,
            end_source=TimeSource.RECORD,
            cause=reason.cause,
            confidence=reason.confidence,
            also=reason.also,
            joined=tuple(sorted(now.keys() - before.keys())) if known else (),
            left=tuple(sorted({*self.left, *(before.keys() - now.keys())})),
            replaced=_replaced(before, now),
            members=len(now),
            moved=tuple(sorted(moved)),
            aborted=aborted,
            assignor=record.protocol,
            log_partition=group.log_partition,
            log_offset=record.offset,
            resubscribed=resubscribed,
            added=tuple(sorted(added)),
        )

    def _reason(
        self,
        group: ReplayedGroup,
        record: GroupMetadata,
        before: Mapping[str, ReplayedMember],
        now: Mapping[str, ReplayedMember],
        *,
        aborted: int,
        started_at: float | None,
        resubscribed: bool,
        grown: bool,
    ) -> Reason:
        """What is different, put to the rules."""
        gone = [before[who] for who in sorted(before.keys() - now.keys())]
        return of_generation(
            GenerationChange(
                origin=group.origin,
                first=group.number is None,
                joined=bool(now.keys() - before.keys()),
                left=tuple(self._silence(group, before, m, record, started_at) for m in gone),
                static=all(member.instance_id for member in gone),
                replaced=bool(_replaced(before, now)),
                assignor=None not in {self.assignor, record.protocol}
                and self.assignor != record.protocol,
                resubscribed=resubscribed,
                grown=grown,
                withheld=bool(self.withheld),
                noticed=self.grew and _is_cooperative(record),
                cooperative=_is_cooperative(record),
                aborted=aborted,
                coordinator=_coordinator_moved(group, record),
            )
        )

    def _start(
        self,
        group: ReplayedGroup,
        record: GroupMetadata,
        before: Mapping[str, ReplayedMember],
        now: Mapping[str, ReplayedMember],
        aborted: int,
    ) -> tuple[float | None, TimeSource]:
        end = _joined_at(record)
        if group.origin_at is not None:
            # A first member may also have died before it joined: its group then waits empty.
            longest = max((m.rebalance_s or 0.0 for m in now.values()), default=0.0)
            if end - group.origin_at <= longest + 1:
                return group.origin_at, TimeSource.RECORD
            return None, TimeSource.NOT
        if len(before) == 1 and not now and not aborted:
            return end, TimeSource.RECORD  # the last member went: there is nobody to wait for
        burst = self._revoked_at(group, record, before, now)
        ended = record.timestamp_ms / 1000
        seen = group.round_start(after=self.at, ended=ended)
        if seen is not None:
            if burst is not None and seen.excludes(burst):
                burst = None  # a consumer out of its rhythm: the group was settled after that
            seen = seen.within(min(end, burst or end))
            about = seen.known(ended)
            if about is not None:
                return about, TimeSource.STATES
            if seen.latest < min(burst or ended, ended):
                return seen.latest, TimeSource.SEEN
        return (None, TimeSource.NOT) if burst is None else (burst, TimeSource.COMMITS)

    def _revoked_at(
        self,
        group: ReplayedGroup,
        record: GroupMetadata,
        before: Mapping[str, ReplayedMember],
        now: Mapping[str, ReplayedMember],
    ) -> float | None:
        """When a member that stays committed because its partitions were revoked, if one did."""
        if _is_cooperative(record):
            return None  # nobody gives up anything before the join phase
        end = _joined_at(record)
        since = self.at if self.at is not None else end
        # Those who stay gave up what they had for this round; who is gone may have died before.
        replaced = _replaced(before, now)
        stay = [m for who, m in before.items() if who in now and who not in replaced]
        held = [tp for member in stay for tp in member.owned]
        commits = [group.commits[tp] for tp in held if tp in group.commits]
        burst = [commit.at for commit in commits if commit.early and since < commit.at <= end]
        return min(burst, default=None)

    def _silence(
        self,
        group: ReplayedGroup,
        before: Mapping[str, ReplayedMember],
        member: ReplayedMember,
        record: GroupMetadata,
        started_at: float | None,
    ) -> Silence:
        """The evidence on a member that is not there any more."""
        end = _joined_at(record)
        commit = group.last_commit(member.owned)
        if commit is not None and commit.at < member.alive_at:
            commit = None  # somebody else's, from before
        # Its going may have set off the round: silence is measured up to where that began.
        until = end if started_at is None else max(started_at, member.alive_at)
        alive_at = max(member.alive_at, commit.at if commit else 0.0)
        longest = max((each.rebalance_s or 0.0 for each in before.values()), default=0.0)
        return Silence(
            quiet_s=max(0.0, end - alive_at),
            since_commit_s=None if commit is None else max(0.0, until - commit.at),
            gap_s=None if commit is None else commit.gap,
            session_s=member.session_s,
            silent_s=member.session_s or 0.0,
            rebalance_s=member.rebalance_s,
            dropped=self.at is None or end - self.at >= longest,
        )

    def _settle(
        self,
        group: ReplayedGroup,
        record: GroupMetadata,
        before: Mapping[str, ReplayedMember],
        now: dict[str, ReplayedMember],
        *,
        converted: bool,
    ) -> None:
        """What the next record is compared with."""
        owned = {tp for member in now.values() for tp in member.owned}
        for who, member in now.items():
            group.owns(who, member.owned)
        if record.generation != group.number and not converted:
            topics = {topic for member in now.values() for topic in member.topics}
            cooperative = _is_cooperative(record)
            self.withheld = tuple(
                sorted(
                    tp
                    for who, member in before.items()
                    for tp in member.owned
                    if cooperative and who in now and tp not in owned and tp.topic in topics
                )
            )
            self.left = ()
            if record.generation > 0:
                group.origin = group.origin_at = None
        group.grown(owned)
        self.at = record.timestamp_ms / 1000
        self.assignor = record.protocol or self.assignor
        group.members, group.number = now, record.generation


def _opened(group: ReplayedGroup, record: GroupMetadata) -> bool:
    """Settle what a deletion before this record meant; True where KIP-848 became classic."""
    if group.closed_at is None:
        return False
    at, group.closed_at = group.closed_at, None
    if at == record.timestamp_ms / 1000 and group.protocol == "consumer" and record.members:
        group.members |= group.gone
        group.gone = {}
        return True
    group.forget()
    return False


def _joined_at(record: GroupMetadata) -> float:
    """When the join phase ended, in seconds."""
    at = record.timestamp_ms if record.state_timestamp_ms is None else record.state_timestamp_ms
    return min(at, record.timestamp_ms) / 1000


def _replaced(
    before: Mapping[str, ReplayedMember], now: Mapping[str, ReplayedMember]
) -> tuple[str, ...]:
    both = sorted(before.keys() & now.keys())
    return tuple(who for who in both if before[who].member_id != now[who].member_id)


def _is_cooperative(record: GroupMetadata) -> bool:
    return "cooperative" in (record.protocol or "")


def _is_rewritten(record: GroupMetadata) -> bool:
    return record.timestamp_ms / 1000 - _joined_at(record) > _REPLACEMENT_S


def _coordinator_moved(group: ReplayedGroup, record: GroupMetadata) -> bool:
    if group.coordinator_at is None:
        return False
    return 0 <= record.timestamp_ms / 1000 - group.coordinator_at <= _MOVED_S


def _members(group: ReplayedGroup, record: GroupMetadata) -> dict[str, ReplayedMember]:
    found = (_member(group, each, record) for each in record.members)
    return {member.identity: member for member in found}


def _member(group: ReplayedGroup, member: ClassicMember, record: GroupMetadata) -> ReplayedMember:
    known = group.members.get(member.instance_id or member.member_id)
    # A rewritten record says of one member only that it is new: the others' times stand.
    same = known is not None and record.generation == group.number
    renewed = known is None or known.member_id != member.member_id or not same
    return ReplayedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        topics=tuple(sorted(member.topics)),
        session_s=member.session_timeout_ms / 1000,
        rebalance_s=member.rebalance_timeout_ms / 1000,
        alive_at=record.timestamp_ms / 1000
        if same and renewed
        else (_joined_at(record) if renewed or known is None else known.alive_at),
        owned=group.named(member.assigned),
    )


def _rows(
    group: ReplayedGroup,
    before: Mapping[str, ReplayedMember],
    now: Mapping[str, ReplayedMember],
    record: GroupMetadata,
    *,
    first: bool,
) -> list[Rebalance | MembershipSpan]:
    """Who came, went, was replaced, or owns something else."""
    at, number, offset = record.timestamp_ms / 1000, record.generation, record.offset
    found: list[tuple[str, ReplayedMember]] = [
        ("left", before[who]) for who in sorted(before.keys() - now.keys())
    ]
    unknown = first and group.origin is None and record.generation > 1
    for who, member in sorted(now.items()):
        was = before.get(who)
        if was is None:
            found.append(("owns" if unknown else "joined", member))
        elif was.member_id != member.member_id:
            found.append(("replaced", member))
        elif was.owned != member.owned:
            found.append(("owns", member))
    return [group.row(event, m, at=at, number=number, offset=offset) for event, m in found]
