"""New code of dynamic members in rolling batches: the new join together, then the old leave
together [22].
"""

import pytest

from fleet.act.runtime import RolloutStatus
from fleet.model import GroupState, StepKind
from fleet.slots import STAYS, ChangeState, Phase
from tests.acting.standbys import GROUP
from tests.support.plans import TWO, step_of

ROLL = StepKind.ROLL


def test_a_rolling_batch_joins_before_the_old_leave(scene):
    """Beside them, pinned; then the old leave in one request, by member id."""
    here = scene(worker={"membership": "dynamic"})
    here.running(2)
    old = [s.member_id for s in here.slots()]
    done = here.perform(step_of(ROLL, (0, 1, 2, 3), expected_cost=TWO))
    assert done.state is ChangeState.DONE, done.sentence
    assert here.crowd.left == [[(None, each) for each in old]]
    assert here.targets().open == {2, 3}
    assert [r.rebalances for r in done.receipts] == [2]
    assert {s.revision for s in here.slots() if s.number in here.targets().open} == {"new"}
    assert here.targets().handover == {}


def test_a_deployment_is_kept_from_old_owners(scene):
    """Where a Deployment replaces workers, the old slots stay with what they run until the batch
    has left; no pin stays.
    """
    here = scene(worker={"membership": "dynamic"})
    here.running(2)
    here.crowd.deployment = lambda _: RolloutStatus(complete=True)
    kept: set[tuple[int, str]] = set()
    turn = here.clock.turn

    def watch():
        pins = here.targets().handover.items()
        kept.update((n, pin.revision) for n, pin in pins if pin.token == STAYS)
        turn()

    here.clock.turn = watch
    done = here.perform(step_of(ROLL, (0, 1, 2, 3), expected_cost=TWO))
    assert done.state is ChangeState.DONE, done.sentence
    assert kept == {(0, "old"), (1, "old")}
    assert here.targets().handover == {}
    assert [r.rebalances for r in done.receipts] == [2]


@pytest.mark.parametrize("dies", [None, {0, 1, 2, 3}, {0, 1}])
def test_a_rolling_batch_that_got_nothing_to_read_is_proven_when_the_old_have_left(scene, dies):
    """Where members are more than partitions, the new ones commit nothing beside the old."""
    here = scene(worker={"membership": "dynamic"})
    here.running(2)
    here.like("new", commits=False)
    leave = here.crowd.leave

    def fails_from_here_on(group, members, *, reason):
        here.like("new", error="no such column")
        return leave(group, members, reason=reason)

    here.crowd.leave = fails_from_here_on
    change = here.begin(step_of(ROLL, (0, 1, 2, 3), expected_cost=TWO))

    def failed() -> bool:
        return "late" in here.store.change(GROUP).detail and here.targets().open == dies

    if dies is not None:
        change = here.killed_when(change, failed)
    done = here.performer().perform(change)
    assert done.state is ChangeState.ROLLED_BACK, done.sentence
    assert done.sentence.startswith("the first rolling batch failed: no such column")
    assert here.targets().open == {0, 1}
    assert here.targets().handover == {}
    assert here.revisions()[:2] == ["old", "old"]
    assert {s.phase for s in here.slots()[:2]} == {Phase.ACTIVE}
    assert not [w for w in here.crowd.people.values() if w.wanted and w.revision == "new"]
    assert len(here.crowd.left) == 2


def test_a_rolling_batch_has_its_time_once_the_group_is_settled(scene):
    """Until then nobody has what the old ones had."""
    here = scene(worker={"membership": "dynamic"})
    here.running(2)
    here.like("new", commits=False)
    leave, turn, left = here.crowd.leave, here.clock.turn, []

    def leaves(group, members, *, reason):
        left.append(here.clock.monotonic())
        here.crowd.stands = GroupState.PREPARING
        return leave(group, members, reason=reason)

    def later():
        seconds = here.clock.monotonic() - left[0] if left else 0.0
        if seconds > 25:
            here.crowd.stands = GroupState.STABLE
        if seconds > 34:
            here.like("new", error="no such column")
        turn()

    here.crowd.leave, here.clock.turn = leaves, later
    done = here.perform(step_of(ROLL, (0, 1, 2, 3), expected_cost=TWO))
    assert done.state is ChangeState.ROLLED_BACK, done.sentence
    assert here.targets().open == {0, 1}


def test_a_rolling_batch_without_data_is_waited_for_twice(scene):
    """And is done then: nobody has anything to read."""
    here = scene(worker={"membership": "dynamic"})
    here.running(2)
    here.like("new", commits=False)
    began = here.clock.monotonic()
    done = here.perform(step_of(ROLL, (0, 1, 2, 3), expected_cost=TWO))
    assert done.state is ChangeState.DONE, done.sentence
    assert here.clock.monotonic() - began >= 2 * here.spec.rollout.bake
    assert here.targets().open == {2, 3}


def test_a_rolling_batch_makes_up_for_one_that_takes_a_dead_owners_slot(scene):
    """While its workers get warm: they would be one too few for as long as anybody waits."""
    here = scene(worker={"membership": "dynamic"}, replicas={"min": 0, "max": 9, "standby": 0})
    here.running(2)
    here.like("new", warm_after=20)
    victim = here.crowd.people[here.slots()[0].owner]
    victim.alive = victim.wanted = False
    done = here.perform(step_of(ROLL, (0, 1, 2, 3), expected_cost=TWO))
    assert done.state is ChangeState.DONE
    assert here.crowd.asked[-2:] == [2, 1]
    assert {s.revision for s in here.slots() if s.number in here.targets().open} == {"new"}


def test_a_first_rolling_batch_that_fails_leaves_again(scene):
    """The old members never stopped being there."""
    here = scene(worker={"membership": "dynamic"})
    here.running(2)
    here.like("new", error="no such column")
    done = here.perform(step_of(ROLL, (0, 1, 2, 3), expected_cost=TWO))
    assert done.state is ChangeState.ROLLED_BACK
    assert here.targets().open == {0, 1}
    assert here.revisions()[:2] == ["old", "old"]
    assert not [w for w in here.crowd.people.values() if w.wanted and w.revision == "new"]
