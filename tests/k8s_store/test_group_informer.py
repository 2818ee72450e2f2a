"""While a manager changes a group, watches tell it how the group stands."""

import time
from dataclasses import replace

import pytest

from fleet.errors import Unreachable
from fleet.slots import ChangeState, Phase, SlotTargets
from tests.k8s_store.conftest import requests_of
from tests.support.fleet_leases import make_leases
from tests.support.plans import plan_of
from tests.support.slot_records import report_of
from tests.support.waiting import until

pytestmark = pytest.mark.kubernetes
GROUP = "orders"


@pytest.fixture
def changing(place):
    """A manager in the middle of a change of two open slots, and the change."""
    manager = place.manager()
    make_leases(manager, GROUP, slots=2)
    assert manager.write_targets(SlotTargets(group=GROUP, open=frozenset({0, 1})))
    change = manager.begin_change(plan_of(), actor="me", started_at=1.0)
    assert change is not None
    return manager, change


def test_looking_costs_no_request_until_the_change_ends(place, changing):
    """Ten looks a second for minutes would be hundreds of requests."""
    manager, change = changing
    worker = place.worker("r1")
    held = worker.take(worker.slots(GROUP)[0], worker="w", revision="r1", spark_session=None)
    report = report_of("w", GROUP, phase="active", slot=0)
    worker.report(report)

    def told() -> bool:
        return manager.slots(GROUP)[0] == held and manager.reports(GROUP) == (report,)

    until(told, "the manager's view", still=5.0, every=0.01)
    methods = requests_of(manager)
    for _ in range(20):
        assert len(manager.slots(GROUP)) == 2
        assert manager.targets(GROUP).version == 1
        assert manager.change(GROUP) == change
        assert manager.reports(GROUP) == (report,)
    assert methods == []
    manager.advance(replace(change, state=ChangeState.DONE))
    methods.clear()
    assert len(manager.slots(GROUP)) == 2
    assert methods == ["GET"]


def test_a_look_after_a_write_shows_what_was_taken_before_it(place, changing):
    """A slot that was taken before the slot targets shut is not read as free after that."""
    manager, _ = changing
    worker = place.worker("r1")
    number = 0
    for turn in range(20):
        number = turn % 2
        held = worker.take(
            worker.slots(GROUP)[number], worker=f"w{turn}", revision="r1", spark_session=None
        )
        assert held is not None, turn
        targets = manager.write_targets(
            replace(manager.targets(GROUP), leaving=frozenset({number}))
        )
        assert manager.slots(GROUP)[number] == held
        assert worker.release(worker.renew(replace(held, phase=Phase.ACTIVE)), clean=True)
        assert manager.write_targets(replace(targets, leaving=frozenset()))
        until(lambda: not worker.targets(GROUP).leaving, "the slot targets", still=5.0, every=0.005)


def test_a_server_that_is_silent_is_told(falling):
    """What was known a while ago is no answer for somebody who acts on it."""
    manager = falling.manager()
    manager.leases._lease = 4.0
    make_leases(manager, GROUP, slots=1)
    change = manager.begin_change(plan_of(), actor="me", started_at=1.0)
    assert change is not None
    assert manager.change(GROUP) == change
    falling.server.freeze()
    time.sleep(1.0)
    with pytest.raises(Unreachable):
        manager.slots(GROUP)
    assert manager.known_since() is None
    falling.server.thaw()
    deadline = time.monotonic() + 300
    while True:
        try:
            assert manager.change(GROUP) == change
            return
        except Unreachable:
            assert time.monotonic() < deadline
            time.sleep(0.1)
