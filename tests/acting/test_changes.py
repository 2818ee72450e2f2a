"""A living manager's change is refused to everybody else, a dead one's is carried on."""

import threading
from dataclasses import replace

import pytest

from fleet.act.change import GroupChanges
from fleet.act.lease import ChangeLease
from fleet.act.steps.handover import HandoverMemory
from fleet.act.steps.work import StepStart
from fleet.errors import LostLease, Refused, Unreachable
from fleet.model import StepKind
from fleet.slots import Change, ChangeState, Handover, Phase, SlotTargets
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


def test_a_pause_holds_who_waits_for_a_dead_managers_lease(scene):
    """Set while the lease was waited out; the change stays where it stands, and is nobody's."""
    here = scene()
    left = here.begin(step_of(StepKind.OPEN, (0,)))
    began = here.clock.monotonic()

    def held() -> str:
        late = here.clock.monotonic() - began > LEASE / 2
        return "orders is paused by ann (incident 4711)" if late else ""

    with pytest.raises(Refused, match=r"a1 left .* paused by ann .*`fleet apply orders --abort`"):
        changing(here).resume(actor="bob", progress=here.told.append, pause_check=held)
    assert here.clock.monotonic() - began >= LEASE
    assert here.store.change(GROUP) == left


@pytest.mark.parametrize("ask", ["resume", "abort"])
@pytest.mark.parametrize(
    ("seconds", "told"), [(0.0, "the disk is full"), (4.0, "takes too long")], ids=["full", "slow"]
)
def test_who_cannot_write_is_told_so(scene, ask, seconds, told):
    """A store that is only read proves nobody dead, however long: it is said why, in time, and
    nothing is taken over.
    """
    here = scene()
    change = here.begin(step_of(StepKind.OPEN, (0,)))

    def beat(group: str) -> None:
        with here.store.writes.track() as write:
            here.clock.sleep(seconds)
            write.stored, write.refused = bool(seconds), not seconds
            if write.refused:
                raise Unreachable("the disk is full")

    here.store.beat, began = beat, here.clock.monotonic()
    enough = iter(range(1000))
    here.clock.turn = lambda: next(enough)
    made = changing(here)
    asked = {
        "resume": lambda: made.resume(actor="bob", progress=here.told.append),
        "abort": lambda: made.abort(actor="bob"),
    }[ask]
    with pytest.raises(Unreachable, match=f"cannot tell whether a1 .* group orders.*{told}"):
        asked()
    assert 3 * LEASE <= here.clock.monotonic() - began <= 5 * LEASE
    assert here.store.change(GROUP) == change


def test_writes_that_go_through_again_prove_it(scene):
    """Refused for two leases: the actor has another one to renew in, and is dead then."""
    here = scene()
    here.begin(step_of(StepKind.OPEN, (0,)))
    through, began = here.store.beat, here.clock.monotonic()

    def beat(group: str) -> None:
        if here.clock.monotonic() - began < 2 * LEASE:
            with here.store.writes.track() as write:
                write.refused = True
                raise Unreachable("the disk is full")
        through(group)

    here.store.beat = beat
    done = changing(here).resume(actor="bob", progress=here.told.append)
    assert done is not None
    assert done.actor == "bob"
    assert here.clock.monotonic() - began >= 3 * LEASE


def test_what_is_closed_already_goes_on_to_leave(scene):
    """An abort takes back what has not moved yet; any live worker completes the rest [21]."""
    here = scene()
    here.store.write_targets(SlotTargets(group=GROUP, open=frozenset({0, 1, 2})))
    for number in (0, 1):
        held = here.store.take(
            here.slots()[number], worker=f"w{number}", revision="old", spark_session=None
        )
        assert held is not None
        if number == 1:
            assert here.store.renew(replace(held, phase=Phase.CLOSED))
    here.begin(step_of(StepKind.LEAVE, (0, 1)))
    asks = {2: Handover(token=1, revision="new")}
    here.store.write_targets(
        replace(here.targets(), leaving=frozenset({0, 1}), handover=asks, rejoin={2: 1})
    )
    aborted = changing(here).abort(actor="bob")
    assert aborted is not None
    assert aborted.state is ChangeState.ABORTED
    assert here.targets().leaving == {1}
    assert (here.targets().handover, here.targets().rejoin) == ({}, {})


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


# --- the change's own lease, renewed beside the work ------------------------------------------


def test_a_silent_store_ends_no_renewing(scene):
    """It answers again before the lease is over [12]."""
    here = scene()
    change = here.begin(step_of(StepKind.OPEN, (0,)))
    advance, again = here.store.advance, threading.Event()
    failures = [2]

    def silent(change):
        if failures[0]:
            failures[0] -= 1
            raise Unreachable("nobody answers")
        again.set()
        return advance(change)

    here.store.advance = silent
    with ChangeLease(here.store, change, lease=0.03) as lease:
        assert again.wait(120)
        lease.check()
    assert here.store.change("orders").counter > 0


def test_a_loss_is_told_at_every_check(scene):
    """Whoever waits for something else learns it, though nothing is written."""
    here = scene()
    change = here.begin(step_of(StepKind.OPEN, (0,)))
    with ChangeLease(here.store, change, lease=1e6) as lease:
        lease.check()
        assert here.store.adopt(here.store.change("orders"), actor="next")
        with pytest.raises(LostLease):
            lease.remember(StepStart(position=1))
        with pytest.raises(LostLease):
            lease.check()
        with pytest.raises(LostLease):
            lease.update(step=1)
    assert here.store.change("orders").actor == "next"


def test_a_lease_that_is_kept_no_more_ends_the_work(scene):
    """For whatever reason: it would go on changing a group that another one may adopt [40]."""
    here = scene()
    change = here.begin(step_of(StepKind.OPEN, (0,)))
    advance, main = here.store.advance, threading.current_thread()
    failed = threading.Event()

    def failing(seen):
        if threading.current_thread() is not main:
            failed.set()
            raise ZeroDivisionError("a bug of ours")
        return advance(seen)

    here.store.advance = failing
    with ChangeLease(here.store, change, lease=0.03) as lease:
        assert failed.wait(120)
        lease._thread.join(5.0)
        with pytest.raises(LostLease, match="a bug of ours"):
            lease.check()
        with pytest.raises(LostLease):
            lease.remember(StepStart(position=1))


# --- a forced rebalance whose actor dies -----------------------------------------------------


class Killed(BaseException):
    """The actor ends where it stands."""


def killed_at(here, number: int) -> bool:
    """Whether a forced rebalance has more than so many writes: its actor dies at the next one.

    The owner goes on meanwhile, and the next actor carries the change on.
    """
    begun = here.begin(step_of(StepKind.REJOIN, (0,), "old"), revision="old")
    store, left = here.opened(), [number]

    def dying(write):
        def written(*args, **keywords):
            if not left[0]:
                raise Killed
            left[0] -= 1
            return write(*args, **keywords)

        return written

    store.advance, store.write_targets = dying(store.advance), dying(store.write_targets)
    actors = here.performer()
    actors.store = store
    try:
        actors.perform(begun)
    except Killed:
        for _ in range(120):
            here.clock.sleep(0.1)
        adopted = here.store.adopt(here.store.change(GROUP), actor="next")
        assert here.performer().perform(adopted).state is ChangeState.DONE
        return True
    return False


def test_a_forced_rebalance_is_asked_for_once_whenever_its_actor_dies(scene):
    """Between any two of its writes: the owner may have answered before the next actor looks."""
    number, more = 0, True
    while more:
        here = scene()
        here.running(2)
        before = len(here.crowd.generations)
        more = killed_at(here, number)
        assert len(here.crowd.generations) - before == 1, f"killed at write {number}"
        assert [r.rebalances for r in here.store.change(GROUP).receipts] == [1], (
            f"at write {number}"
        )
        number += 1
    assert number > 4


def asked_before(here, **remembered: int) -> int:
    """Generations of a step whose former actor has remembered this."""
    begun = here.begin(step_of(StepKind.REJOIN, (0,), "old"), revision="old")
    before = len(here.crowd.generations)
    here.performer().perform(here.store.advance(replace(begun, detail=remembered)))
    return len(here.crowd.generations) - before


def test_what_was_not_asked_yet_is_asked(scene):
    """Its actor died before it wrote the slot targets, and somebody else has written it since."""
    here = scene()
    here.running(2)
    token, version = here.slots()[0].token, here.targets().version
    assert here.store.write_targets(replace(here.targets(), quarantined=frozenset({8})))
    assert asked_before(here, asked=token, version=version) == 1


def test_what_the_owner_asked_by_itself_is_not_asked_again(scene):
    """Partitions without an owner: its rebalance is the one that was wanted."""
    here = scene()
    here.running(2)
    before = len(here.crowd.generations)
    asks = {0: here.slots()[0].token}
    assert here.store.write_targets(replace(here.targets(), rejoin=asks))
    killed_at(here, 2)
    assert len(here.crowd.generations) - before == 1


# --- A step's memory --------------------------------------------------------------------------


BEGUN = {"started_at": 99.5, "position": 42, "members": ["m-1"]}


def test_what_a_step_does_not_know_stays(scene) -> None:
    """Other kinds' keys, and those of a release that knows more."""
    here = scene()
    stored = {**BEGUN, "colour": "green", "tokens": {"0": 2}}
    change = here.store.advance(replace(here.begin(step_of(StepKind.ROLL, (0,))), detail=stored))
    with ChangeLease(here.store, change, lease=1e6) as lease:
        assert lease.recall(HandoverMemory) == HandoverMemory(tokens={0: 2})
        lease.remember(HandoverMemory(canary=0))
    assert here.store.change("orders").detail == {**stored, "canary": 0}


def test_a_memory_in_another_form_ends_the_change(scene) -> None:
    """Of a release that is not the next one: nothing is guessed, and a person is told."""
    here = scene()
    change = replace(here.begin(step_of(StepKind.OPEN, (0,))), detail={"members": {"0": "m"}})
    done = here.performer().perform(here.store.advance(change))
    assert done.state is ChangeState.FAILED
    assert "this release cannot read the memory" in done.sentence
    assert here.targets().open == frozenset()
