"""What the first design of the consumer's rewrite asked of a coordinator, held by the model.

Each test names its requirements by the numbers of docs/contributing/requirements.md. What Kafka
does otherwise today is expected as it is today; tests/conformance has Kafka's own code beside it.
"""

import pytest

from fleet.sim.coordinator.classic_group import ClassicState
from fleet.sim.coordinator.requests import (
    ErrorCode,
    HeartbeatRequest,
    JoinGroupProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from fleet.sim.scenarios.group_scenario import Scenario
from tests.sim.classic_cluster import JOIN, RANGE, Cluster, commit


def rejoined(cluster: Cluster, *names: str) -> dict[str, int]:
    """These members send JoinGroup anew; member id → the number of the request."""
    found = {}
    for name in names:
        instance = cluster.group.members[name].group_instance_id
        found[name] = cluster.ask(JOIN._replace(member_id=name, group_instance_id=instance))
    return found


def test_the_coordinators_heartbeat_checks() -> None:
    """R6, R22, R35: group, generation, member and instance id are looked at, each with its code."""
    cluster = Cluster()
    first, _ = cluster.stable(2)
    instance = cluster.group.members[first].group_instance_id
    generation = cluster.group.generation
    assert cluster.beat(first, group_instance_id=instance) == 0
    for stale in (generation - 1, generation + 1):
        assert cluster.beat(first, generation_id=stale) == ErrorCode.ILLEGAL_GENERATION
    assert cluster.beat("stranger") == ErrorCode.UNKNOWN_MEMBER_ID
    assert cluster.beat("stranger", group_instance_id=instance) == ErrorCode.FENCED_INSTANCE_ID
    elsewhere = cluster.said(HeartbeatRequest("another", 1, first))
    assert elsewhere.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert cluster.group.state is ClassicState.STABLE


def test_a_silent_member_is_out_after_its_session() -> None:
    """R7, R11, R18, R20, R26: its own session timeout counts, to the millisecond."""
    cluster = Cluster()
    ids = cluster.stable(2, static=False)
    assert [cluster.beat(name) for name in ids] == [0, 0]
    cluster.wait(9_999)
    assert cluster.beat(ids[0]) == 0
    assert set(cluster.group.members) == set(ids)
    cluster.wait(1)
    assert set(cluster.group.members) == {ids[0]}
    assert cluster.group.state is ClassicState.PREPARING_REBALANCE
    assert cluster.beat(ids[0]) == ErrorCode.REBALANCE_IN_PROGRESS
    assert cluster.beat(ids[1]) == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_unknown_member_disturbs_nobody() -> None:
    """R33: who joins with an id that nobody has is refused, and no round begins."""
    cluster = Cluster()
    ids = cluster.stable(2)
    answer = cluster.said(JOIN._replace(member_id="nobody"))
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert cluster.group.state is ClassicState.STABLE
    assert set(cluster.group.members) == set(ids)


def test_each_round_is_a_generation() -> None:
    """R34: also one after which the members are the same, and the one that empties the group."""
    cluster = Cluster()
    ids = cluster.stable(2)
    before, members = cluster.group.generation, set(cluster.group.members)
    rejoined(cluster, *ids)
    cluster.synced()
    assert (cluster.group.generation, set(cluster.group.members)) == (before + 1, members)
    gone = tuple(MemberIdentity(name) for name in ids)
    cluster.ask(LeaveGroupRequest("g", gone))
    assert (cluster.group.state, cluster.group.generation) == (ClassicState.EMPTY, before + 2)


def test_member_ids() -> None:
    """R29, R32, R85: given at once, from the client's or instance's id, and needed to join."""
    cluster = Cluster()
    given = cluster.said(JOIN)
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert not cluster.group.members
    cluster.ask(JOIN._replace(member_id=given.member_id))
    cluster.ask(JOIN._replace(group_instance_id="i"))
    assert list(cluster.group.pending_join) == []
    named = [name for name in cluster.group.members if name != given.member_id]
    assert [name.startswith("i-") for name in named] == [True]


def test_a_parked_member_is_alive() -> None:
    """R30, R47, R76: nothing is heard of it while it waits; who really died costs its session."""
    cluster = Cluster()
    ids = cluster.stable(2, static=False)
    assert cluster.beat(ids[1]) == 0
    waiting = rejoined(cluster, ids[0])[ids[0]]
    cluster.wait(9_999)
    assert waiting not in cluster.answers
    cluster.wait(1)
    assert cluster.answers[waiting].error_code == 0
    assert set(cluster.group.members) == {ids[0]}
    assert cluster.coordinator.now < JOIN.rebalance_timeout_ms


def test_silence_after_the_answer_to_a_join() -> None:
    """R48: the session begins with the answer; then the member is out, and a round begins."""
    cluster = Cluster()
    ids = cluster.stable(2)
    rejoined(cluster, *ids)
    assert cluster.group.state is ClassicState.COMPLETING_REBALANCE
    cluster.wait(9_999)
    assert cluster.group.state is ClassicState.COMPLETING_REBALANCE
    cluster.wait(1)
    assert not set(ids) & set(cluster.group.members)


def test_who_is_late_for_a_round() -> None:
    """R46, R58, R60: before the round is complete it is in it, after that it was dropped."""
    cluster = Cluster()
    ids = cluster.stable(3, static=False)
    began = cluster.coordinator.now
    early = rejoined(cluster, ids[0])
    cluster.wait(5_000)
    in_time = rejoined(cluster, ids[1])
    assert not cluster.answers.keys() & set(early.values())
    for _ in range(6):
        cluster.wait(4_000)
        if ids[2] in cluster.group.members:
            cluster.ask(commit(cluster.group.generation, ids[2]))  # alive, and never joins
    assert cluster.coordinator.now - began == 29_000
    assert cluster.group.state is ClassicState.PREPARING_REBALANCE
    cluster.wait(1_000)
    assert {cluster.answers[t].error_code for t in (*early.values(), *in_time.values())} == {0}
    late = cluster.said(JOIN._replace(member_id=ids[2]))
    assert late.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_round_is_not_called_off() -> None:
    """R57: a heartbeat of the member that was missed hears of the round, and does not end it."""
    cluster = Cluster()
    ids = cluster.stable(2)
    cluster.ask(JOIN._replace(group_instance_id="i9"))
    assert cluster.beat(ids[0]) == ErrorCode.REBALANCE_IN_PROGRESS
    assert cluster.beat(ids[1]) == ErrorCode.REBALANCE_IN_PROGRESS
    assert cluster.group.state is ClassicState.PREPARING_REBALANCE


def test_a_join_while_the_assignment_is_awaited() -> None:
    """R59: the round is given up at once, its generation is never written."""
    cluster = Cluster()
    ids = cluster.stable(2)
    rejoined(cluster, *ids)
    burnt, written = cluster.group.generation, len(cluster.records)
    follower = next(name for name in ids if name != cluster.group.leader)
    waiting = cluster.ask(SyncGroupRequest("g", burnt, follower))
    cluster.ask(JOIN._replace(group_instance_id="i9"))
    assert cluster.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert cluster.group.state is ClassicState.PREPARING_REBALANCE
    rejoined(cluster, *ids)
    cluster.synced()
    assert [each.generation for each in cluster.records[written:]] == [burnt + 1]


def test_two_barriers() -> None:
    """R12, R82, R86, R87: all join before one hears; all hear what the leader alone has sent."""
    cluster = Cluster()
    ids = cluster.stable(3)
    joins = rejoined(cluster, *ids[:2])
    assert not cluster.answers.keys() & set(joins.values())
    joins |= rejoined(cluster, ids[2])
    answers = {name: cluster.answers[ticket] for name, ticket in joins.items()}
    assert len({each.generation_id for each in answers.values()}) == 1
    leader = cluster.group.leader
    assert {len(answers[name].members) for name in ids if name != leader} == {0}
    assert {each.member_id for each in answers[leader].members} == set(ids)
    generation = cluster.group.generation
    one, other = (name for name in ids if name != leader)
    parked = cluster.ask(SyncGroupRequest("g", generation, one))
    assert parked not in cluster.answers
    given = tuple(SyncGroupAssignment(name, name.encode()) for name in ids)
    cluster.ask(SyncGroupRequest("g", generation, leader, assignments=given))
    assert cluster.answers[parked].assignment == one.encode()
    later = cluster.said(SyncGroupRequest("g", generation, other))
    assert later.assignment == other.encode(), "nobody waits for the last one"


def test_the_longest_rebalance_timeout_counts() -> None:
    """R69, R73, R74, R75, R78: of two members with different ones, either of them missing."""
    cluster = Cluster(initial_rebalance_delay=100)
    how = {"i0": 30_000, "i1": 60_000, "i2": 10_000}
    joins = {
        name: JOIN._replace(
            group_instance_id=name, rebalance_timeout_ms=timeout, session_timeout_ms=300_000
        )
        for name, timeout in how.items()
    }
    for name in ("i0", "i1"):
        cluster.ask(joins[name])
    cluster.wait(200)
    cluster.synced()
    known = cluster.group.static["i0"]
    waiting = [cluster.ask(joins["i2"]), cluster.ask(joins["i0"]._replace(member_id=known))]
    cluster.wait(59_999)
    assert not cluster.answers.keys() & set(waiting)
    cluster.wait(1)
    assert {cluster.answers[ticket].error_code for ticket in waiting} == {0}


@pytest.mark.parametrize("version", [0, 1, 3])
def test_old_and_new_members_in_one_group(version) -> None:
    """R78: before version 4 nobody is given an id first; all end in one generation."""
    cluster = Cluster(initial_rebalance_delay=1_000)
    old = cluster.ask(JOIN._replace(version=version))
    new = cluster.ask(JOIN._replace(group_instance_id="i"))
    cluster.wait(2_000)
    assert cluster.answers[old].generation_id == cluster.answers[new].generation_id == 1


def test_the_coordinator_does_not_read_what_assignors_say() -> None:
    """R27, R80: any bytes pass from members to their leader; without a common name none joins."""
    cluster = Cluster()
    blob = bytes(range(256))
    opaque = JOIN._replace(group_instance_id="i0", protocols=(JoinGroupProtocol("range", blob),))
    ticket = cluster.ask(opaque)
    cluster.wait(0)
    assert cluster.answers[ticket].members[0].metadata == blob
    other = JOIN._replace(protocols=(JoinGroupProtocol("own", b""),))
    assert cluster.said(other).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert cluster.said(JOIN._replace(protocols=RANGE, protocol_type="connect")).error_code == (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )


def test_a_leave_needs_no_session() -> None:
    """R89, R90: who says that it goes is out at once; the others are asked to join anew."""
    cluster = Cluster()
    ids = cluster.stable(2)
    cluster.ask(LeaveGroupRequest("g", (MemberIdentity(ids[1]),)))
    assert set(cluster.group.members) == {ids[0]}
    assert cluster.beat(ids[0]) == ErrorCode.REBALANCE_IN_PROGRESS


def test_commits_of_other_generations() -> None:
    """R39, R43, R44: of an older one, of one that is still to come, and of who is no member."""
    cluster = Cluster()
    (only,) = cluster.stable(1)
    generation = cluster.group.generation
    for wrong in (generation - 1, generation + 1):
        assert cluster.said(commit(wrong, only)).error_code == ErrorCode.ILLEGAL_GENERATION
    assert cluster.said(commit(generation, "nobody")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert cluster.said(commit(generation, only)).error_code == 0


def test_defaults() -> None:
    """R77: a session of 45 s (KIP-735), 5 min between polls and for a rebalance, 3 s a beat."""
    given = Scenario()
    found = (given.session_timeout, given.max_poll_interval, given.heartbeat_interval)
    assert found == (45_000, 300_000, 3_000)
