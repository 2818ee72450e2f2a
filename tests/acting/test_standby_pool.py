"""Who counts as a warm standby, who goes where there are too many, and what is asked of a place
that takes no more: as few as will do, and none twice.
"""

from dataclasses import replace

import pytest

from fleet.act.standby_pool import HeardReports, StandbyPool
from fleet.errors import NoRoom
from fleet.model import StepKind
from fleet.slots import ChangeState, WorkerReport
from tests.acting.standbys import GROUP
from tests.support.plans import step_of


def pool(here) -> StandbyPool:
    return StandbyPool(here.crowd, here.store, GROUP, say=here.told.append)


def test_a_warm_standby_runs_has_no_slot_and_says_so(scene):
    """A process that has ended leaves its last report behind."""
    here = scene()
    here.running(1)
    (spare,) = here.crowd.start(GROUP, "old", 1)
    assert spare not in pool(here).warm("old")
    here.clock.sleep(2)
    assert spare in pool(here).warm("old")
    assert here.slots()[0].owner not in pool(here).warm("old")
    here.crowd.people[spare].alive = False
    assert spare not in pool(here).warm("old")
    assert pool(here).warm("new") == ()


@pytest.mark.parametrize("moment", ["before the reading", "after it"])
def test_a_manager_that_was_frozen_takes_no_standby_for_silent(scene, monkeypatch, moment: str):
    """Fault: one more worker was started beside each that was well [39]."""
    here = scene()
    here.running(1)
    (spare,) = pool(here).warm("old")
    heard = HeardReports(lease=9.0, clock=here.clock)
    ours = StandbyPool(here.crowd, here.store, GROUP, heard=heard, say=here.told.append)
    reports, frozen, counter = here.store.reports(GROUP), 0.0, 0

    def read(group: str) -> tuple[WorkerReport, ...]:
        here.clock.at += frozen if moment == "before the reading" else 0.0
        found = tuple(replace(r, counter=r.counter + counter) for r in reports)
        here.clock.at += frozen if moment == "after it" else 0.0
        return found

    monkeypatch.setattr(here.store, "reports", read)
    for _ in range(8):
        counter += 1
        assert not ours.silent()
        here.clock.at += 1.0
    assert ours.warm("old") == (spare,)
    frozen = 60.0
    assert not ours.silent()
    frozen = 0.0
    for _ in range(5):  # all were frozen: it reports within a third of its lease
        assert not ours.silent()
        here.clock.at += 1.0
    for _ in range(60):  # a step that looks at no standby
        here.clock.at += 1.0
        heard.awake()
    assert ours.silent() == {spare}, "one that does not report is found as before"


def test_the_cold_go_before_the_warm(scene):
    """And owners never."""
    here = scene()
    here.running(2)
    (warm,) = pool(here).warm("old")
    here.crowd.start(GROUP, "old", 2)
    pool(here).settle_standbys("old", 1, grace=5.0)
    owners = {s.owner for s in here.slots()}
    assert len(here.crowd.removed) == 2
    assert not {warm, *owners} & set(here.crowd.removed)
    assert pool(here).free("old") == (warm,)


def test_who_ended_with_a_slot_holds_none(scene):
    """It could not give it up; the slot is shut since: its next life is a standby, one too many."""
    here = scene()
    here.running(2)
    held = here.slots()[1]
    assert here.store.end_owner(held)
    here.crowd.people[held.owner].slot = None
    assert held.owner not in pool(here).free("old"), "a standby is about to take it"
    assert here.store.change_targets(GROUP, lambda targets: replace(targets, open=frozenset({0})))
    assert pool(here).owners() == {0: here.slots()[0].owner}
    assert held.owner in pool(here).free("old")
    pool(here).settle_standbys("old", 1, grace=5.0)
    assert len(here.crowd.removed) == 1


def test_there_are_as_many_as_wanted(scene):
    """Missing ones are started, those of other revisions go."""
    here = scene()
    here.running(1)
    pool(here).settle_standbys("new", 2, grace=5.0)
    assert len(pool(here).free("new")) == 2
    assert pool(here).free("old") == ()
    assert here.slots()[0].owner not in here.crowd.removed
    before = set(here.crowd.people)
    assert pool(here).ensure("new", 2) == 2
    assert set(here.crowd.people) == before


# --- without a node -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [StepKind.OPEN, StepKind.WARM])
def test_time_to_get_warm_begins_with_the_node(scene, kind: StepKind):
    """An autoscaler's node takes longer than a worker may take on it."""
    here = scene(rollout={"warm_timeout": 20, "node_timeout": 100})
    here.like("new", node_after=90.0, warm_after=15.0)
    began = here.clock.monotonic()
    change = here.perform(step_of(kind, range(2) if kind is StepKind.OPEN else (), "new"))
    assert change.state is ChangeState.DONE, change.sentence
    assert here.clock.monotonic() - began > 100


@pytest.mark.parametrize(
    ("node_after", "why"),
    [
        (130.0, "after 100 s waiting for worker w0, which has no node: 0/1 are available"),
        (50.0, "after 20 s waiting for 1 warm standby of revision new"),
    ],
)
def test_neither_limit_is_given_twice(scene, node_after: float, why: str):
    """No node in time; or a node, and not warm in time."""
    here = scene(rollout={"warm_timeout": 20, "node_timeout": 100}, replicas={"standby": 0})
    here.like("new", node_after=node_after, warm_after=25.0)
    began = here.clock.monotonic()
    change = here.perform(step_of(StepKind.OPEN, (0,), "new"))
    assert (change.state, change.sentence) == (ChangeState.FAILED, f"timed out {why}")
    assert here.clock.monotonic() - began < 105
    assert here.crowd.generations == [], "nothing has joined"


# --- without room ---------------------------------------------------------------------------


@pytest.fixture
def crowded(scene):
    """Room for three workers, and two of the old revision in it."""
    here = scene()
    here.crowd.room = 3
    here.crowd.start(GROUP, "old", 2)
    here.crowd.asked.clear()
    return here


def test_fewer_will_do_and_it_is_said_once(crowded):
    """Of three one; the next asks for no more than there was room for, until more are needed."""
    asked, one_change = crowded.crowd.asked, pool(crowded)
    assert one_change.ensure("new", 3, least=1) == 1
    assert crowded.told == ["  1 worker without a slot instead of 3: exceeded quota"]
    assert asked == [3]
    assert one_change.ensure("new", 3, least=1) == 1
    crowded.crowd.people.pop("w2")  # it took a slot, say
    crowded.crowd.people.pop("w0")  # whose owner went
    assert one_change.ensure("new", 3, least=1) == 1
    assert asked == [3, 1]
    assert len(crowded.told) == 1


def test_too_few_are_taken_back(crowded):
    """Where all of them are needed, those that were made go again; tried again, it is the same."""
    for least in (2, 2, 2, None):
        with pytest.raises(NoRoom, match="exceeded quota"):
            pool(crowded).ensure("new", 3, least=least)
        assert {w.revision for w in crowded.crowd.workers()} == {"old"}
    assert crowded.crowd.asked == [3] * 4


def test_a_standby_is_worth_no_failure(crowded):
    """At the end of a change that went well: it is said, and that is all."""
    crowded.crowd.room = 0
    pool(crowded).settle_standbys("new", 1, grace=1.0, least=0)
    assert crowded.told == ["  0 workers without a slot instead of 1: exceeded quota"]


def test_a_roll_without_room_for_one_worker_has_touched_nothing(scene):
    """Failed, so that it is tried again, with the words of who refused it: no ask in the slot
    targets, the old ones as before.
    """
    here = scene()
    here.running(2)
    here.crowd.room = len(here.crowd.workers())
    before, slots = here.crowd.workers(), [(s.owner, s.token) for s in here.slots()]
    here.crowd.asked.clear()
    done = here.perform(step_of(StepKind.ROLL, (0, 1)))
    assert done.state is ChangeState.FAILED
    assert "exceeded quota; no slot was handed over, old still runs" in done.sentence
    assert here.crowd.workers() == before
    assert [(s.owner, s.token) for s in here.slots()] == slots
    assert not here.targets().handover
    assert len(here.crowd.asked) == 1
