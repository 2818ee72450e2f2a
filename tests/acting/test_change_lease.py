"""The change's own lease, renewed beside the work."""

import threading

import pytest

from fleet.act.lease import ChangeLease
from fleet.act.steps.step_memory import StepStart
from fleet.errors import LostLease, Unreachable
from fleet.model import StepKind
from tests.support.plans import step_of


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
        assert again.wait(5.0)
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


def test_what_is_remembered_adds_to_what_was(scene):
    """And is there for the next actor."""
    here = scene()
    with ChangeLease(here.store, here.begin(step_of(StepKind.OPEN, (0,))), lease=1e6) as lease:
        lease.remember(StepStart(position=7))
        lease.remember(StepStart(members=("m",)))
    assert here.store.change("orders").detail == {"position": 7, "members": ["m"]}


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
        assert failed.wait(5.0)
        lease._thread.join(5.0)
        with pytest.raises(LostLease, match="a bug of ours"):
            lease.check()
        with pytest.raises(LostLease):
            lease.remember(StepStart(position=1))
