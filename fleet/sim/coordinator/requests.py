"""What members ask a group coordinator and what it answers.

Problem: the model and Kafka's own code have to be asked the same and to answer alike, field by
field. Choice: the fields of Kafka's messages under Kafka's names in snake_case, in named tuples
(immutable, compared by value, and made in a third of a microsecond, which counts at 100,000 events
a second). Cost: two messages of one shape compare equal; a comparison includes the class.

Fields that a coordinator does not look at are left out (throttle times, reasons, racks of classic
members). Times are milliseconds, bytes are a consumer's own (docs/contributing/protocol.md 3.3).
"""

from enum import IntEnum
from typing import NamedTuple, TypeAlias

# Kafka's error codes, as far as a group coordinator answers with them.


class ErrorCode(IntEnum):
    """Names and numbers of org.apache.kafka.common.protocol.Errors."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    NOT_ENOUGH_REPLICAS = 19
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    INVALID_REQUEST = 42
    KAFKA_STORAGE_ERROR = 56
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    UNSTABLE_OFFSET_COMMIT = 88
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112


class RequestRefused(Exception):
    """A request was refused with this code: nothing was written."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


UNKNOWN_MEMBER = ""
"""The member id of one that has none yet."""


class Client(NamedTuple):
    """Who sends a request."""

    client_id: str = "client"
    host: str = "127.0.0.1"


# The classic protocol.


class JoinGroupProtocol(NamedTuple):
    """An assignor and what a member tells it."""

    name: str
    metadata: bytes = b""


class JoinGroupRequest(NamedTuple):
    """JoinGroup; from version 4 on a dynamic member gets its id first, 9 skips assignments."""

    group_id: str
    member_id: str = UNKNOWN_MEMBER
    group_instance_id: str | None = None
    protocols: tuple[JoinGroupProtocol, ...] = ()
    protocol_type: str = "consumer"
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    version: int = 9


class JoinGroupMember(NamedTuple):
    """A member as its leader is told of it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupResponse(NamedTuple):
    """The answer to JoinGroup; members only to the leader."""

    error_code: int = 0
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = ""
    leader: str | None = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: tuple[JoinGroupMember, ...] = ()


class SyncGroupAssignment(NamedTuple):
    """What the leader gives to a member."""

    member_id: str
    assignment: bytes = b""


class SyncGroupRequest(NamedTuple):
    """SyncGroup; assignments only from the leader."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = "consumer"
    protocol_name: str | None = None
    assignments: tuple[SyncGroupAssignment, ...] = ()


class SyncGroupResponse(NamedTuple):
    """The answer to SyncGroup."""

    error_code: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class HeartbeatRequest(NamedTuple):
    """Heartbeat of a classic member."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


class HeartbeatResponse(NamedTuple):
    """The answer to Heartbeat."""

    error_code: int = 0


class MemberIdentity(NamedTuple):
    """A member that leaves; with an empty id the owner of the instance id."""

    member_id: str = UNKNOWN_MEMBER
    group_instance_id: str | None = None


class LeaveGroupRequest(NamedTuple):
    """LeaveGroup of one or many."""

    group_id: str
    members: tuple[MemberIdentity, ...]


class MemberResponse(NamedTuple):
    """What became of one that left."""

    member_id: str
    group_instance_id: str | None = None
    error_code: int = 0


class LeaveGroupResponse(NamedTuple):
    """The answer to LeaveGroup."""

    error_code: int = 0
    members: tuple[MemberResponse, ...] = ()


# The protocol of KIP-848.


class TopicPartitions(NamedTuple):
    """Partitions of a topic; the id as Kafka prints it (22 characters)."""

    topic_id: str
    partitions: tuple[int, ...]


class ConsumerGroupHeartbeatRequest(NamedTuple):
    """ConsumerGroupHeartbeat; epoch 0 joins, -1 leaves, -2 leaves for a while (static).

    None means unchanged since the last heartbeat.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    server_assignor: str | None = None
    topic_partitions: tuple[TopicPartitions, ...] | None = None
    version: int = 1


class ConsumerGroupAssignment(NamedTuple):
    """What a member may own from now on."""

    topic_partitions: tuple[TopicPartitions, ...] = ()


class ConsumerGroupHeartbeatResponse(NamedTuple):
    """The answer to ConsumerGroupHeartbeat; an assignment only where it is news."""

    error_code: int = 0
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: ConsumerGroupAssignment | None = None


# Offsets.


class OffsetCommitPartition(NamedTuple):
    """An offset to commit."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    committed_metadata: str | None = ""


class OffsetCommitTopic(NamedTuple):
    """Offsets of a topic."""

    name: str
    partitions: tuple[OffsetCommitPartition, ...]


class OffsetCommitRequest(NamedTuple):
    """OffsetCommit; a generation below 0 is nobody's, as tools commit."""

    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    group_instance_id: str | None
    topics: tuple[OffsetCommitTopic, ...]
    version: int = 9


class CommittedPartition(NamedTuple):
    """What became of one commit."""

    partition_index: int
    error_code: int = 0


class CommittedTopic(NamedTuple):
    """What became of a topic's commits."""

    name: str
    partitions: tuple[CommittedPartition, ...]


class OffsetCommitResponse(NamedTuple):
    """The answer to OffsetCommit; `error_code` where all of it is refused."""

    error_code: int = 0
    topics: tuple[CommittedTopic, ...] = ()


ClassicRequest: TypeAlias = (
    JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest
)


class GroupRecord(NamedTuple):
    """A record of `__consumer_offsets`; a value of None is a tombstone."""

    key: bytes
    value: bytes | None
