"""Kafka's own coordinator runs here: classic and KIP-848, timers, failovers, failed writes."""

from collections.abc import Iterator

import pytest

from fleet.log.records import ConsumerGroupEpoch, GroupMetadata, Tombstone, decode
from fleet.sim.coordinator.requests import (
    ConsumerGroupHeartbeatRequest,
    ErrorCode,
    GroupRecord,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from tests.conformance.kafka_group_manager import (
    KafkaGroupManager,
    Played,
    Scenario,
    advance,
    append,
    failover,
    member_uuids,
    request,
    tasks,
    topics,
)

pytestmark = pytest.mark.broker

RANGE = JoinGroupProtocol("range", b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0")
TOPIC = "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaGroupManager]:
    """One JVM for all of them."""
    with KafkaGroupManager() as made:
        yield made


def play(kafka: KafkaGroupManager, *events, **options) -> list[Played]:
    """The steps of one scenario."""
    (steps,) = kafka.play([Scenario(seed=7, events=events, start=1_000, **options)])
    return steps


def decoded(record: GroupRecord):
    """As the history reads it."""
    return decode(record.key, record.value, offset=0, timestamp=0)


def test_classic_group(kafka) -> None:
    """A static and a dynamic member, from the first JoinGroup until nobody is left."""
    ids = member_uuids(7)
    dynamic, static = f"client-{next(ids)}", f"i-{next(ids)}"
    join = JoinGroupRequest("g", protocols=(RANGE,), session_timeout_ms=10_000)
    sync = SyncGroupRequest("g", 1, static, "i", assignments=(SyncGroupAssignment(dynamic, b"d"),))
    steps = play(
        kafka,
        request(join),
        request(join._replace(group_instance_id="i")),
        request(join._replace(member_id=dynamic)),
        advance(6_000),
        request(SyncGroupRequest("g", 1, dynamic)),
        request(sync),
        request(HeartbeatRequest("g", 1, dynamic)),
        request(LeaveGroupRequest("g", (MemberIdentity(dynamic), MemberIdentity("", "i")))),
        advance(600_000),
    )
    assert steps[0].answers[0].body["errorCode"] == ErrorCode.MEMBER_ID_REQUIRED
    assert steps[0].answers[0].body["memberId"] == dynamic
    assert steps[0].timers["heartbeat-g-" + dynamic] == 11_000
    assert not steps[1].answers
    assert not steps[2].answers
    assert steps[3].fired == (("join-g", 4_000), ("join-g", 7_000))
    assert [found.body["generationId"] for found in steps[3].answers.values()] == [1, 1]
    assert steps[3].groups["g"]["state"] == "CompletingRebalance"
    assert not steps[4].answers
    assert sorted(steps[5].answers) == [4, 5]
    (record,) = map(decoded, steps[5].records)
    assert isinstance(record, GroupMetadata)
    assert {member.member_id for member in record.members} == {dynamic, static}
    assert steps[6].answers[6].body["errorCode"] == ErrorCode.NONE
    assert steps[7].groups["g"]["state"] == "Empty"
    assert isinstance(decoded(steps[8].records[0]), Tombstone)
    assert not steps[8].groups


def test_failed_and_late_writes(kafka) -> None:
    """What waits for a record to be durable waits; a failed write is answered with an error."""
    first = f"i-{next(member_uuids(7))}"
    join = JoinGroupRequest("g", group_instance_id="i", protocols=(RANGE,))
    sync = SyncGroupRequest("g", 1, first, "i")
    begun = (request(join), advance(3_000))
    late = play(kafka, *begun, request(sync, append="later"), append())
    assert not late[2].answers
    assert late[2].records
    assert late[3].answers[2].body["errorCode"] == ErrorCode.NONE
    failed = play(kafka, *begun, request(sync, append="NOT_ENOUGH_REPLICAS"))
    assert failed[2].answers[2].body["errorCode"] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not failed[2].records


@pytest.mark.parametrize("kept", [True, False])
def test_failover(kafka, kept) -> None:
    """The next coordinator knows what the log says; who was parked is sent on."""
    first = f"i-{next(member_uuids(7))}"
    join = JoinGroupRequest("g", group_instance_id="i", protocols=(RANGE,))
    steps = play(
        kafka,
        request(join),
        advance(3_000),
        request(SyncGroupRequest("g", 1, first, "i"), append="later"),
        failover(kept=kept),
    )
    assert steps[3].answers[2].body["errorCode"] == ErrorCode.NOT_COORDINATOR
    assert steps[3].groups["g"]["state"] == ("Stable" if kept else "Empty")


def test_consumer_group(kafka) -> None:
    """Two members of KIP-848: epochs, assignments, a regular expression, a new partition."""
    beat = ConsumerGroupHeartbeatRequest(
        "g", "m1", 0, rebalance_timeout_ms=60_000, subscribed_topic_names=("t",),
        topic_partitions=(),
    )  # fmt: skip
    expression = beat._replace(
        member_id="m2", subscribed_topic_names=(), subscribed_topic_regex="t.*"
    )
    steps = play(
        kafka,
        request(beat),
        request(expression),
        tasks(),
        topics({"t": (TOPIC, 3)}),
        advance(1_000),
        request(ConsumerGroupHeartbeatRequest("g", "m1", 2)),
        topics={"t": (TOPIC, 2)},
    )  # fmt: skip
    assert steps[0].answers[0].body["memberEpoch"] == 2
    assert steps[0].answers[0].body["assignment"]["topicPartitions"][0]["partitions"] == [0, 1]
    assert [type(decoded(record)) for record in steps[0].records].count(ConsumerGroupEpoch) == 1
    assert steps[2].groups["g"]["regular_expressions"]["t.*"]["topics"] == ["t"]
    assert steps[5].groups["g"]["epoch"] > steps[2].groups["g"]["epoch"]
    assert "session-timeout-g-m1" in steps[5].timers


def test_offset_commit(kafka) -> None:
    """Whoever belongs to no group commits with a generation below 0."""
    offsets = (OffsetCommitTopic("t", (OffsetCommitPartition(0, 42),)),)
    steps = play(kafka, request(OffsetCommitRequest("g", -1, "", None, offsets)))
    assert steps[0].answers[0].body["topics"][0]["partitions"][0]["errorCode"] == ErrorCode.NONE
    assert decoded(steps[0].records[0]).committed == 42
