"""Stories of KIP-848 groups, told to the model alone; tests/conformance has Kafka beside it."""

import pytest

from fleet.errors import FleetError
from fleet.sim.coordinator.consumer_coordinator import ConsumerCoordinator, topic_id_bytes
from fleet.sim.coordinator.consumer_group import (
    ConsumerGroupState,
    ConsumerMemberState,
)
from fleet.sim.coordinator.consumer_records import (
    CURRENT,
    EPOCH,
    MEMBER,
    TARGET,
    TARGET_EPOCH,
)
from fleet.sim.coordinator.consumer_shard import ConsumerGroupSettings, TopicFacts
from fleet.sim.coordinator.requests import ConsumerGroupHeartbeatRequest, ErrorCode, TopicPartitions

A, B = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
AT_ONCE = ConsumerGroupSettings(assignment_interval_ms=0)


def cluster(settings=AT_ONCE, **topics: int) -> ConsumerCoordinator:
    """A coordinator at one second, of topics `a` and `b` with so many partitions."""
    made = ConsumerCoordinator(settings, start_ms=1_000)
    grow(made, **(topics or {"a": 4}))
    return made


def grow(to: ConsumerCoordinator, **topics: int) -> None:
    """The topics are now these."""
    ids = {"a": A, "b": B}
    to.set_topics(TopicFacts(topic_id_bytes(ids[n]), n, count) for n, count in topics.items())


def join(to: ConsumerCoordinator, member: str, instance=None, topics=("a",), **more):
    """A join, with the answer."""
    asked = ConsumerGroupHeartbeatRequest(
        "g", member, 0, instance, None, 60_000, topics, topic_partitions=()
    )
    return to.heartbeat(asked._replace(**more))


def beat(to: ConsumerCoordinator, member: str, epoch: int, instance=None, **more):
    """A heartbeat; `owned` are partitions of topic a."""
    owned = more.pop("owned", None)
    reported = None if owned is None else ((TopicPartitions(A, tuple(owned)),) if owned else ())
    asked = ConsumerGroupHeartbeatRequest("g", member, epoch, instance, topic_partitions=reported)
    return to.heartbeat(asked._replace(**more))


def partitions(answer) -> tuple[int, ...]:
    """Of topic a, as the answer gives them."""
    return next((each.partitions for each in answer.assignment.topic_partitions), ())


def kinds(to: ConsumerCoordinator, since: int = 0) -> list[int]:
    """The types of the records written."""
    return [record.type for record in to.log[since:]]


def test_a_join_and_a_second_one() -> None:
    """The first has all; it gives up half, says so, and only then the second one has it."""
    to = cluster()
    assert partitions(join(to, "m1")) == (0, 1, 2, 3)
    assert kinds(to) == [MEMBER, EPOCH, TARGET, TARGET_EPOCH, CURRENT]
    second = join(to, "m2")
    assert (second.member_epoch, partitions(second)) == (3, ())
    asked = beat(to, "m1", 2)
    assert (asked.member_epoch, partitions(asked)) == (2, (0, 1))
    group = to.shard.groups.group("g")
    assert group.state is ConsumerGroupState.RECONCILING
    assert group.members["m1"].state is ConsumerMemberState.UNREVOKED
    assert group.members["m2"].state is ConsumerMemberState.UNRELEASED
    assert beat(to, "m2", 3).assignment is None
    done = beat(to, "m1", 2, owned=(0, 1))
    assert done.member_epoch == 3
    assert partitions(beat(to, "m2", 3)) == (2, 3)
    assert group.state is ConsumerGroupState.STABLE


def test_who_never_lets_go_is_fenced() -> None:
    """At the end of its rebalance timeout; the others need not wait for its session."""
    to = cluster()
    join(to, "m1", rebalance_timeout_ms=10_000)
    join(to, "m2")
    beat(to, "m1", 2)
    assert "rebalance-timeout-g-m1" in list(to.advance(11_000))
    assert "m1" not in to.shard.groups.group("g").members
    assert beat(to, "m1", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert partitions(beat(to, "m2", 3)) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("epoch", "owned", "error"),
    [
        pytest.param(3, (0, 1), 0, id="its own"),
        pytest.param(2, (0,), 0, id="the last, of what it was given: an answer was lost"),
        pytest.param(2, (0, 3), 110, id="the last, with more"),
        pytest.param(2, None, 110, id="the last, and nothing said"),
        pytest.param(1, (0,), 110, id="older"),
        pytest.param(4, (0, 1), 110, id="newer"),
    ],
)
def test_epochs(epoch, owned, error) -> None:
    """What a member may say of itself."""
    to = cluster()
    join(to, "m1")
    join(to, "m2")
    beat(to, "m1", 2)
    beat(to, "m1", 2, owned=(0, 1))
    assert beat(to, "m1", epoch, owned=owned).error_code == error


def test_more_partitions_are_noticed_at_a_heartbeat() -> None:
    """One epoch, by the hash of the topics."""
    to = cluster()
    join(to, "m1")
    grow(to, a=5)
    assert partitions(beat(to, "m1", 2)) == (0, 1, 2, 3, 4)
    assert to.shard.groups.group("g").epoch == 3


def test_a_leave_is_one_epoch() -> None:
    """The topics are the same for those that stay, also when they are looked at again."""
    to = cluster()
    join(to, "m1")
    join(to, "m2")
    beat(to, "m2", -1)
    group = to.shard.groups.group("g")
    assert group.epoch == 4
    group.note_topic_check(0, 0)
    beat(to, "m1", 2)
    assert group.epoch == 4


def test_a_broker_takes_over() -> None:
    """It knows what the log says; sessions begin anew, a rebalance timeout too."""
    to = cluster()
    join(to, "m1")
    join(to, "m2")
    beat(to, "m1", 2)
    before = to.shard.groups.group("g")
    list(to.advance(30_000))
    to.fail_over()
    after = to.shard.groups.group("g")
    assert (after.members, after.targets, after.state) == (
        before.members,
        before.targets,
        before.state,
    )
    assert to.shard.timers.deadlines()["session-timeout-g-m1"] == 75_000
    assert to.shard.timers.deadlines()["rebalance-timeout-g-m1"] == 90_000


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"member_epoch": 0, "topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 0, "rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 0, "subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"member_epoch": 5}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_requests_that_do_not_fit(asked, error) -> None:
    """Each with its error; nothing is written."""
    to = cluster()
    assert join(to, "m1", **asked).error_code == error
    assert not to.log


def test_members_with_other_topics_are_refused() -> None:
    """The model has one subscription for all members of a group."""
    to = cluster()
    join(to, "m1")
    with pytest.raises(FleetError, match="members of group g subscribe to other topics"):
        join(to, "m2", topics=("b",))
