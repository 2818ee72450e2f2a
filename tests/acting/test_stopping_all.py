"""A plan that stops all members and opens again: new workers first, and the way back [23]."""

from dataclasses import replace

import pytest

from fleet.model import StepKind
from fleet.slots import ChangeState, Phase
from tests.acting.standbys import GROUP
from tests.support.plans import step_of

OPEN, STOP = StepKind.OPEN, StepKind.STOP_ALL


def stopping(*, opens=((0, 1),)):
    """A plan that stops two slots and opens them again."""
    return (step_of(STOP, (0, 1), "new"), *(step_of(OPEN, each, "new") for each in opens))


def test_all_stop_before_members_of_another_kind(scene):
    """What ran before goes, and nobody is left."""
    here = scene()
    here.running(2)
    done = here.perform(*stopping())
    assert done.state is ChangeState.DONE, done.sentence
    assert here.revisions() == ["new", "new"]
    assert [r.rebalances for r in done.receipts] == [1, 1]
    assert [w.revision for w in here.crowd.workers() if w.wanted] == ["new"] * 3
    assert here.targets().handover == {}


def test_a_slot_that_is_not_opened_again_is_pinned_to_nothing(scene):
    """Whoever opens it later may run anything."""
    here = scene()
    here.running(2)
    assert here.perform(*stopping(opens=((0,),))).state is ChangeState.DONE
    assert here.targets().handover == {}
    assert here.perform(step_of(OPEN, (1,), "new"), revision="new").state is ChangeState.DONE


def watched(here) -> list[int]:
    """How many slots are held, at each look."""
    held: list[int] = []
    turn = here.clock.turn

    def look():
        turn()
        held.append(sum(s.owner is not None for s in here.slots()))

    here.clock.turn = look
    return held


@pytest.mark.parametrize("ends", [0, 3])
def test_what_never_gets_warm_stops_nobody(scene, ends):
    """The new workers are warm before the old ones leave: else nobody would be there."""
    here = scene(rollout={"warm_timeout": 20})
    here.running(2)
    here.like("new", ends=ends, warm_after=1e9)
    held = watched(here)
    done = here.perform(*stopping())
    assert done.state is ChangeState.ROLLED_BACK
    assert "no slot was handed over, old still runs" in done.sentence
    assert (set(held), here.crowd.left) == ({2}, [])
    assert here.targets().handover == {}
    assert not [w for w in here.crowd.workers() if w.revision == "new" and w.wanted]


@pytest.mark.parametrize(
    "how",
    [
        {"error": "no such column"},
        {"first_batch": 1e9},
        {"error": "no such column", "late_batch": (0.5, 30.0)},
    ],
)
@pytest.mark.parametrize("opens", [((0, 1),), ((0,), (1,))])
@pytest.mark.parametrize("membership", ["static", "dynamic"])
def test_what_fails_after_all_stopped_puts_back_what_ran(scene, membership, opens, how):
    """Its members leave again, and those of before join from their warm standbys."""
    here = scene(worker={"membership": membership})
    here.running(2)
    here.like("new", **how)
    done = here.perform(*stopping(opens=opens))
    assert done.state is ChangeState.ROLLED_BACK, done.sentence
    assert done.sentence.endswith("slots 0-1 run old again")
    assert here.revisions() == ["old", "old"]
    assert {s.phase for s in here.slots()} == {Phase.ACTIVE}
    assert (here.targets().open, here.targets().handover) == ({0, 1}, {})
    assert [w.revision for w in here.crowd.workers() if w.wanted] == ["old"] * 3
    assert len(done.receipts) == 2
    ran = [w for w in here.crowd.people.values() if w.revision == "old"]
    assert len(ran) == 3, "none was started anew"


def test_what_fails_while_all_stop_puts_back_what_ran(scene):
    """A leave that is refused once: it is done, and undone."""
    here = scene()
    here.running(2)
    leave, refused = here.crowd.leave, ["answered with 15"]

    def once(group, members, *, reason):
        return refused.pop() if refused else leave(group, members, reason=reason)

    here.crowd.leave = once
    done = here.perform(*stopping())
    assert done.state is ChangeState.ROLLED_BACK, done.sentence
    assert "answered with 15" in done.sentence
    assert here.revisions() == ["old", "old"]
    assert here.targets().leaving == frozenset()


@pytest.mark.parametrize("opens", [((0, 1),), ((0,), (1,))])
@pytest.mark.parametrize("fails", [False, True])
def test_a_stop_whose_manager_is_killed_is_carried_on(scene, fails, opens):
    """At any look: to the new revision, or back to the old one."""
    ran = "old" if fails else "new"
    looks = 0
    for dies_at in (None, *range(1, 200, 3)):
        here = scene()
        here.running(2)
        here.like("new", error="no such column" if fails else None)
        begun = here.begin(*stopping(opens=opens))
        if dies_at is None:
            looks = len(looks_of(here, begun))
            continue
        if dies_at >= looks:
            break
        count = iter(range(1, looks + 1))
        adopted = here.killed_when(begun, lambda at=dies_at, count=count: next(count) == at)
        done = here.performer().perform(adopted)
        assert done.state is (ChangeState.ROLLED_BACK if fails else ChangeState.DONE), dies_at
        assert here.revisions() == [ran, ran], dies_at
        assert [w.revision for w in here.crowd.workers() if w.wanted] == [ran] * 3, dies_at
        assert here.targets().handover == {}, dies_at
        assert len(here.crowd.left) == (2 if fails else 1), "nobody leaves twice"


def looks_of(here, begun) -> list[int]:
    """What `watched` tells of a change that nobody disturbs."""
    held = watched(here)
    here.performer().perform(begun)
    return held


def test_without_room_for_both_the_old_workers_end_first(scene):
    """One that is warm is proof enough to stop; what fails then starts the old ones anew."""
    here = scene()
    here.running(2)
    here.crowd.room = 4
    done = here.perform(*stopping())
    assert done.state is ChangeState.DONE, done.sentence
    assert here.revisions() == ["new", "new"]
    here.like("worse", error="no such column")
    worse = [replace(step, revision="worse") for step in stopping()]
    done = here.perform(*worse, revision="worse")
    assert done.state is ChangeState.ROLLED_BACK, done.sentence
    assert here.revisions() == ["new", "new"]
    here.crowd.room = 3
    done = here.perform(*[replace(step, revision="other") for step in worse], revision="other")
    assert done.state is ChangeState.FAILED
    assert "exceeded quota" in done.sentence
    assert here.revisions() == ["new", "new"]


def test_a_slot_whose_owner_dies_before_all_stop_goes_to_what_runs(scene):
    """A worker of another assignor would be refused, and the slot wait for its lease again."""
    here = scene()
    here.running(2)
    here.crowd.people[here.slots()[0].owner].alive = False
    begun = here.begin(*stopping())
    began, turn = here.clock.now(), here.clock.turn
    here.crowd.start(GROUP, "new", 2)
    known = set(here.crowd.people)
    held: list[tuple[str | None, int]] = []

    def look():
        for name, worker in here.crowd.people.items():
            worker.frozen = name not in known and here.clock.now() < began + 40
        turn()
        if not here.targets().leaving and here.targets().open == {0, 1} and not here.crowd.left:
            held.extend((s.revision, s.token) for s in here.slots())

    here.clock.turn = look
    done = here.performer().perform(begun)
    assert done.state is ChangeState.DONE, done.sentence
    assert max(token for _, token in held) == 2, "a standby has taken it"
    assert {revision for revision, _ in held} == {"old"}
