"""New code slot by slot: the canary first, the rest behind it, and the way back [22]."""

from dataclasses import replace

import pytest

from fleet.act.runtime import RolloutStatus
from fleet.model import StepKind
from fleet.slots import ChangeState, Handover, Phase
from tests.acting.standbys import GROUP, LEASE, Behaviour
from tests.support.declared import group_spec, settings_of
from tests.support.plans import TWO, step_of

ROLL = StepKind.ROLL


def pinned(here) -> list[list[int]]:
    """Which slots were pinned, at each write of the slot targets."""
    written: list[list[int]] = []
    write = here.store.write_targets

    def seen(targets, **by):
        written.append(sorted(targets.handover))
        return write(targets, **by)

    here.store.write_targets = seen
    return written


def test_a_roll_costs_nothing_and_goes_one_by_one(scene):
    """The canary alone, then as many at once as are allowed; no pin stays, the old go."""
    here = scene(rollout={"max_parallel": 2})
    here.running(4)
    old = {s.owner for s in here.slots()}
    asked = pinned(here)
    done = here.perform(step_of(ROLL, range(4)))
    assert done.state is ChangeState.DONE, done.sentence
    assert here.revisions() == ["new"] * 4
    assert [r.rebalances for r in done.receipts] == [0]
    assert [pins for pins in asked if pins] == [[0], [1, 2], [3]]
    assert here.targets().handover == {}
    assert old <= set(here.crowd.removed)
    assert not [w for w in here.crowd.people.values() if w.wanted and w.revision == "old"]
    owners = {s.owner for s in here.slots()}
    assert not owners & set(here.crowd.removed)


def test_the_canary_has_to_commit(scene):
    """Three batches, or a while without data and without error: until then no other moves."""
    here = scene(rollout={"bake": 60, "canary_batches": 20})
    here.running(2)
    seen: list[int] = []
    turn = here.clock.turn

    def watch():
        turn()
        if here.slots()[0].revision == "new" and here.slots()[1].revision == "old":
            seen.append(here.slots()[0].batches)

    here.clock.turn = watch
    assert here.perform(step_of(ROLL, (0, 1))).state is ChangeState.DONE
    assert max(seen) >= 20


@pytest.mark.parametrize("which", [0, 1], ids=["canary", "another"])
@pytest.mark.parametrize("back", [True, False])
def test_a_slot_does_not_wait_for_a_revision_that_is_gone(scene, which, back):
    """A standby of the old one serves it after a lease; the roll goes on when the new is back."""
    here = scene(rollout={"max_parallel": 1})
    here.running(2)
    here.crowd.start(GROUP, "old", 2)  # kept for the way back
    gone: list[float] = []
    silent: list[float] = []
    turn = here.clock.turn

    def watch():
        now = here.clock.monotonic()
        asked = here.targets().handover.get(which)
        if asked is not None and not gone:
            gone.append(now)
            if not back:
                here.crowd.room = 0
                here.like("new", warm_after=1e9)
            for each in here.crowd.people.values():
                if each.revision == "new" and each.slot is None:
                    each.wanted = each.alive = False
            if back:
                here.crowd.start(GROUP, "new", 2)
                here.like("new", warm_after=40.0)
        turn()
        if here.slots()[which].owner is None:
            silent.append(now)

    here.clock.turn = watch
    done = here.perform(step_of(ROLL, (0, 1)))
    assert gone
    assert max(silent, default=gone[0]) - gone[0] < 30
    assert here.slots()[which].phase is Phase.ACTIVE
    if back:
        assert done.state is ChangeState.DONE, done.sentence
        assert here.revisions() == ["new"] * 2
    else:
        assert done.state is (ChangeState.FAILED if which else ChangeState.ROLLED_BACK)
        assert here.revisions() == (["new", "old"] if which else ["old", "old"])


def test_a_canary_without_data_passes_after_a_while(scene):
    """Nothing to read is no error."""
    here = scene(rollout={"bake": 30})
    here.running(1)
    here.like("new", commits=False)
    began = here.clock.now()
    assert here.perform(step_of(ROLL, (0,))).state is ChangeState.DONE
    assert here.clock.now() - began >= 30


@pytest.mark.parametrize("ends_well", [True, False])
@pytest.mark.parametrize("worker", [{}, {"membership": "dynamic"}])
def test_a_batch_in_hand_is_waited_for_however_long_it_takes(scene, worker, ends_well):
    """It came to an idle canary, and outlives `bake`: what it comes to is the proof."""
    here = scene(worker=worker, rollout={"bake": 10})
    here.running(1)
    fails = None if ends_well else "no such column"
    here.like("new", late_batch=(5.0, 90.0), error=fails)
    began = here.clock.monotonic()
    slots, expected_cost = ((0, 1), {"expected_cost": TWO}) if worker else ((0,), {})
    done = here.perform(step_of(ROLL, slots, **expected_cost))
    assert here.clock.monotonic() - began >= 90
    assert done.state is (ChangeState.DONE if ends_well else ChangeState.ROLLED_BACK)


def test_a_canary_that_fails_goes_back(scene):
    """The others never moved; what failed is removed, what worked has its slot and its standby."""
    here = scene()
    here.running(3)
    here.like("new", error="no such column")
    before = here.slots()
    done = here.perform(step_of(ROLL, range(3)))
    assert done.state is ChangeState.ROLLED_BACK
    assert "no such column" in done.sentence
    assert here.revisions() == ["old"] * 3
    assert [s.token for s in here.slots()[1:]] == [s.token for s in before[1:]]
    assert here.targets().handover == {}
    assert not [w for w in here.crowd.people.values() if w.wanted and w.revision == "new"]
    spare = [w for w in here.crowd.people.values() if w.wanted and w.slot is None]
    assert [w.revision for w in spare] == ["old"]
    assert len(done.receipts) == 1


@pytest.mark.parametrize(
    ("works", "old", "new", "state"),
    [
        (True, "t-3, t-5: no leader (5)", "t-4: no leader (7)", ChangeState.DONE),
        (True, None, "t-4: no leader (7)", ChangeState.ROLLED_BACK),
        (True, "t-3: no leader (5)", "no such column", ChangeState.ROLLED_BACK),
        (False, "no answer in 5 s", "no answer in 7 s", ChangeState.ROLLED_BACK),
    ],
)
def test_a_canary_is_not_blamed_for_what_was_there_before(scene, works, old, new, state):
    """What the old revision tells as well; whether it works all the same is another question."""
    here = scene()
    here.like("old", error=old)
    here.running(2)
    here.clock.sleep(1)
    here.like("new", error=new, first_batch=0 if works else 1e9)
    if not works:
        hold = here.crowd.hold

        def tells(who, how, joining):
            hold(who, how, joining)
            if who.revision == "new" and who.slot is not None:
                here.crowd.renew(who, error=new)

        here.crowd.hold = tells
    done = here.perform(step_of(ROLL, (0, 1)))
    assert done.state is state, done.sentence
    assert (state is ChangeState.DONE) == (here.revisions() == ["new", "new"])
    assert works or "the old revision has the same error" in done.sentence


def test_a_canary_that_dies_goes_back(scene):
    """It holds the slot, and renews no more [13]."""
    here = scene()
    here.running(1)
    turn = here.clock.turn

    def kills():
        turn()
        for worker in here.crowd.people.values():
            if worker.revision == "new" and worker.slot is not None:
                worker.alive = False

    here.clock.turn = kills
    done = here.perform(step_of(ROLL, (0,)))
    assert done.state in {ChangeState.ROLLED_BACK, ChangeState.FAILED}
    assert "died as the canary" in " ".join([*here.told, done.sentence])


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"ends": 5}, "stopped 5 times before it was warm"),
        ({"warm_after": 1e9}, "waiting for 1 warm standby of revision new"),
    ],
)
def test_code_that_never_gets_warm_touches_nothing(scene, how, why):
    """Its workers go again; no slot was asked for."""
    here = scene()
    here.running(2)
    here.like("new", **how)
    asked = pinned(here)
    done = here.perform(step_of(ROLL, (0, 1)))
    assert done.state is ChangeState.ROLLED_BACK
    assert why in done.sentence
    assert not [pins for pins in asked if pins]
    assert here.revisions() == ["old", "old"]
    assert not [w for w in here.crowd.people.values() if w.wanted and w.revision == "new"]


def test_a_later_slot_that_fails_ends_the_roll_where_it_stands(scene):
    """Only the canary goes back: what has been proven goes on, and nobody's pin is left."""
    here = scene()
    here.running(2)
    owner = here.slots()[1].owner
    live = here.crowd.live

    def stuck(who, joining):
        if who.name != owner or not here.targets().handover:
            live(who, joining)
        elif who.slot is not None:
            here.crowd.renew(who)

    here.crowd.live = stuck
    done = here.perform(step_of(ROLL, (0, 1)))
    assert done.state is ChangeState.FAILED
    assert "the handover of slot 1" in done.sentence
    assert here.revisions() == ["new", "old"]
    assert here.targets().handover == {}


def frozen_at(here, when) -> list[float]:
    """Freeze every standby of the new revision at that look; how long slots were free, at most."""
    free: list[float] = []
    turn, since = here.clock.turn, {}

    def look():
        if when():
            for worker in here.crowd.people.values():
                worker.frozen |= worker.revision == "new" and worker.slot is None
        turn()
        for slot in here.slots():
            if slot.owner is None and slot.number in here.targets().open:
                free.append(
                    here.clock.monotonic() - since.setdefault(slot.number, here.clock.monotonic())
                )
            else:
                since.pop(slot.number, None)

    here.clock.turn = look
    return free


def test_a_standby_that_is_frozen_is_not_waited_for(scene):
    """Its process runs, and its last report says that it is warm: another one is started first."""
    here = scene(rollout={"bake": 60, "canary_batches": 80})
    here.running(2)
    here.like("new", warm_after=3.0)
    free = frozen_at(here, lambda: 0 < here.slots()[0].batches < 9 and here.revisions()[0] == "new")
    ended = here.perform(step_of(ROLL, (0, 1)))
    assert ended.state is ChangeState.DONE, ended.sentence
    assert here.revisions() == ["new", "new"]
    assert [w for w in here.crowd.people.values() if w.frozen]
    assert max(free, default=0.0) < 1.0
    assert not [w for w in here.crowd.people.values() if w.frozen and w.wanted]


@pytest.mark.parametrize("slot", [0, 1])
def test_a_slot_that_no_standby_takes_goes_back_to_what_it_ran(scene, slot):
    """Frozen just after it answered: the slot is asked for again once another one is warm."""
    here = scene()
    here.running(2)
    done = []

    def due():
        asked = here.targets().handover.get(slot)
        if done or asked is None or asked.revision != "new":
            return False
        done.append(1)
        return True

    free = frozen_at(here, due)
    ended = here.perform(step_of(ROLL, (0, 1)))
    assert done
    assert ended.state is ChangeState.DONE, ended.sentence
    assert here.revisions() == ["new", "new"]
    assert 3.0 < max(free) < LEASE / 3 + 1
    assert f"no standby took slot {slot}" in " ".join(here.told)
    assert here.targets().handover == {}


def test_standbys_that_freeze_each_time_end_the_roll(scene):
    """What ran goes on: it is not the revision's fault."""
    here = scene()
    here.running(2)
    free = frozen_at(
        here, lambda: any(p.revision == "new" for p in here.targets().handover.values())
    )
    ended = here.perform(step_of(ROLL, (0, 1)))
    assert ended.state is not ChangeState.DONE
    assert "no standby of revision new took slot 0" in ended.sentence
    assert here.revisions() == ["old", "old"]
    assert all(s.owner for s in here.slots())
    assert max(free) < LEASE / 3 + 1


def three_of_five(here):
    """A roll that was cut off where three slots had been handed over."""
    here.running(5)
    begun = here.begin(step_of(ROLL, range(5)))
    three = ["new", "new", "new", "old", "old"]
    return here.killed_when(
        begun, lambda: here.revisions() == three and not here.targets().handover
    )


def test_a_roll_is_carried_on(scene):
    """Slots that were handed over since it began are not asked again; nor is there a canary."""
    here = scene()
    adopted = three_of_five(here)
    tokens = [s.token for s in here.slots()]
    done = here.performer().perform(adopted)
    assert done.state is ChangeState.DONE, done.sentence
    assert [s.token for s in here.slots()][:3] == tokens[:3]
    assert here.revisions() == ["new"] * 5
    assert not [line for line in here.told if "canary" in line]


def test_a_slot_that_fails_after_a_resumed_canary_takes_nobody_else_away(scene):
    """A sink that is away for one slot's first batches is that slot's trouble."""
    here = scene()
    adopted = three_of_five(here)
    before = [(s.owner, s.token) for s in here.slots()]
    hold = here.crowd.hold

    def unhealthy(who, how, joining):
        first = who.slot.number == 3 and who.revision == "new"
        hold(who, replace(how, error="sink is away", commits=False) if first else how, joining)

    here.crowd.hold = unhealthy
    here.performer().perform(adopted)
    assert [(s.owner, s.token) for s in here.slots()][:3] == before[:3]
    assert not {owner for owner, _ in before[:3]} & set(here.crowd.removed)


@pytest.mark.parametrize("fails", [False, True])
def test_a_canary_that_was_not_proven_is_proven_by_whoever_carries_on(scene, fails):
    """It holds its slot already: it still has to commit before any other is asked."""
    here = scene()
    here.running(3)
    here.crowd.like["new"] = Behaviour(commits=False)
    begun = here.begin(step_of(ROLL, range(3)))

    def waits() -> bool:
        return any(line.startswith("  canary: slot 0 must commit") for line in here.told)

    adopted = here.killed_when(begun, waits)
    assert here.revisions() == ["new", "old", "old"]
    here.crowd.like["new"] = (
        Behaviour(error="sink is away", commits=False) if fails else Behaviour()
    )
    token = here.slots()[0].token
    done = here.performer().perform(adopted)
    assert fails or waits()
    assert done.state is (ChangeState.ROLLED_BACK if fails else ChangeState.DONE), done.sentence
    assert here.revisions() == ["old" if fails else "new"] * 3
    assert fails or here.slots()[0].token == token


def test_a_slot_that_runs_it_already_is_handed_over_all_the_same(scene):
    """A forced roll: what counts is who took it since the step began."""
    here = scene()
    here.running(1, "new")
    before = here.slots()[0]
    done = here.perform(step_of(ROLL, (0,)))
    assert done.state is ChangeState.DONE, done.sentence
    assert here.slots()[0].token > before.token
    assert here.slots()[0].owner != before.owner


def test_others_pins_stay(scene):
    """A step takes back its own asks alone."""
    here = scene()
    here.running(2)
    external = Handover(token=99, revision="x")
    here.store.write_targets(replace(here.targets(), handover={7: external}))
    assert here.perform(step_of(ROLL, (0, 1))).state is ChangeState.DONE
    assert here.targets().handover == {7: external}


@pytest.mark.parametrize("slots", [(0, 1, 2), (2,)])
def test_a_resumed_roll_of_static_members_is_none_of_dynamic_ones(scene, slots):
    """fleet.yaml says `membership: dynamic` by then: not of the workers of this plan."""
    here = scene()
    here.running(3)
    begun = here.begin(step_of(ROLL, slots))
    kept = settings_of(group_spec(GROUP), revision="new").model_dump_json()
    here.crowd.published = lambda group, revision: kept
    here.spec = group_spec(
        GROUP,
        worker={"membership": "dynamic"},
        replicas=here.spec.replicas.model_dump(),
        rollout=here.spec.rollout.model_dump(),
    )
    away: list[int] = []
    turn = here.clock.turn

    def watch():
        turn()
        away.append(3 - len(here.targets().open))

    here.clock.turn = watch
    adopted = here.store.adopt(begun, actor="next")
    done = here.performer().perform(adopted)
    assert done.state is ChangeState.DONE, done.sentence
    assert max(away) == 0, "no slot was shut"
    assert here.crowd.left == []
    assert [s.revision for s in here.slots() if s.number in slots] == ["new"] * len(slots)


@pytest.mark.parametrize("kind", [StepKind.OPEN, ROLL])
def test_a_first_batch_may_take_as_long_as_a_batch_may(scene, kind):
    """A job of minutes a batch: its members had joined, and each change of it failed, each roll
    was rolled back.
    """
    here = scene()
    if kind is ROLL:
        here.running(2)
    here.like("new", first_batch=200.0)
    slots = (0, 1)
    done = here.perform(step_of(kind, slots, "new"))
    assert done.state is ChangeState.DONE, done.sentence
    assert {slot.revision for slot in here.slots() if slot.number in slots} == {"new"}
    assert any("joined; first batches may take up to 4 min" in told for told in here.told)


@pytest.mark.parametrize(("how", "limit"), [({"joins": False}, 120), ({"first_batch": 500}, 390)])
def test_who_does_not_join_or_hangs_in_its_first_batch_ends_a_change(scene, how, limit):
    """A drain and 90 s to join; then what a batch may take."""
    here = scene()
    here.like("new", **how)
    began = here.clock.monotonic()
    done = here.perform(step_of(StepKind.OPEN, (0, 1), "new"))
    assert done.state is ChangeState.FAILED
    assert f"timed out after {limit} s waiting for slots 0-1 to become active" in done.sentence
    assert limit <= here.clock.monotonic() - began < limit + 20


def test_an_old_owner_that_does_not_let_go_is_no_first_batch(scene):
    """It joined long ago, and its lease is renewed: that is no reason to wait longer."""
    here = scene()
    here.running(1)
    release, renew = here.crowd.release, here.crowd.renew
    here.crowd.release = lambda who: renew(who) if who.revision == "old" else release(who)
    began = here.clock.monotonic()
    done = here.perform(step_of(ROLL, (0,), "new"))
    assert done.state is ChangeState.ROLLED_BACK, done.sentence
    assert here.clock.monotonic() - began < 200


class Deployment:
    """Replaces old workers once a worker of the new revision is warm, one at each look."""

    def __init__(self, here, *, stalls: str | None = None) -> None:
        self.crowd, self.stalls = here.crowd, stalls
        self.back = False

    def __call__(self, revision: str) -> RolloutStatus:
        wanted = [w for w in self.crowd.people.values() if w.wanted]
        old = [w for w in wanted if w.revision == "old"]
        new = [w for w in wanted if w.revision == "new"]
        if self.stalls is None and new and all(w.phase in {"standby", "active"} for w in new):
            owners_last = sorted(old, key=lambda w: w.slot is not None)
            self.crowd.remove([w.name for w in owners_last[:1]], grace=1.0)
            if old[1:]:
                self.crowd.start(GROUP, "new", 1)
        complete = not [w for w in self.crowd.people.values() if w.revision == "old" and w.slot]
        return RolloutStatus(complete=complete and not old, stalled=self.stalls)


def test_a_deployment_rolls_the_rest_by_itself(scene):
    """One canary is handed over; no other slot is asked for, and no pin stays."""
    here = scene()
    here.running(4)
    here.crowd.deployment = Deployment(here)
    asked = pinned(here)
    done = here.perform(step_of(ROLL, range(4)))
    assert done.state is ChangeState.DONE, done.sentence
    assert here.revisions() == ["new"] * 4
    assert [r.rebalances for r in done.receipts] == [0]
    assert [pins for pins in asked if pins] == [[0]]
    assert here.targets().handover == {}


def test_a_deployment_that_stands_still_goes_back(scene):
    """After the canary: all workers of the new revision are removed, and the old serve again."""
    here = scene()
    here.running(3)
    here.crowd.deployment = Deployment(here, stalls="it has timed out progressing")
    done = here.perform(step_of(ROLL, range(3)))
    assert done.state is ChangeState.ROLLED_BACK
    assert done.sentence == "it has timed out progressing; all slots run old again"
    assert here.revisions() == ["old"] * 3
    assert not [w for w in here.crowd.people.values() if w.wanted and w.revision == "new"]


def test_going_back_is_carried_on(scene):
    """The next manager goes back as well, whatever the Deployment says by then."""
    here = scene()
    here.running(3)
    here.crowd.deployment = Deployment(here, stalls="it has timed out progressing")
    change = here.begin(step_of(ROLL, range(3)))
    said = "all slots go back"
    adopted = here.killed_when(change, lambda: any(said in each for each in here.told))
    here.crowd.deployment = Deployment(here)
    done = here.performer().perform(adopted)
    assert done.state is ChangeState.ROLLED_BACK, done.sentence
    assert here.revisions() == ["old"] * 3


def test_a_slot_that_nobody_takes_ends_the_wait(scene):
    """The Deployment has rolled out, and a slot is quarantined meanwhile."""
    here = scene()
    here.running(2)
    here.crowd.deployment = lambda _: RolloutStatus(complete=True)
    done = here.perform(step_of(ROLL, range(2)))
    assert done.state is ChangeState.FAILED
    assert "no worker of revision new took slot 1 within" in done.sentence


def test_a_roll_of_the_same_revision_is_the_managers(scene):
    """`fleet roll` of unchanged code: the template is the same, so a Deployment does nothing."""
    here = scene()
    here.running(2)
    here.crowd.deployment = lambda _: RolloutStatus(complete=True)
    before = [s.owner for s in here.slots()]
    done = here.perform(step_of(ROLL, (0, 1), "old"), revision="old")
    assert done.state is ChangeState.DONE, done.sentence
    assert not set(before) & {s.owner for s in here.slots()}
