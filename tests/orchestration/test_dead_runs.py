"""Which STARTED runs are ended, and which are left alone."""

import pytest

from fleet.dagster.watch.dead_runs import IDLE, combined, mark_of, seen_again, why_dead
from fleet.dagster.watch.sensor_cursor import StartedRun
from fleet.slots import ChangeState
from tests.orchestration.made import change


@pytest.mark.parametrize(
    ("seen", "mark"),
    [
        pytest.param(None, IDLE, id="no change"),
        pytest.param(change(ChangeState.RUNNING), "1.3", id="its own, running"),
        pytest.param(change(ChangeState.DONE), IDLE, id="its own, over"),
        pytest.param(change(ChangeState.RUNNING, actor="fleet apply"), IDLE, id="adopted"),
    ],
)
def test_mark(seen, mark):
    """A run shows life only through a running change that it signs."""
    assert mark_of("r1", seen) == mark


@pytest.mark.parametrize(
    ("mark", "ticks", "since", "dead"),
    [
        pytest.param("1.3", 3, 45, True, id="lease not renewed"),
        pytest.param("1.3", 3, 12, False, id="within the lease and its margin"),
        pytest.param("1.3", 2, 4000, False, id="the machine slept"),
        pytest.param(IDLE, 6, 130, True, id="no change for two minutes"),
        pytest.param(IDLE, 6, 90, False, id="still planning"),
        pytest.param(IDLE, 5, 4000, False, id="the machine slept while it planned"),
    ],
)
def test_dead(mark, ticks, since, dead):
    """Both the ticks and the seconds must be over."""
    run = StartedRun(mark=mark, since=1000, ticks=ticks)
    assert (why_dead(run, lease=10.0, now=1000.0 + since) is not None) is dead


def test_long_lease_waits_longer():
    """An idle run may be waiting for another actor's lease."""
    run = StartedRun(mark=IDLE, since=1000, ticks=9)
    assert why_dead(run, lease=60.0, now=1000.0 + 150) is None
    assert why_dead(run, lease=60.0, now=1000.0 + 190)


def test_a_renewal_starts_the_count_again():
    """The count is of looks that saw the same."""
    run = seen_again(None, "1.3", now=0.0)
    run = seen_again(run, "1.3", now=15.0)
    assert (run.ticks, run.since) == (2, 0)
    assert seen_again(run, "1.4", now=30.0) == StartedRun(mark="1.4", since=30, ticks=1)


def test_run_of_several_groups_lives_by_any():
    """Groups are changed one after another, so one moving lease is life enough."""
    assert combined([IDLE, "1.3"]) == "1.3"
    assert combined([IDLE, IDLE]) == IDLE
