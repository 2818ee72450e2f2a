"""A coordinator moves in each of the five phases of a round (R50-R55), member by member.

The phases are those of the first design: a reason is known; some members were told; some have
joined; the new generation is written; some were answered. What holds today is expected, with
Kafka's own code beside it in tests/conformance/test_failover.py.
"""

import pytest

from fleet.sim.coordinator.classic_group import ClassicState
from fleet.sim.coordinator.requests import ErrorCode, SyncGroupAssignment, SyncGroupRequest
from tests.sim.classic_cluster import JOIN, Cluster, commit
from tests.sim.test_consumer_coordinator import beat, cluster, grow, join, partitions


def rejoins(of: Cluster, name: str) -> int:
    """One member's JoinGroup."""
    instance = of.group.members[name].group_instance_id
    return of.ask(JOIN._replace(member_id=name, group_instance_id=instance))


def synced(of: Cluster, name: str, *shares: str, **options) -> int:
    """A SyncGroup, the leader's with everybody's share."""
    given = tuple(SyncGroupAssignment(each, each.encode()) for each in shares)
    message = SyncGroupRequest("g", of.group.generation, name, assignments=given)
    return of.ask(message, **options)


def test_phase_1_a_reason_is_known_and_nothing_done() -> None:
    """R50: a missed session is noticed again, a whole session later; nobody else has noticed."""
    to = Cluster()
    ids = to.stable(2, static=False)
    generation = to.group.generation
    to.wait(9_000)  # ids[1] is dead by now, and missed in a second
    to.move()
    to.wait(9_999)
    assert to.beat(ids[0]) == 0
    assert set(to.group.members) == set(ids)
    to.wait(1)
    assert set(to.group.members) == {ids[0]}
    assert (to.group.state, to.group.generation) == (ClassicState.PREPARING_REBALANCE, generation)


def test_phase_1_more_partitions_of_a_kip_848_group() -> None:
    """R13, R50: the next coordinator sees another hash than the one that is written."""
    to = cluster()
    join(to, "m1")
    grow(to, a=6)
    to.fail_over()
    assert partitions(beat(to, "m1", 2)) == (0, 1, 2, 3, 4, 5)


def test_phase_2_some_were_told_and_the_dead_one_is_back() -> None:
    """R51: the group is loaded as it was written last, and goes on in that generation."""
    to = Cluster()
    ids = to.stable(3, static=False)
    generation = to.group.generation
    for name in ids[:2]:
        to.beat(name)
    to.wait(9_999)
    for name in ids[:2]:
        to.beat(name)
    to.wait(1)
    assert to.beat(ids[0]) == ErrorCode.REBALANCE_IN_PROGRESS
    to.move()
    assert [to.beat(name) for name in ids] == [0, 0, 0]
    assert (to.group.state, to.group.generation) == (ClassicState.STABLE, generation)


def test_phase_2_somebody_new_joins_the_next_coordinator() -> None:
    """R51: then there is a round."""
    to = Cluster()
    ids = to.stable(2)
    to.ask(JOIN._replace(group_instance_id="i9"))
    to.beat(ids[0])
    to.move()
    to.ask(JOIN._replace(group_instance_id="i9"))
    assert to.group.state is ClassicState.PREPARING_REBALANCE
    assert {to.beat(name) for name in ids} == {ErrorCode.REBALANCE_IN_PROGRESS}


@pytest.mark.parametrize("leads", [True, False])
def test_phase_3_some_have_joined(leads) -> None:
    """R52: they are sent on; the leader's next join makes a round, an unchanged follower's none."""
    to = Cluster()
    ids = to.stable(3)
    to.ask(JOIN._replace(group_instance_id="i9"))
    who = ids[0] if leads else ids[1]
    waiting = rejoins(to, who)
    to.move()
    assert to.answers[waiting].error_code == ErrorCode.NOT_COORDINATOR
    again = rejoins(to, who)
    if leads:
        assert to.group.state is ClassicState.PREPARING_REBALANCE
        return
    assert to.answers[again].generation_id == to.group.generation
    assert to.group.state is ClassicState.STABLE
    assert to.answers[synced(to, who)].assignment == who.encode()


@pytest.mark.parametrize("kept", [True, False])
def test_phase_4_the_generation_is_being_written(kept) -> None:
    """R53: it is whole in the log, or not there; who has another one hears so."""
    to = Cluster()
    ids = to.stable(2)
    old = to.group.generation
    for name in ids:
        rejoins(to, name)
    leader = to.group.leader
    other = next(name for name in ids if name != leader)
    waiting = [synced(to, other), synced(to, leader, *ids, hold=True)]
    to.move(kept=kept)
    assert {to.answers[each].error_code for each in waiting} == {ErrorCode.NOT_COORDINATOR}
    assert to.group.state is ClassicState.STABLE
    assert to.group.generation == (old + 1 if kept else old)
    wrong = old if kept else old + 1
    codes = {to.beat(name, generation_id=wrong) for name in ids}
    assert codes == {ErrorCode.ILLEGAL_GENERATION}
    assert to.said(commit(wrong, other)).error_code == ErrorCode.ILLEGAL_GENERATION


def test_phase_5_some_were_answered() -> None:
    """R54: they go on; a follower that joins again gets the generation and share that it has."""
    to = Cluster()
    ids = to.stable(3)
    for name in ids:
        rejoins(to, name)
    leader = to.group.leader
    answers = synced(to, leader, *ids)
    assert to.answers[answers].assignment == leader.encode()
    to.move()
    generation = to.group.generation
    assert to.beat(leader) == 0
    late = next(name for name in ids if name != leader)
    assert to.answers[rejoins(to, late)].generation_id == generation
    assert to.answers[synced(to, late)].assignment == late.encode()
    assert to.group.state is ClassicState.STABLE


def test_commits_and_sessions_after_a_move() -> None:
    """R10, R15, R17: commits are kept, and every member has a whole session again."""
    to = Cluster()
    ids = to.stable(2)
    assert to.said(commit(to.group.generation, ids[0])).error_code == 0
    kept = to.coordinator.log[-1]
    to.wait(9_000)
    to.move()
    assert kept in to.coordinator.log
    timers = to.coordinator.around.timers.deadlines()
    assert {timers[f"heartbeat-g-{name}"] for name in ids} == {to.coordinator.now + 10_000}
