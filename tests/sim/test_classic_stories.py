"""Classic groups by themselves: what Kafka's coordinator does, story by story.

Each expectation was compared with Kafka's own code (tests/conformance); here no JVM is needed.
"""

import pytest

from fleet.sim.coordinator.classic_group import ClassicGroup, ClassicState, IllegalTransition
from fleet.sim.coordinator.requests import (
    ErrorCode,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
)
from tests.sim.classic_cluster import JOIN, Cluster, commit


def test_first_member() -> None:
    """It gets its id first (KIP-394), is waited for in no round, and leads the first generation."""
    cluster = Cluster(initial_rebalance_delay=3_000)
    first = cluster.answers[cluster.ask(JOIN)]
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert cluster.group.state is ClassicState.EMPTY
    again = cluster.ask(JOIN._replace(member_id=first.member_id))
    cluster.wait(2_999)
    assert again not in cluster.answers
    cluster.wait(1)
    assert cluster.answers[again].generation_id == 1
    assert cluster.answers[again].leader == first.member_id


def test_static_member_returns() -> None:
    """Stable: the same generation, its record again with the new id; the leader skips assigning."""
    cluster = Cluster()
    leader, _ = cluster.stable(2)
    instance = cluster.group.members[leader].group_instance_id
    before = len(cluster.records)
    answer = cluster.answers[cluster.ask(JOIN._replace(group_instance_id=instance))]
    assert (answer.error_code, answer.skip_assignment) == (0, True)
    assert answer.generation_id == cluster.group.generation
    assert answer.leader == answer.member_id == cluster.group.leader != leader
    (record,) = cluster.records[before:]
    assert {m.instance_id for m in record.members} == {"i0", "i1"}
    fenced = HeartbeatRequest("g", answer.generation_id, leader, instance)
    assert cluster.answers[cluster.ask(fenced)].error_code == ErrorCode.FENCED_INSTANCE_ID


def test_batched_leave() -> None:
    """Two of three in one request: one generation more."""
    cluster = Cluster()
    ids = cluster.stable(3)
    generation = cluster.group.generation
    gone = (MemberIdentity("", "i0"), MemberIdentity("", "i1"), MemberIdentity("", "i9"))
    answer = cluster.answers[cluster.ask(LeaveGroupRequest("g", gone))]
    assert [each.error_code for each in answer.members] == [0, 0, ErrorCode.UNKNOWN_MEMBER_ID]
    (left,) = cluster.group.members
    assert left in ids
    cluster.ask(JOIN._replace(member_id=left, group_instance_id="i2"))
    assert cluster.group.generation == generation + 1


def test_dead_static_member_blocks_a_round() -> None:
    """Until its session is over; a dynamic one too, but no longer than the rebalance timeout."""
    cluster = Cluster()
    ids = cluster.stable(2)
    cluster.wait(1)
    newcomer = cluster.ask(JOIN._replace(group_instance_id="i9"))
    alive = cluster.group.members[ids[0]].group_instance_id
    cluster.ask(JOIN._replace(member_id=ids[0], group_instance_id=alive))
    over = cluster.coordinator.around.timers.deadlines()[f"heartbeat-g-{ids[1]}"]
    cluster.wait(over - cluster.coordinator.now - 1)
    assert newcomer not in cluster.answers
    cluster.wait(1)
    assert cluster.answers[newcomer].error_code == 0
    assert ids[1] not in cluster.group.members


def test_no_assignment_in_time() -> None:
    """Who has not synced within the rebalance timeout is out, and a round begins."""
    cluster = Cluster()
    join = JOIN._replace(group_instance_id="i0", session_timeout_ms=60_000)
    cluster.ask(join)
    cluster.wait(0)
    assert cluster.group.state is ClassicState.COMPLETING_REBALANCE
    cluster.wait(30_000)
    assert cluster.group.state is ClassicState.EMPTY
    assert (cluster.group.generation, cluster.records[-1].generation) == (2, 2)


def test_protocol_by_votes() -> None:
    """All support both; two of three name one first."""
    cluster = Cluster(initial_rebalance_delay=100)
    one, other = JoinGroupProtocol("range"), JoinGroupProtocol("roundrobin")
    for number, order in enumerate(((one, other), (other, one), (other, one))):
        cluster.ask(JOIN._replace(group_instance_id=f"i{number}", protocols=order))
    cluster.wait(200)
    assert cluster.group.protocol == "roundrobin"
    stranger = JOIN._replace(protocols=(JoinGroupProtocol("sticky"),))
    answer = cluster.answers[cluster.ask(stranger)]
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("static", [True, False])
def test_failover_while_stable(static) -> None:
    """Nobody notices: the same generation and assignments, a whole session for everyone."""
    cluster = Cluster()
    ids = cluster.stable(3, static=static)
    generation = cluster.group.generation
    cluster.wait(9_999)
    cluster.move()
    cluster.wait(9_999)
    for name in ids:
        ticket = cluster.ask(HeartbeatRequest("g", generation, name))
        assert cluster.answers[ticket].error_code == 0
    assert {m.assignment.decode() for m in cluster.group.members.values()} == set(ids)


def test_failover_while_preparing() -> None:
    """Who is parked is sent on; the group is what the log says."""
    cluster = Cluster()
    ids = cluster.stable(2)
    waiting = cluster.ask(JOIN._replace(group_instance_id="i9"))
    cluster.move()
    assert cluster.answers[waiting].error_code == ErrorCode.NOT_COORDINATOR
    assert cluster.group.state is ClassicState.STABLE
    assert set(cluster.group.members) == set(ids)


def test_out_of_bounds() -> None:
    """The broker refuses before it looks for a group."""
    cluster = Cluster()
    short = cluster.ask(JOIN._replace(session_timeout_ms=5_999))
    unnamed = cluster.ask(JOIN._replace(group_id=""))
    assert cluster.answers[short] == JoinGroupResponse(ErrorCode.INVALID_SESSION_TIMEOUT)
    assert cluster.answers[unnamed] == JoinGroupResponse(ErrorCode.INVALID_GROUP_ID)
    assert not cluster.coordinator.groups


def test_illegal_move() -> None:
    """Tells what led there."""
    group = ClassicGroup("g", 0)
    group.move(ClassicState.PREPARING_REBALANCE, 5)
    with pytest.raises(IllegalTransition, match=r"(?s)cannot become Stable.*5 ms: Empty => Prep"):
        group.move(ClassicState.STABLE, 6)


def test_commits() -> None:
    """Taken while a round is prepared and a sign of life; refused while it completes."""
    cluster = Cluster()
    ids = cluster.stable(2)
    generation = cluster.group.generation
    cluster.wait(5_000)
    cluster.ask(JOIN._replace(group_instance_id="i9"))
    assert cluster.group.state is ClassicState.PREPARING_REBALANCE
    assert cluster.answers[cluster.ask(commit(generation, ids[0]))].error_code == 0
    cluster.wait(9_000)
    assert set(cluster.group.members) >= {ids[0]}
    assert ids[1] not in cluster.group.members
    stale = cluster.answers[cluster.ask(commit(generation - 1, ids[0]))]
    assert stale.error_code == ErrorCode.ILLEGAL_GENERATION
    cluster.ask(JOIN._replace(member_id=ids[0]))
    assert cluster.group.state is ClassicState.COMPLETING_REBALANCE
    answer = cluster.answers[cluster.ask(commit(cluster.group.generation, ids[0]))]
    assert answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
