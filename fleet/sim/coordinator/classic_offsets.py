"""Offsets of classic groups: who may commit, what is written, when it expires.

Not modelled: transactions, commits by topic id, retention times of old clients, the order of
tombstones of several partitions (Kafka's is that of its hash tables).
"""

from collections.abc import Iterator, MutableMapping

from fleet.log import encoding
from fleet.sim.coordinator.classic_group import ClassicGroup
from fleet.sim.coordinator.classic_requests import member_error
from fleet.sim.coordinator.classic_rounds import ClassicRounds
from fleet.sim.coordinator.classic_state import ClassicState
from fleet.sim.coordinator.error_codes import ErrorCode
from fleet.sim.coordinator.requests import (
    CommittedPartition,
    CommittedTopic,
    GroupRecord,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from fleet.sim.coordinator.surroundings import PendingWrite, nothing_done

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
            told = []
            for each in topic.partitions:
                code = self._too_large(each)
                told.append(CommittedPartition(each.partition_index, code))
                if code is ErrorCode.NONE:
                    records.append(self._record(request.group_id, topic.name, each))
            found.append(CommittedTopic(topic.name, tuple(told)))
        write = PendingWrite(tuple(records), nothing_done, learnt=True) if records else None
        return write, OffsetCommitResponse(topics=tuple(found))

    def _too_large(self, each: OffsetCommitPartition) -> ErrorCode:
        most = self.rounds.around.config.metadata_max_bytes
        too_large = len(each.committed_metadata or "") > most
        return ErrorCode.OFFSET_METADATA_TOO_LARGE if too_large else ErrorCode.NONE

    def _record(self, group: str, topic: str, each: OffsetCommitPartition) -> GroupRecord:
        return GroupRecord(
            encoding.offset_commit_key(group, topic, each.partition_index),
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
                told = request.version >= _GROUP_ID_NOT_FOUND_SINCE
                return ErrorCode.GROUP_ID_NOT_FOUND if told else ErrorCode.ILLEGAL_GENERATION
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

    # Expiry and deletion.

    def expired(self) -> Iterator[GroupRecord]:
        """Tombstones of offsets that are too old, and of empty groups without offsets."""
        for group in self.groups.values():
            left = self.committed.get(group.group_id, {})
            gone = [each for each, since in left.items() if self._is_expired(group, each[0], since)]
            yield from (self._tombstone(group.group_id, each) for each in gone)
            if len(gone) == len(left) and group.state is ClassicState.EMPTY:
                yield GroupRecord(encoding.key(encoding.GROUP_METADATA, group.group_id), None)

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

    def deleted(self, name: str) -> tuple[ErrorCode, tuple[GroupRecord, ...]]:
        """Whether a group may be deleted, and the tombstones of all that there is of it."""
        group = self.groups.get(name)
        if group is None or group.state is ClassicState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND, ()
        if group.state is not ClassicState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP, ()
        offsets = [self._tombstone(name, each) for each in self.committed.get(name, {})]
        group_record = GroupRecord(encoding.key(encoding.GROUP_METADATA, name), None)
        return ErrorCode.NONE, (*offsets, group_record)

    @staticmethod
    def _tombstone(group: str, at: tuple[str, int]) -> GroupRecord:
        return GroupRecord(encoding.offset_commit_key(group, *at), None)
