"""A change is carried out as one membership change, whoever dies or comes in between."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.act.changing import Changing
from fleet.act.steps import handover
from fleet.act.steps.work import StepWork
from fleet.errors import LostLease, Refused
from fleet.model import StepKind, Verdict
from fleet.slots import ChangeState, Handover, Phase
from tests.support.scripted import GROUP, LEASE, Stage, step

OPEN, LEAVE, ROLL = StepKind.OPEN, StepKind.LEAVE, StepKind.ROLL


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(StepWork, "join_limit", 5.0)  # only failures last so long
    monkeypatch.setattr(handover, "STOCK_PATIENCE", 2.0)
    return Stage(tmp_path)


@pytest.fixture
def three(stage: Stage) -> Stage:
    """Three slots held by workers of r1, one standby."""
    change = stage.carry_out(step(OPEN, 0, 1, 2))
    assert change.state is ChangeState.DONE, change.sentence
    stage.store.opened.clear()
    return stage


def at(stage: Stage, what: Callable[[], bool], then: Callable[[], None]) -> None:
    """Once, at the first turn at which `what` is so."""
    turn, done = stage.clock.on_turn, []

    def watched() -> None:
        turn()
        if not done and what():
            done.append(True)
            then()

    stage.clock.on_turn = watched


# --- the kinds of step --------------------------------------------------------------------------


def test_slots_open_in_one_write_and_are_joined_in_one_rebalance(stage: Stage):
    """Three joins at the moment that the gate names, by workers that were warm before [19]."""
    change = stage.carry_out(step(OPEN, 0, 1, 2))
    assert change.state is ChangeState.DONE, change.sentence
    assert stage.store.opened == [{0, 1, 2}]
    assert [r.verdict for r in change.receipts] == [Verdict.EQUAL]
    assert stage.coordinator.members.keys() == {"g-0", "g-1", "g-2"}
    assert len(stage.alive()) == 4
    assert any("joins were spread over 0.000 s" in s for s in change.receipts[0].sentences)


def test_a_step_that_is_done_already_changes_nothing(three: Stage):
    """Performed again it finds everything so."""
    gate = three.store.gate(GROUP)
    change = three.carry_out(step(OPEN, 0, 1, 2, price=0))
    assert change.state is ChangeState.DONE, change.sentence
    assert three.store.gate(GROUP) == gate
    assert [r.ours for r in change.receipts] == [0]


def test_members_leave_in_one_request_by_both_names(three: Stage):
    """All drain, close together; only their workers go, and the others never stopped [16, 21]."""
    held = three.holders()
    members = dict(three.coordinator.members)
    change = three.carry_out(step(LEAVE, 1, 2))
    assert change.state is ChangeState.DONE, change.sentence
    assert three.coordinator.leaves == [[("g-1", members["g-1"]), ("g-2", members["g-2"])]]
    assert [r.verdict for r in change.receipts] == [Verdict.EQUAL]
    gate = three.store.gate(GROUP)
    assert (gate.open, gate.leaving) == ({0}, frozenset())
    assert {held[1], held[2]} & three.alive() == set()
    assert three.holders()[0] == held[0]
    assert three.slots()[1].member_id is None


def test_a_roll_hands_over_slot_by_slot_without_a_rebalance(three: Stage):
    """Every slot is new code's, every old worker is gone, nothing was recorded."""
    old = three.alive("r1")
    change = three.carry_out(step(ROLL, 0, 1, 2, revision="r2", price=0))
    assert change.state is ChangeState.DONE, change.sentence
    assert [r.ours for r in change.receipts] == [0]
    assert {s.revision for s in three.slots().values()} == {"r2"}
    assert not old & three.alive()
    assert len(three.alive("r2")) == 4
    assert three.store.gate(GROUP).handover == {}
    assert three.store.opened == []


def test_one_slot_at_a_time_is_between_two_holders(three: Stage):
    """`max_parallel` is 1: two are never away together."""
    away: list[int] = []
    at(
        three,
        lambda: bool(away.append(sum(s.phase is not Phase.ACTIVE for s in three.slots().values()))),
        list,
    )
    three.carry_out(step(ROLL, 0, 1, 2, revision="r2", price=0))
    assert max(away) == 1


def test_a_canary_that_fails_goes_back(three: Stage):
    """To a worker of the old revision that was kept warm; the other slots were never asked."""
    three.failing.add("r2")
    before = three.holders()
    change = three.carry_out(step(ROLL, 0, 1, 2, revision="r2", price=0))
    assert change.state is ChangeState.ROLLED_BACK
    assert "division by zero" in change.sentence
    assert {s.revision for s in three.slots().values()} == {"r1"}
    assert {n: h for n, h in three.holders().items() if n} == {1: before[1], 2: before[2]}
    assert three.store.gate(GROUP).handover == {}
    assert three.alive("r2") == set()


def test_a_revision_that_never_gets_warm_touches_nothing(three: Stage):
    """No slot was asked for."""
    three.never_warm.add("r2")
    before = three.slots()
    change = three.carry_out(step(ROLL, 0, 1, 2, revision="r2", price=0))
    assert change.state is ChangeState.ROLLED_BACK
    assert {n: s.token for n, s in three.slots().items()} == {n: s.token for n, s in before.items()}


def test_a_dead_member_leaves_with_the_others(three: Stage):
    """Its lease has to expire first; then it is named as the rest are [13, 16]."""
    dead = three.crew[str(three.holders()[2])]
    member = three.coordinator.members["g-2"]
    three.crew = {n: w for n, w in three.crew.items() if three.holders()[0] == n or w is dead}
    at(three, lambda: bool(three.store.gate(GROUP).leaving), lambda: setattr(dead, "alive", False))
    began = three.clock.at
    change = three.carry_out(step(LEAVE, 2))
    assert three.coordinator.leaves == [[("g-2", member)]]
    assert three.clock.at - began >= LEASE
    assert change.receipts[0].verdict is Verdict.EQUAL, change.sentence


# --- a change that does not go well --------------------------------------------------------------


def test_pins_end_with_a_plan_that_failed(three: Stage):
    """They would keep slots for a revision that nobody runs any more [22]."""

    def canary_is_proven() -> bool:
        return three.slots()[0].revision == "r2" and not three.store.gate(GROUP).handover

    at(three, canary_is_proven, lambda: three.never_take.add("r2"))
    change = three.carry_out(step(ROLL, 0, 1, 2, revision="r2", price=0))
    assert change.state is ChangeState.FAILED
    assert "slot(s) 1 to pass" in change.sentence
    assert three.store.gate(GROUP).handover == {}


def test_a_refused_leave_fails_the_change(three: Stage):
    """82: somebody else has the name; it is left alone, and a person is told."""
    three.coordinator.refusal = "g-2 belongs to another process (82)"
    change = three.carry_out(step(LEAVE, 2))
    assert change.state is ChangeState.FAILED
    assert "82" in change.sentence
    assert three.store.gate(GROUP).open == {0, 1, 2}


def test_words_that_cannot_be_told_end_no_change(stage: Stage):
    """The terminal is gone, the disk is full [40]."""

    def nobody_listens(sentence: str) -> None:
        raise BrokenPipeError(sentence)

    performer = replace(stage.performer(), progress=nobody_listens)
    change = performer.perform(stage.begin(step(OPEN, 0)))
    assert change.state is ChangeState.DONE


# --- two actors ----------------------------------------------------------------------------------


def adopt(stage: Stage) -> None:
    """Another manager believes that the first is dead, and has the change from now on."""
    change = stage.store.change(GROUP)
    assert change is not None
    assert stage.store.adopt(change, actor="bob") is not None


def test_a_manager_that_lost_its_change_opens_nothing(stage: Stage):
    """It finds out in the gate's own transaction, though it has not renewed since."""
    at(stage, lambda: len(stage.alive()) >= 3, lambda: adopt(stage))
    with pytest.raises(LostLease):
        stage.carry_out(step(OPEN, 0, 1, 2))
    assert stage.store.opened == []
    assert stage.store.gate(GROUP).open == frozenset()


def test_a_manager_that_lost_its_change_sends_no_leave(three: Stage):
    """However far it was: all had closed, and it was about to."""

    def closed() -> bool:
        return three.slots()[2].phase is Phase.CLOSED

    at(three, closed, lambda: adopt(three))
    with pytest.raises(LostLease):
        three.carry_out(step(LEAVE, 2))
    assert three.coordinator.leaves == []
    assert three.store.gate(GROUP).leaving == {2}


def test_the_next_actor_names_the_members_that_were_seen_closed(three: Stage):
    """Its predecessor died with the request in hand: the same members, no others, and once."""
    member = three.coordinator.members["g-2"]

    class Died(BaseException):
        """As kill -9."""

    def die(group: str, members: object, *, reason: str) -> str | None:
        raise Died

    first = three.performer()
    first.leave = die
    with pytest.raises(Died):
        first.perform(three.begin(step(LEAVE, 2)))
    left = three.store.change(GROUP)
    assert left is not None
    assert left.detail["leaving"] == {"2": [three.slots()[2].token, member]}
    # Somebody's mistake meanwhile: the slot names another member now.
    adopted = three.store.adopt(left, actor="bob")
    assert adopted is not None
    change = three.performer().perform(adopted)
    assert three.coordinator.leaves == [[("g-2", member)]]
    assert (change.state, change.receipts[0].verdict) == (ChangeState.DONE, Verdict.EQUAL)


def test_who_took_the_slot_since_is_not_named(three: Stage):
    """The workers completed the leave, the slot was opened and taken again: a living member."""
    taken: list[str] = []

    def again() -> None:
        gate = three.store.gate(GROUP)
        three.store.write_gate(replace(gate, leaving=frozenset()))
        slot = three.slots()[2]
        new = three.store.take(slot, worker="new", revision="r1", spark_session=None)
        assert new is not None
        assert three.store.renew(replace(new, member_id="living", phase=Phase.ACTIVE))
        three.coordinator.join("g-2", "living")
        taken.append("living")

    advance = three.store.advance

    def remembering(change):
        stored = advance(change)
        if "leaving" in change.detail and not taken:
            again()
        return stored

    three.store.advance = remembering
    three.carry_out(step(LEAVE, 2))
    assert taken
    assert three.coordinator.leaves == []
    assert three.coordinator.members["g-2"] == "living"
    assert three.slots()[2].holder == "new"


def test_the_change_of_a_living_manager_is_left_to_it(three: Stage):
    """It renews now and then: nobody adopts its change, and nobody begins another."""
    change = three.begin(step(LEAVE, 2))
    renewed = three.clock.at
    turn = three.clock.on_turn

    def renewing() -> None:
        nonlocal renewed
        turn()
        if three.clock.at - renewed > 0.9 * LEASE:
            renewed = three.clock.at
            three.store.advance(change)

    three.clock.on_turn = renewing
    other = Changing(
        group=GROUP,
        store=three.store,
        clock=three.clock,
        lease=LEASE,
        perform=lambda adopted, _: adopted,
    )
    for act in (
        lambda: other.resume(actor="bob", progress=three.said.append),
        lambda: other.abort(actor="bob"),
        lambda: other.begin(change.plan, actor="bob", progress=three.said.append),
    ):
        with pytest.raises(Refused, match="ann is changing group g"):
            act()
    stored = three.store.change(GROUP)
    assert stored is not None
    assert (stored.actor, stored.token) == ("ann", change.token)


def test_a_silent_managers_change_is_carried_on(three: Stage):
    """From the step that it stands at, by whoever has watched it for a lease."""
    three.begin(step(LEAVE, 2))
    other = Changing(
        group=GROUP,
        store=three.store,
        clock=three.clock,
        lease=LEASE,
        perform=lambda adopted, _: three.performer().perform(adopted),
    )
    change = other.resume(actor="bob", progress=three.said.append)
    assert change is not None
    assert (change.state, change.actor) == (ChangeState.DONE, "bob")
    assert three.store.gate(GROUP).open == {0, 1}


def test_an_aborted_roll_takes_its_pins_back(three: Stage):
    """What has not moved yet stays where it is."""
    change = three.begin(step(ROLL, 0, 1, 2, revision="r2", price=0))
    gate = three.store.gate(GROUP)
    asks = {0: Handover(token=99, revision="r2")}
    assert three.store.write_gate(replace(gate, handover=asks), by=change)
    other = Changing(
        group=GROUP,
        store=three.store,
        clock=three.clock,
        lease=LEASE,
        perform=lambda adopted, _: adopted,
    )
    assert other.abort(actor="bob") is not None
    assert three.store.gate(GROUP).handover == {}
