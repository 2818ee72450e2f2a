"""A coordinator of classic groups: requests in, answers and records out, time as it is told.

Problem: one seed has to make one trace, and the same trace as Kafka's own coordinator makes of the
same events. Choice: a coordinator does what a broker's partition of `__consumer_offsets` does and
nothing by itself: `request` asks it, `advance` lets time go on (each timer at its own moment),
`appended` tells it that what it wrote is durable, `failover` makes another one of its log. Each
returns what came of it. Cost: whoever plays a whole cluster keeps the clocks together.

Exact against Kafka 4.3.1 (tests/conformance): answers, states, generations, members, timers in
their order, records byte for byte. Not modelled: several groups' order where one failover or one
clean-up touches more than one; what the modules beside this one name.
"""

from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from typing import Any, NamedTuple

from fleet.log import encoding
from fleet.log.records import GroupMetadata, OffsetCommit, Tombstone, decode, record_key
from fleet.sim.coordinator.classic_group import (
    ClassicGroup,
    ClassicGroupMember,
    ClassicState,
    CoordinatorConfig,
    CoordinatorContext,
    Decision,
    PendingWrite,
    UnexpectedRequest,
    answered_error,
    nothing_done,
)
from fleet.sim.coordinator.classic_requests import ClassicRequests, ClassicRounds, member_error
from fleet.sim.coordinator.requests import (
    ClassicRequest,
    Client,
    CommittedPartition,
    CommittedTopic,
    ErrorCode,
    GroupRecord,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

# Offsets of classic groups: who may commit, what is written, when it expires.
#
# Not modelled: transactions, commits by topic id, retention times of old clients, the order of
# tombstones of several partitions (Kafka's is that of its hash tables).


_GROUP_ID_NOT_FOUND_SINCE = 9
_LIVES = frozenset({ClassicState.STABLE, ClassicState.PREPARING_REBALANCE})
"""States in which a commit is a sign of life."""


class ClassicOffsets:
    """What is committed: group → (topic, partition) → when, in milliseconds."""

    def __init__(self, rounds: ClassicRounds, groups: MutableMapping[str, ClassicGroup]) -> None:
        self.rounds = rounds
        self.groups = groups
        self.committed: dict[str, dict[tuple[str, int], int]] = {}

    def commit(
        self, request: OffsetCommitRequest
    ) -> tuple[PendingWrite | None, OffsetCommitResponse]:
        """What is to be written, and the answer for when it is."""
        error = self._error(request)
        if error is not ErrorCode.NONE:
            return None, OffsetCommitResponse(error)
        found, records = [], []
        for topic in request.topics:
            partitions = []
            for each in topic.partitions:
                code = self._too_large(each)
                partitions.append(CommittedPartition(each.partition_index, code))
                if code is ErrorCode.NONE:
                    records.append(self._record(request.group_id, topic.name, each))
            found.append(CommittedTopic(topic.name, tuple(partitions)))
        write = PendingWrite(tuple(records), nothing_done, learnt=True) if records else None
        return write, OffsetCommitResponse(topics=tuple(found))

    def _too_large(self, each: OffsetCommitPartition) -> ErrorCode:
        most = self.rounds.around.config.metadata_max_bytes
        too_large = len(each.committed_metadata or "") > most
        return ErrorCode.OFFSET_METADATA_TOO_LARGE if too_large else ErrorCode.NONE

    def _record(self, group: str, topic: str, each: OffsetCommitPartition) -> GroupRecord:
        return GroupRecord(
            record_key(encoding.OFFSET_COMMIT, group, topic, each.partition_index),
            encoding.offset_commit(
                each.committed_offset,
                leader_epoch=each.committed_leader_epoch,
                metadata=each.committed_metadata or "",
                commit_timestamp=self.rounds.around.now,
            ),
        )

    def _error(self, request: OffsetCommitRequest) -> ErrorCode:
        generation = request.generation_id_or_member_epoch
        group = self.groups.get(request.group_id)
        if group is None:
            if generation >= 0:
                answered_error = request.version >= _GROUP_ID_NOT_FOUND_SINCE
                return (
                    ErrorCode.GROUP_ID_NOT_FOUND if answered_error else ErrorCode.ILLEGAL_GENERATION
                )
            group = ClassicGroup(request.group_id, self.rounds.around.now)
            self.groups[request.group_id] = group
        error = self._member_error(group, request)
        if error is ErrorCode.NONE and group.state in _LIVES:
            self.rounds.keep_alive(group, group.members[request.member_id])
        return error

    def _member_error(self, group: ClassicGroup, request: OffsetCommitRequest) -> ErrorCode:
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        instance = request.group_instance_id
        empty = group.state is ClassicState.EMPTY
        if group.state is ClassicState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and empty:
            return ErrorCode.NONE
        if generation >= 0 or member_id or instance is not None:
            error = member_error(group, member_id, instance)
            if error is not ErrorCode.NONE:
                return error
            if generation != group.generation:
                return ErrorCode.ILLEGAL_GENERATION
        elif not empty:
            return ErrorCode.UNKNOWN_MEMBER_ID
        completing = group.state is ClassicState.COMPLETING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if completing else ErrorCode.NONE

    # Expiry.

    def expired(self) -> Iterator[GroupRecord]:
        """Tombstones of offsets that are too old, and of empty groups without offsets."""
        for group in self.groups.values():
            left = self.committed.get(group.group_id, {})
            gone = [each for each, since in left.items() if self._is_expired(group, each[0], since)]
            yield from (self._tombstone(group.group_id, each) for each in gone)
            if len(gone) == len(left) and group.state is ClassicState.EMPTY:
                yield GroupRecord(record_key(encoding.GROUP_METADATA, group.group_id), None)

    def _is_expired(self, group: ClassicGroup, topic: str, committed: int) -> bool:
        consumer = group.protocol_type == "consumer"
        subscribed = consumer if group.topics is None else topic in group.topics
        since = committed
        if group.protocol_type is not None:
            if group.state is ClassicState.EMPTY:
                since = committed if group.since < 0 else group.since
            elif not consumer or group.topics is None or group.state is not ClassicState.STABLE:
                return False
        around = self.rounds.around
        return not subscribed and around.now - since >= around.config.offsets_retention

    @staticmethod
    def _tombstone(group: str, at: tuple[str, int]) -> GroupRecord:
        return GroupRecord(record_key(encoding.OFFSET_COMMIT, group, *at), None)


CLEANUP_KEY = "expire-group-metadata"
"""The timer of expired offsets and empty groups."""

AnyRequest = ClassicRequest | OffsetCommitRequest
_REFUSAL: dict[type, Any] = {
    JoinGroupRequest: JoinGroupResponse,
    SyncGroupRequest: SyncGroupResponse,
    HeartbeatRequest: HeartbeatResponse,
    LeaveGroupRequest: LeaveGroupResponse,
    OffsetCommitRequest: OffsetCommitResponse,
}


class CoordinatorStep(NamedTuple):
    """What came of one event."""

    answers: dict[int, Any]
    """By the number of the request; JoinGroup's may be one of long ago."""
    records: tuple[GroupRecord, ...]
    fired: tuple[tuple[str, int], ...]
    """Timers that went off, and when (ms)."""


class _Held(NamedTuple):
    write: PendingWrite
    ticket: int | None
    request: AnyRequest | None
    response: Any
    before: int
    """Records in the log before these."""


class ClassicCoordinator:
    """See the module; `log` is its partition of `__consumer_offsets`."""

    def __init__(
        self, uuids: Iterator[str], *, config: CoordinatorConfig | None = None, now: int = 0
    ) -> None:
        self.around = CoordinatorContext(config or CoordinatorConfig(), uuids, now)
        self.groups: dict[str, ClassicGroup] = {}
        self.log: list[GroupRecord] = []
        self._requests = ClassicRequests(self.around, self.groups)
        self._offsets = ClassicOffsets(self._requests, self.groups)
        self._held: list[_Held] = []
        self._fired: list[tuple[str, int]] = []
        self._schedule_cleanup()

    @property
    def now(self) -> int:
        """Returns the model's time in milliseconds."""
        return self.around.now

    # Events.

    def request(
        self,
        ticket: int,
        request: AnyRequest,
        client: Client | None = None,
        *,
        append: ErrorCode = ErrorCode.NONE,
        hold: bool = False,
    ) -> CoordinatorStep:
        """A request, by a number of the caller's. `append`: why the write of what it decides fails.

        hold: what it writes is not durable before `appended`.
        """
        before = len(self.log)
        self.around.parked.add(ticket)
        refusal = self._out_of_bounds(request)
        if refusal is not None:
            self.around.answer(ticket, refusal)
            return self._step(before)
        try:
            decision, response = self._decide(ticket, request, client or Client())
        except UnexpectedRequest:
            self._refuse(ticket, request, ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            self._finish(decision, ticket, request, response, append, hold=hold)
        return self._step(before)

    def advance(self, milliseconds: int, *, append: ErrorCode = ErrorCode.NONE) -> CoordinatorStep:
        """Time goes on; `append`: why what is decided meanwhile cannot be written."""
        before = len(self.log)
        until = self.around.now + milliseconds
        while (due := self.around.timers.take(until)) is not None:
            self.around.now = max(self.around.now, due.deadline)
            self._fired.append((due.key, self.around.now))
            try:
                self._finish(due.action(), None, None, None, append)
            except UnexpectedRequest:
                continue  # Kafka logs it, and the timer is gone
        self.around.now = until
        return self._step(before)

    def appended(self, error: ErrorCode = ErrorCode.NONE) -> CoordinatorStep:
        """What has been written longest is durable, or the wait for that has failed."""
        before = len(self.log)
        if self._held:
            self._settle(self._held.pop(0), error)
        return self._step(before)

    def failover(self, *, kept: bool = False) -> CoordinatorStep:
        """Another broker loads the log; kept: with the records that were not durable yet.

        Who is parked hears NOT_COORDINATOR.
        """
        self.around.timers.clear()
        durable = len(self.log)
        while self._held:
            each = self._held.pop(0)
            if not kept:
                durable = min(durable, each.before)
            self._settle(each, ErrorCode.NOT_COORDINATOR)
        del self.log[durable:]
        self._unload()
        self.around.timers.clear()
        self._load()
        return self._step(len(self.log))

    # Requests.

    def _out_of_bounds(self, request: AnyRequest) -> Any:
        """What the broker refuses before a group is looked for."""
        if not request.group_id and not isinstance(request, OffsetCommitRequest):
            return _REFUSAL[type(request)](error_code=ErrorCode.INVALID_GROUP_ID)
        if isinstance(request, JoinGroupRequest):
            config = self.around.config
            session = request.session_timeout_ms
            if not config.min_session_timeout <= session <= config.max_session_timeout:
                error = ErrorCode.INVALID_SESSION_TIMEOUT
                return JoinGroupResponse(error_code=error, member_id=request.member_id)
        return None

    def _decide(self, ticket: int, request: AnyRequest, client: Client) -> tuple[Decision, Any]:
        """What is to be written, and the answer that waits for that."""
        match request:
            case JoinGroupRequest():
                return self._requests.join(ticket, request, client), None
            case SyncGroupRequest():
                return self._requests.sync(ticket, request), None
            case HeartbeatRequest():
                return self._requests.heartbeat(ticket, request), None
            case LeaveGroupRequest():
                return self._requests.leave(request)
            case OffsetCommitRequest():
                return self._offsets.commit(request)

    def _refuse(self, ticket: int | None, request: AnyRequest | None, error: ErrorCode) -> None:
        if request is not None:
            self.around.answer(ticket, _REFUSAL[type(request)](error_code=answered_error(error)))

    # Writes.

    def _finish(
        self,
        decision: Decision,
        ticket: int | None,
        request: AnyRequest | None,
        response: Any,
        append: ErrorCode,
        *,
        hold: bool = False,
    ) -> None:
        if decision is None:
            if response is not None:
                self.around.answer(ticket, response)
            return
        held = _Held(decision, ticket, request, response, len(self.log))
        if append is ErrorCode.NONE:
            self.log.extend(decision.records)
            if decision.learnt:
                self._learn(decision.records)
        if hold:
            self._held.append(held)
        else:
            self._settle(held, append)

    def _settle(self, held: _Held, error: ErrorCode) -> None:
        with suppress(UnexpectedRequest):  # in Kafka a future's exception that nobody looks at
            held.write.done(error)
        if error is not ErrorCode.NONE:
            self._refuse(held.ticket, held.request, error)
        elif held.response is not None:
            self.around.answer(held.ticket, held.response)

    def _step(self, before: int) -> CoordinatorStep:
        answers, fired = self.around.answers, tuple(self._fired)
        self.around.answers = {}
        self._fired.clear()
        return CoordinatorStep(answers, tuple(self.log[before:]), fired)

    # Cleaning up.

    def _schedule_cleanup(self) -> None:
        interval = self.around.config.retention_check_interval
        self.around.schedule(CLEANUP_KEY, interval, self._clean_up)

    def _clean_up(self) -> Decision:
        records = tuple(self._offsets.expired())
        self._schedule_cleanup()
        return PendingWrite(records, nothing_done, learnt=True) if records else None

    # Failover.

    def _unload(self) -> None:
        gone = ErrorCode.NOT_COORDINATOR
        for group in self.groups.values():
            group.move(ClassicState.DEAD, self.around.now)
            before = group.previous_state
            for member in group.members.values():
                if before is ClassicState.PREPARING_REBALANCE:
                    refusal = JoinGroupResponse(error_code=gone, member_id=member.member_id)
                    self._requests.answer_join(group, member, refusal)
                elif before in {ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE}:
                    self._requests.answer_sync(member, SyncGroupResponse(error_code=gone))

    def _load(self) -> None:
        self.groups.clear()
        self._offsets.committed.clear()
        self._learn(tuple(self.log))
        for group in self.groups.values():
            for member in group.members.values():
                self._requests.keep_alive(group, member)
            if len(group.members) > self.around.config.max_size:
                self._requests.prepare_rebalance(group)
        self._schedule_cleanup()

    def _learn(self, records: tuple[GroupRecord, ...]) -> None:
        """What a coordinator knows from records alone."""
        for record in records:
            found = decode(record.key, record.value, offset=0, timestamp=0)
            match found:
                case GroupMetadata():
                    self.groups[found.group] = self._loaded(found)
                case OffsetCommit():
                    at = (found.tp.topic, found.tp.partition)
                    kept = self._offsets.committed.setdefault(found.group, {})
                    kept[at] = found.commit_timestamp_ms
                    if found.group not in self.groups:
                        self.groups[found.group] = ClassicGroup(found.group, self.around.now)
                case Tombstone(tp=None):
                    self.groups.pop(found.group, None)
                case Tombstone(tp=tp) if tp is not None:
                    self._offsets.committed.get(found.group, {}).pop((tp.topic, tp.partition), None)

    def _loaded(self, found: GroupMetadata) -> ClassicGroup:
        since = found.state_timestamp_ms
        group = ClassicGroup(
            found.group,
            -1 if since is None else since,
            state=ClassicState.STABLE if found.members else ClassicState.EMPTY,
            generation=found.generation,
            protocol_type=found.protocol_type or None,
            protocol=found.protocol,
            leader=found.leader,
        )
        for each in found.members:
            protocol = JoinGroupProtocol(found.protocol or "", each.subscription)
            member = ClassicGroupMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                rebalance_timeout=each.rebalance_timeout_ms,
                session_timeout=each.session_timeout_ms,
                protocols=(protocol,),
                assignment=each.assignment,
            )
            group.add(member, found.protocol_type, None)
        group.topics = group.subscribed_topics()
        return group
