"""Who counts as a warm standby, and who goes where there are too many."""

from fleet.act.standby_pool import StandbyPool
from tests.acting.standbys import GROUP


def pool(here) -> StandbyPool:
    return StandbyPool(here.crowd, here.store, GROUP)


def test_a_warm_standby_runs_has_no_slot_and_says_so(scene):
    """A process that has ended leaves its last report behind."""
    here = scene()
    here.running(1)
    (spare,) = here.crowd.start(GROUP, "old", 1)
    assert spare not in pool(here).warm("old")
    here.clock.sleep(2)
    assert spare in pool(here).warm("old")
    assert here.slots()[0].holder not in pool(here).warm("old")
    here.crowd.people[spare].alive = False
    assert spare not in pool(here).warm("old")
    assert pool(here).warm("new") == ()


def test_a_starting_one_is_not_warm(scene):
    """It reports from its first second on."""
    here = scene()
    here.like("new", warm_after=30)
    started = here.crowd.start(GROUP, "new", 1)
    here.clock.sleep(2)
    assert {r.worker for r in here.store.reports(GROUP)} == set(started)
    assert pool(here).warm("new") == ()


def test_the_cold_go_before_the_warm(scene):
    """And holders never."""
    here = scene()
    here.running(2)
    (warm,) = pool(here).warm("old")
    here.crowd.start(GROUP, "old", 2)
    pool(here).settle_standbys("old", 1, grace=5.0)
    holders = {s.holder for s in here.slots()}
    assert len(here.crowd.removed) == 2
    assert not {warm, *holders} & set(here.crowd.removed)
    assert pool(here).free("old") == (warm,)


def test_there_are_as_many_as_wanted(scene):
    """Missing ones are started, those of other revisions go."""
    here = scene()
    here.running(1)
    pool(here).settle_standbys("new", 2, grace=5.0)
    assert len(pool(here).free("new")) == 2
    assert pool(here).free("old") == ()
    assert here.slots()[0].holder not in here.crowd.removed
    before = set(here.crowd.people)
    assert pool(here).ensure("new", 2) == 2
    assert set(here.crowd.people) == before
