"""A worker's view: it sees changes at once, knows when it does not know, and mends itself."""

import time
from dataclasses import replace

import pytest

from fleet.clock import SystemClock
from fleet.errors import Unreachable
from fleet.kubernetes.client.api import LEASE, Gone
from fleet.slots import SlotTargets
from fleet.worker.slot.slot_lease import SlotWatcher
from tests.support import waiting
from tests.support.fleet_leases import make_leases

pytestmark = pytest.mark.kubernetes
GROUP = "orders"
LEASE_SECONDS = 4.0


def until(is_so, seconds: float = 10.0) -> float:
    """Poll; how long it took. On a machine that is not overloaded it takes less than `seconds`."""
    began = time.monotonic()
    waiting.until(is_so, "it", still=seconds, every=0.005)
    return time.monotonic() - began


def opened(place, slots: int = 2):
    manager = place.manager()
    make_leases(manager, GROUP, slots=slots)
    assert manager.write_targets(SlotTargets(group=GROUP, open=frozenset(range(slots))))
    return manager


# --- a server that is away ------------------------------------------------------------------


class Scene:
    """An owner that renews each second, and a standby that looks."""

    def __init__(self, place) -> None:
        self.manager = opened(place)
        self.owner = place.worker(lease=LEASE_SECONDS)
        self.standby = place.worker(lease=LEASE_SECONDS)
        clock = SystemClock()
        self.looker = SlotWatcher(self.standby, group=GROUP, lease=LEASE_SECONDS, clock=clock)
        self.held = self.owner.take(
            self.owner.slots(GROUP)[0], worker="w", revision="r1", spark_session=None
        )
        assert self.held is not None
        until(lambda: self.standby.known_since() is not None)

    def takeable_slots(self) -> list[int]:
        """What the standby would take now."""
        self.looker.refresh()
        return sorted(
            s.number for s in self.looker.takeable_slots(worker="s", revision="r1", since=0.0)
        )

    def renew(self) -> bool:
        try:
            renewed = self.owner.renew(self.held)
        except Unreachable:
            return False
        assert renewed is not None
        self.held = renewed
        return True


@pytest.mark.parametrize("how", ["frozen", pytest.param("killed", marks=pytest.mark.long)])
def test_a_server_that_is_away_makes_nobody_a_new_owner(falling, how):
    """For longer than a lease; when it is back the owner has a whole lease to be heard."""
    server = falling.server
    scene = Scene(falling)
    assert scene.renew()  # a slow start may have used the lease up
    until(lambda: scene.takeable_slots() == [1])
    away_at = time.monotonic()
    server.freeze() if how == "frozen" else server.kill_server()
    until(lambda: scene.standby.known_since() is None, LEASE_SECONDS)
    assert scene.takeable_slots() == []
    assert scene.standby.targets(GROUP).open == {0, 1}, "reads answer from what was known"
    began = time.monotonic()
    assert not scene.renew()
    assert time.monotonic() - began < 60.0, "bounded"
    began = time.monotonic()
    with pytest.raises(Unreachable):
        scene.standby.take(
            scene.standby.slots(GROUP)[1], worker="s", revision="r1", spark_session=None
        )
    while time.monotonic() - away_at < LEASE_SECONDS + 2.0:
        assert scene.takeable_slots() == []
        time.sleep(0.05)
    server.thaw() if how == "frozen" else server.start()
    until(lambda: scene.standby.known_since() is not None, 15.0)
    known_at = time.monotonic()
    scene.standby.return_uncertain_takes()  # as before a report: the server may have done it
    until(lambda: scene.takeable_slots() == [1], 5.0)
    until(scene.renew, 10.0)
    while time.monotonic() - known_at < LEASE_SECONDS / 2:
        assert 0 not in scene.takeable_slots()
        time.sleep(0.05)
    seen = scene.standby.data_version()
    assert scene.renew()
    until(lambda: scene.standby.data_version() != seen)
    # A busy machine may end a silent watch meanwhile: the lease is then counted anew.
    took = until(lambda: scene.takeable_slots() == [0, 1], 60.0)
    assert took > LEASE_SECONDS - 1.0, "dead one lease after its last renewal"
    held = scene.standby.take(
        scene.standby.slots(GROUP)[0], worker="s", revision="r1", spark_session=None
    )
    assert held is not None
    assert scene.owner.renew(scene.held) is None, "the old owner stops at once"


def test_a_version_that_was_forgotten_is_listed_again(falling):
    """410: the watch cannot go on where it stood."""
    server = falling.server
    manager = opened(falling)
    worker = falling.worker()
    assert worker.slots(GROUP)
    view = worker.leases.view
    for number in range(5):
        assert manager.write_targets(replace(manager.targets(GROUP), open_at=float(number)))
    server.compact()
    server.kill_server()
    server.start()
    with pytest.raises(Gone):
        for _ in worker.leases.api.watch(
            LEASE, since="1", seconds=5, labelSelector=falling.names.of_group
        ).events():
            pass
    view._since = "1"
    view._end_watch()
    until(lambda: manager.targets(GROUP).open_at == 4.0, 10.0)
    assert manager.write_targets(replace(manager.targets(GROUP), open_at=99.0))
    until(lambda: worker.targets(GROUP).open_at == 99.0, 10.0)  # a reader asks while a watch is out
