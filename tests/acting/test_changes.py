"""A living manager's change is refused to everybody else, a dead one's is carried on."""

from dataclasses import replace

import pytest

from fleet.act.change.changes import GroupChanges
from fleet.errors import Refused
from fleet.model import StepKind
from fleet.slots import Change, ChangeState, Gate, Handover, Phase
from tests.acting.standbys import GROUP
from tests.support.plans import step_of

LEASE = 10.0


def changing(here) -> GroupChanges:
    def performed(change: Change, progress) -> Change:
        return here.store.advance(replace(change, state=ChangeState.DONE))

    return GroupChanges(
        group=GROUP, store=here.store, clock=here.clock, lease=LEASE, perform=performed
    )  # fmt: skip


def renewing(here, change: Change) -> None:
    """Its actor lives: every third of a lease it says so."""
    due = [here.clock.monotonic()]

    def renew() -> None:
        if here.clock.monotonic() - due[0] >= LEASE / 3:
            due[0] = here.clock.monotonic()
            here.store.advance(change)

    here.clock.turn = renew


@pytest.mark.parametrize("ask", ["resume", "abort"])
def test_a_living_managers_change_is_its_own(scene, ask):
    """Nobody carries it on, nobody ends it."""
    here = scene()
    change = here.begin(step_of(StepKind.OPEN, (0,)))
    renewing(here, change)
    made = changing(here)
    asked = {
        "resume": lambda: made.resume(actor="bob", progress=here.told.append),
        "abort": lambda: made.abort(actor="bob"),
    }[ask]
    with pytest.raises(Refused, match="is changing group orders"):
        asked()
    now = here.store.change(GROUP)
    assert (now.actor, now.token, now.state) == (change.actor, change.token, ChangeState.RUNNING)


def test_a_dead_managers_change_is_carried_on(scene):
    """After one lease of silence, not before."""
    here = scene()
    here.begin(step_of(StepKind.OPEN, (0,)))
    began = here.clock.monotonic()
    done = changing(here).resume(actor="bob", progress=here.told.append)
    assert done is not None
    assert (done.actor, done.state) == ("bob", ChangeState.DONE)
    assert here.clock.monotonic() - began >= LEASE
    assert changing(here).resume(actor="bob", progress=here.told.append) is None


def test_what_is_closed_already_goes_on_to_leave(scene):
    """An abort takes back what has not moved yet; any live worker completes the rest [21]."""
    here = scene()
    here.store.write_gate(Gate(group=GROUP, open=frozenset({0, 1, 2})))
    for number in (0, 1):
        held = here.store.take(
            here.slots()[number], worker=f"w{number}", revision="old", spark_session=None
        )
        assert held is not None
        if number == 1:
            assert here.store.renew(replace(held, phase=Phase.CLOSED))
    here.begin(step_of(StepKind.LEAVE, (0, 1)))
    asks = {2: Handover(token=1, revision="new")}
    here.store.write_gate(
        replace(here.gate(), leaving=frozenset({0, 1}), handover=asks, rejoin={2: 1})
    )
    aborted = changing(here).abort(actor="bob")
    assert aborted is not None
    assert aborted.state is ChangeState.ABORTED
    assert here.gate().leaving == {1}
    assert (here.gate().handover, here.gate().rejoin) == ({}, {})


def test_a_plan_with_a_refusal_is_not_begun(scene):
    """Whoever made it may not have read it."""
    here = scene()
    made = here.begin(step_of(StepKind.OPEN, (0,)))
    here.store.advance(replace(made, state=ChangeState.DONE))
    plan = replace(made.plan, id="next", refusals=("orders is paused by ann",))
    with pytest.raises(Refused, match="paused by ann"):
        changing(here).begin(plan, actor="bob", progress=here.told.append)
    last = here.store.change(GROUP)
    assert last is not None
    assert last.plan.id == made.plan.id
