"""A change from its first step to its end, and what is held, adopted or given up on the way."""

from dataclasses import replace

import pytest

from fleet.errors import LostLease, Unreachable
from fleet.model import ExpectedCost, GroupState, ReceiptResult, StepKind
from fleet.slots import ChangeState, Phase
from tests.acting.standbys import GROUP, LEASE
from tests.support.plans import FREE, TWO, step_of

OPEN, LEAVE, ROLL, REJOIN, WARM, STOP = (
    StepKind.OPEN,
    StepKind.LEAVE,
    StepKind.ROLL,
    StepKind.REJOIN,
    StepKind.WARM,
    StepKind.STOP_ALL,
)


# --- opening --------------------------------------------------------------------------------


def test_slots_open_together(scene):
    """One write of the slot targets, far enough ahead, once all that join are warm: one
    rebalance [19].
    """
    here = scene()
    written = []
    write = here.store.write_targets

    def seen(targets, **by):
        warm = sum(w.phase == "standby" for w in here.crowd.people.values())
        written.append((sorted(targets.open), targets.open_at - here.clock.now(), warm))
        return write(targets, **by)

    here.store.write_targets = seen
    done = here.perform(step_of(OPEN, range(3)))
    assert done.state is ChangeState.DONE, done.sentence
    (opened, ahead, warm) = written[0]
    assert opened == [0, 1, 2]
    assert ahead >= 1.0
    assert warm == 4, "three that join, and the standby"
    assert [r.rebalances for r in done.receipts] == [1]
    assert "joins were spread over 0.000 s" in done.receipts[0].sentences
    assert {s.phase for s in here.slots()} == {Phase.ACTIVE}


def test_workers_of_a_later_opening_start_with_the_first(scene):
    """Else each opening would wait for its own."""
    here = scene()
    done = here.perform(step_of(OPEN, (0,)), step_of(OPEN, (1, 2)))
    assert done.state is ChangeState.DONE, done.sentence
    assert here.crowd.asked == [4], "three that join, and the standby"
    assert [r.rebalances for r in done.receipts] == [1, 1]


def test_a_step_that_is_done_already_changes_nothing(scene):
    """Performed again it finds everything so."""
    here = scene()
    here.running(3)
    targets = here.targets()
    done = here.perform(step_of(OPEN, range(3), "old", FREE), revision="old")
    assert done.state is ChangeState.DONE, done.sentence
    assert here.targets() == targets
    assert [r.rebalances for r in done.receipts] == [0]


def test_a_receipt_says_where_deleted_commits_go_on(scene):
    """Of the slots that it opened; what others said before is no news."""
    here = scene()
    here.like("old", gap="it goes on at 100")
    here.running(1)
    (owner,) = (slot.owner for slot in here.slots())
    done = here.perform(step_of(OPEN, (0, 1), "old"), revision="old")
    (told,) = (each for each in done.receipts[0].sentences if "it goes on at 100" in each)
    assert owner is not None
    assert not told.startswith(owner)


def test_the_join_window_is_for_several_of_kip_848(scene):
    """Raised before the slot targets, put back when all have joined and after; one alone needs
    none.
    """
    here = scene(worker={"protocol": "consumer"})
    two = ExpectedCost(rebalances_min=0, rebalances_max=2)
    assert here.perform(step_of(OPEN, (0, 1), expected_cost=two)).state is ChangeState.DONE
    assert here.window.said == ["widen", "restore", "restore"]
    here.window.said.clear()
    assert here.perform(step_of(OPEN, (2,), expected_cost=two)).state is ChangeState.DONE
    assert here.window.said == ["restore"], "one that a dead manager left raised"


# --- leaving --------------------------------------------------------------------------------


def test_members_leave_together(scene):
    """All drain, close, then one request names them by both ids; their workers go [16, 21]."""
    here = scene()
    here.running(3)
    owners = {s.number: s.owner for s in here.slots()}
    done = here.perform(step_of(LEAVE, (1, 2), "old"), revision="old")
    assert done.state is ChangeState.DONE, done.sentence
    (request,) = here.crowd.left
    assert request == [(f"orders-{n}", f"m-{owners[n]}") for n in (1, 2)]
    assert (here.targets().open, here.targets().leaving) == ({0}, frozenset())
    gone = here.slots()[1]
    assert (gone.owner, gone.member_id, gone.phase) == (None, None, Phase.FREE)
    assert {owners[1], owners[2]} <= set(here.crowd.removed)
    assert owners[0] not in here.crowd.removed
    assert here.slots()[0].phase is Phase.ACTIVE
    settled = done.receipts[0].settled_s
    assert settled is not None
    assert settled <= 0.1, "since the request, not since they were asked to drain"


def test_no_leave_is_sent_before_all_are_closed(scene):
    """A member that still drains would be evicted with its batch in hand."""
    here = scene()
    here.running(2)
    slow = here.slots()[1].owner
    asked: list[bool] = []
    leave = here.crowd.leave

    def sent(group, members, *, reason):
        asked.append(all(s.phase is Phase.CLOSED for s in here.slots()))
        return leave(group, members, reason=reason)

    here.crowd.leave = sent
    live = here.crowd.live

    def slowly(who, joining):
        if who.name != slow or here.clock.now() > began + 5:
            live(who, joining)

    began = here.clock.now()
    here.crowd.live = slowly
    done = here.perform(step_of(LEAVE, (0, 1), "old"), revision="old")
    assert done.state is ChangeState.DONE, done.sentence
    assert asked == [True]


def test_the_dead_are_not_waited_for_longer_than_a_lease(scene):
    """They are named in the same request [13]."""
    here = scene()
    here.running(2)
    began = here.clock.now()
    here.crowd.people[here.slots()[1].owner].alive = False
    done = here.perform(step_of(LEAVE, (0, 1), "old"), revision="old")
    assert done.state is ChangeState.DONE, done.sentence
    assert [len(request) for request in here.crowd.left] == [2]
    assert here.clock.now() - began >= LEASE


def test_a_refused_leave_fails(scene):
    """Whoever is superseded stays: plan again. The slot targets still say what was wanted."""
    here = scene()
    here.running(2)
    here.crowd.refusal = "orders-1 now belongs to another process"
    done = here.perform(step_of(LEAVE, (1,), "old"), revision="old")
    assert done.state is ChangeState.FAILED
    assert "plan again" in done.sentence
    assert 1 in here.targets().open
    assert here.crowd.rested


# --- rejoining, warming ---------------------------------------------------------------------


def test_a_forced_rebalance_is_asked_for_once(scene):
    """Of the owner that is there; done when it is back."""
    here = scene()
    here.running(2)
    token = here.slots()[0].token
    asked = []
    write = here.store.write_targets
    here.store.write_targets = lambda targets, **by: (
        asked.append(targets.rejoin) or write(targets, **by)
    )
    done = here.perform(step_of(REJOIN, (0,), "old"), revision="old")
    assert done.state is ChangeState.DONE, done.sentence
    assert asked[0] == {0: token}
    assert here.targets().rejoin == {}
    assert [r.rebalances for r in done.receipts] == [1]


def test_standbys_are_made_up_for(scene):
    """For slots without a worker, and as many as are wanted beside."""
    here = scene()
    here.running(2)
    for worker in list(here.crowd.people.values()):
        if worker.slot is None:
            worker.wanted = worker.alive = False
    dead = here.crowd.people[here.slots()[0].owner]
    held = dead.slot
    dead.alive, dead.slot, dead.wanted = False, None, False
    assert held is not None
    assert here.store.release(held, clean=False)
    done = here.perform(step_of(WARM, (), "old"), revision="old")
    assert done.state is ChangeState.DONE, done.sentence
    assert all(s.owner for s in here.slots())
    state = [w for w in here.crowd.people.values() if w.wanted and w.slot is None]
    assert len(state) == 1


def test_making_up_for_workers_does_not_wait_for_a_shut_slot(scene):
    """Nobody may take it."""
    here = scene()
    here.running(2)
    here.store.change_targets(GROUP, lambda targets: replace(targets, quarantined=frozenset({1})))
    held = here.crowd.people[here.slots()[1].owner]
    held.wanted = False
    here.clock.sleep(1)
    assert here.slots()[1].owner is None
    done = here.perform(step_of(WARM, (), "old"), revision="old")
    assert done.state is ChangeState.DONE, done.sentence
    assert len(here.crowd.workers()) == 2, "the owner of slot 0, and the standby"


# --- receipts, settling ---------------------------------------------------------------------


def test_a_receipt_that_differs_holds_what_follows(scene):
    """An expected cost is a promise: the next step would be made on a broken one."""
    here = scene()
    here.running(1)
    dear = step_of(OPEN, (1,), "old", TWO)
    done = here.perform(dear, step_of(OPEN, (2,), "old"), revision="old")
    assert done.state is ChangeState.FAILED
    assert "did not carry out 1 more step" in done.sentence
    assert here.targets().open == {0, 1}
    last = here.perform(step_of(OPEN, (3,), "old", TWO), revision="old")
    assert (last.state, last.receipts[0].result) == (ChangeState.DONE, ReceiptResult.DIFFERS)


def test_a_group_is_settled_before_it_is_counted(scene):
    """A second round that comes within a heartbeat and two seconds belongs to the step [25]."""
    here = scene(worker={"heartbeat_interval": "3s"})
    here.running(1)
    late = []

    def second_round():
        here.crowd.turn()
        joined = [w for w in here.crowd.people.values() if w.slot and w.slot.number == 1]
        if joined and joined[0].phase == "active":
            late.append(here.clock.now())
            if here.clock.now() - late[0] >= 4.0 and len(here.crowd.generations) == 2:
                here.crowd.generation()

    here.clock.turn = second_round
    two = ExpectedCost(rebalances_min=1, rebalances_max=2)
    done = here.perform(step_of(OPEN, (1,), "old", expected_cost=two), revision="old")
    assert [r.rebalances for r in done.receipts] == [2]


def test_a_group_of_kip_848_is_settled_soon_after_it_is_stable(scene):
    """What comes while it is not counts, however long that is; then no heartbeat is awaited."""
    here = scene(worker={"protocol": "consumer"})
    here.running(1)
    joined: list[float] = []
    stable = []

    def reconciling():
        here.crowd.turn()
        now = here.clock.now()
        if not joined and [w for w in here.crowd.people.values() if w.slot and w.slot.number == 1]:
            joined.append(now)
            here.crowd.stands = GroupState.REBALANCING
        if joined and not stable and now - joined[0] >= 11.0:
            stable.append(now)
            here.crowd.generation()
            here.crowd.stands = GroupState.STABLE

    here.clock.turn = reconciling
    two = ExpectedCost(rebalances_min=1, rebalances_max=2)
    done = here.perform(step_of(OPEN, (1,), "old", expected_cost=two), revision="old")
    assert [r.rebalances for r in done.receipts] == [2]
    assert 2.0 <= here.clock.now() - stable[0] <= 4.0
    (first,) = (w.joined_at for w in here.crowd.people.values() if w.slot and w.slot.number == 1)
    assert done.receipts[0].settled_s == pytest.approx(stable[0] - first, abs=0.1)


def test_a_group_that_never_settles_fails_the_change(scene):
    """It says for what it waited."""
    here = scene()
    here.crowd.stands = GroupState.PREPARING
    done = here.perform(step_of(OPEN, (0,)))
    assert done.state is ChangeState.FAILED
    assert "to settle" in done.sentence


def test_a_broker_that_is_away_is_waited_for(scene):
    """Quiet counts from when it answers again."""
    here = scene()
    away = [5]
    counted = here.crowd.counted

    def counts(group, since):
        if away[0]:
            away[0] -= 1
            raise Unreachable("away")
        return counted(group, since)

    here.crowd.counted = counts
    assert here.perform(step_of(OPEN, (0,))).state is ChangeState.DONE
    assert not away[0]


# --- another manager ------------------------------------------------------------------------


def test_a_change_is_carried_on_from_the_step_it_stands_at(scene):
    """And counts from where its first actor began: what that one moved is in the receipt."""
    here = scene()
    here.running(1)
    begun = here.begin(step_of(OPEN, (1,), "old"), step_of(OPEN, (2,), "old"), revision="old")
    here.crowd.start("orders", "old", 2)

    class Killed(Exception):
        pass

    counted = here.crowd.counted

    def dies(group, since):
        if here.targets().open == {0, 1} and here.slots()[1].phase is Phase.ACTIVE:
            raise Killed
        return counted(group, since)

    here.crowd.counted = dies
    with pytest.raises(Killed):
        here.performer().perform(begun)
    here.crowd.counted = counted
    left = here.store.change("orders")
    assert left is not None
    assert (left.state, left.step) == (ChangeState.RUNNING, 0)
    assert here.targets().open == {0, 1}
    adopted = here.store.adopt(left, actor="next")
    assert adopted is not None
    done = here.performer().perform(adopted)
    assert (done.state, done.actor) == (ChangeState.DONE, "next")
    assert [r.rebalances for r in done.receipts] == [1, 1]
    assert here.targets().open == {0, 1, 2}


@pytest.mark.parametrize("phase", [Phase.ACTIVE, Phase.CLOSED])
def test_who_lost_the_change_stops(scene, phase):
    """However far it was: it ends nothing, writes nothing, leaves the rest to its successor."""
    here = scene()
    here.running(1)
    begun = here.begin(step_of(LEAVE, (0,), "old"), revision="old")
    turn = here.crowd.turn

    def adopted_once():
        left = here.store.change("orders")
        if left.actor != "next" and here.targets().leaving and here.slots()[0].phase is phase:
            here.store.adopt(left, actor="next")

    def adopted_meanwhile():
        adopted_once()
        turn()
        adopted_once()

    here.clock.turn = adopted_meanwhile
    with pytest.raises(LostLease):
        here.performer().perform(begun)
    now = here.store.change("orders")
    assert now is not None
    assert (now.actor, now.state) == ("next", ChangeState.RUNNING)
    assert (here.crowd.left, here.crowd.rested) == ([], 1), "as after `running`"
    assert here.targets().leaving == {0}


def test_who_lost_the_change_opens_nothing(scene):
    """It finds out in the slot targets' own transaction, though it has not renewed since."""
    here = scene()
    begun = here.begin(step_of(OPEN, range(3)))
    turn = here.crowd.turn

    def adopted_meanwhile():
        left = here.store.change("orders")
        if left.actor != "next" and len(here.crowd.people) >= 3:
            here.store.adopt(left, actor="next")
        turn()

    here.clock.turn = adopted_meanwhile
    with pytest.raises(LostLease):
        here.performer().perform(begun)
    assert here.targets().open == frozenset()


def test_words_that_cannot_be_told_end_no_change(scene):
    """The terminal is gone, the disk is full [40]."""
    here = scene()

    def nobody_listens(sentence):
        raise BrokenPipeError(sentence)

    performer = replace(here.performer(), progress=nobody_listens)
    assert performer.perform(here.begin(step_of(OPEN, (0,)))).state is ChangeState.DONE


def test_a_change_that_fails_rests(scene):
    """The window is put back, the runtime does to its end what was asked."""
    here = scene(worker={"protocol": "consumer"})
    here.like("new", warm_after=1e9)
    done = here.perform(step_of(OPEN, (0, 1)))
    assert done.state is ChangeState.FAILED
    assert here.window.said == ["restore"]
    assert here.crowd.rested == 1
    assert done.ended_at == here.clock.now()


def test_the_standbys_of_the_end(scene):
    """As many as are wanted, of the revision that runs; none where nothing is open."""
    here = scene()
    here.running(2)
    here.crowd.start("orders", "old", 3)
    here.clock.sleep(2)
    assert here.perform(step_of(OPEN, (2,), "old"), revision="old").state is ChangeState.DONE
    spare = [w for w in here.crowd.people.values() if w.wanted and w.slot is None]
    assert len(spare) == 1
    done = here.perform(step_of(LEAVE, (0, 1, 2), "old"), revision="old")
    assert done.state is ChangeState.DONE, done.sentence
    assert not [w for w in here.crowd.people.values() if w.wanted]


def test_who_came_after_is_not_named(scene):
    """The one that was seen closed is: between that and the request the slot changed hands [16]."""
    here = scene()
    here.running(2)
    begun = here.begin(step_of(LEAVE, (0, 1), "old"), revision="old")

    class Killed(Exception):
        pass

    leave = here.crowd.leave

    def dies(*_, **__):
        raise Killed

    here.crowd.leave = dies
    with pytest.raises(Killed):
        here.performer().perform(begun)
    here.crowd.leave = leave
    first = here.slots()[0].member_id
    seen = {str(s.number): [s.token, s.member_id] for s in here.slots()}
    assert here.store.change("orders").detail["leaving"] == seen
    asked = here.targets()
    assert here.store.write_targets(replace(asked, leaving=frozenset()))
    taken = here.store.take(here.slots()[1], worker="x", revision="old", spark_session=None)
    assert taken is not None
    assert here.store.renew(replace(taken, member_id="m-x", phase=Phase.CLOSED))
    assert here.store.write_targets(replace(here.targets(), leaving=asked.leaving))
    adopted = here.store.adopt(here.store.change("orders"), actor="next")
    assert adopted is not None
    here.performer().perform(adopted)
    assert here.crowd.left == [[("orders-0", first)]]
    assert here.slots()[1].member_id == "m-x"


def test_a_standby_that_does_not_report_takes_no_slot_that_opens(scene):
    """Its process is stopped: another one is started, before the slots open or after."""
    here = scene()
    here.running(1)
    (spare,) = [w for w in here.crowd.people.values() if w.slot is None]
    spare.frozen = True
    done = here.perform(step_of(OPEN, (1,), "old"), revision="old")
    assert done.state is ChangeState.DONE, done.sentence
    assert here.slots()[1].owner not in {None, spare.name}
    assert not spare.wanted
    turn, done_once = here.clock.turn, list[int]()

    def freezes():
        if here.targets().open == {0, 1, 2} and not done_once:
            done_once.append(1)
            for worker in here.crowd.people.values():
                worker.frozen |= worker.slot is None
        turn()

    here.clock.turn = freezes
    began = here.clock.now()
    done = here.perform(step_of(OPEN, (2,), "old"), revision="old")
    assert done.state is ChangeState.DONE, done.sentence
    assert here.clock.now() - began < 30
