"""A plan says truthfully whether an unfinished change is being carried out."""

import subprocess
import sys
from dataclasses import replace

import pytest

from fleet.act.change import GroupChanges
from fleet.act.lease import is_actor_alive, sign
from fleet.clock import ManualClock
from fleet.kubernetes.leases.lease_store import LeaseStore
from fleet.slots import Change
from fleet.slots.sqlite import SqliteStore
from fleet.slots.store import Store
from fleet.system.processes import identify
from tests.support.memory_server import MemoryServer
from tests.support.plans import plan_of

LEASE = 10.0
PLAN = plan_of(group="g")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", "leases"])
def store(request, tmp_path, clock) -> Store:
    """Each store that a manager has."""
    if request.param == "sqlite":
        return SqliteStore(tmp_path / "fleet.db", cluster="main", clock=clock)
    api = MemoryServer().api(clock)
    return LeaseStore.for_manager(api, cluster="main", clock=clock, lease=LEASE)


@pytest.fixture
def change(store) -> Change:
    begun = store.begin_change(PLAN, actor="ann@elsewhere:7", started_at=0.0)
    assert begun is not None
    return begun


def test_an_unknown_actor_is_not_guessed_about(store, change, clock):
    """The first look cannot know; a lease that stands still for its duration is a dead one."""
    assert is_actor_alive(store, change, lease=LEASE, clock=clock) is None
    clock.sleep(LEASE - 1)
    assert is_actor_alive(store, change, lease=LEASE, clock=clock) is None
    clock.sleep(1)
    assert is_actor_alive(store, change, lease=LEASE, clock=clock) is False


def test_a_lease_that_moved_is_alive(store, change, clock):
    """Another look (of another process, too) finds the counter raised."""
    assert is_actor_alive(store, change, lease=LEASE, clock=clock) is None
    clock.sleep(60)
    renewed = store.advance(replace(change))
    assert is_actor_alive(store, renewed, lease=LEASE, clock=clock) is True


def test_observers_of_other_machines_do_not_begin_our_count_anew(store, change, clock, monkeypatch):
    """Each counts by its own clock, however often the others look, many of them too."""

    def looked(host: str) -> bool | None:
        monkeypatch.setattr("socket.gethostname", lambda: host)
        return is_actor_alive(store, change, lease=LEASE, clock=clock)

    assert looked("ours") is None
    for second in range(int(LEASE) - 1):
        clock.sleep(1)
        assert looked("another") is None
        assert looked(f"passing-{second}") is None
    clock.sleep(1)
    assert looked("ours") is False
    assert looked("another") is None
    for number in range(200):
        looked(f"pod-{number}")
    assert len(store.manager_state("g", "change-lease-looks")["looks"]) <= 50
    clock.sleep(LEASE)
    assert looked("pod-199") is False


def test_a_machine_that_tells_no_boot_learns_it_within_one_process(
    store, change, clock, monkeypatch
):
    """Where there is no /proc."""
    monkeypatch.setattr("fleet.act.lease.identify", lambda pid: None)
    sign(store, change)
    assert is_actor_alive(store, change, lease=LEASE, clock=clock) is None
    clock.sleep(LEASE)
    assert is_actor_alive(store, change, lease=LEASE, clock=clock) is False


def test_a_process_of_this_machine_is_known_at_once(store, change, clock):
    """It runs: alive. It is gone: dead, without a wait."""
    sign(store, change)
    assert is_actor_alive(store, change, lease=LEASE, clock=clock) is True
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = identify(child.pid)
    assert other is not None
    note = store.manager_state("g", "change-actor")
    store.put_manager_state("g", "change-actor", {**note, **other.as_json()})
    assert is_actor_alive(store, change, lease=LEASE, clock=clock) is True
    child.communicate(b"\n")
    assert is_actor_alive(store, change, lease=LEASE, clock=clock) is False


def test_a_process_that_hangs_is_found_by_its_lease(store, change, clock):
    """Its pid is there, but nothing renews."""
    sign(store, change)
    assert is_actor_alive(store, change, lease=LEASE, clock=clock) is True
    clock.sleep(LEASE)
    assert is_actor_alive(store, change, lease=LEASE, clock=clock) is False


def test_the_signature_of_an_earlier_change_says_nothing(store, change, clock):
    """Tokens grow: a dead actor of the last change is no sign of this one's."""
    store.put_manager_state("g", "change-actor", {"token": change.token - 1, "pid": 1})
    assert is_actor_alive(store, change, lease=LEASE, clock=clock) is None


def test_a_note_has_a_name_that_every_store_can_write(store):
    """A blank would be lost on Kubernetes, and the note with it."""
    with pytest.raises(ValueError, match="letters, digits and dashes"):
        store.put_manager_state("g", "scaling 1", {"before": 1})


def test_an_actor_that_could_not_renew_has_a_whole_lease(store, change, clock, monkeypatch):
    """Nothing follows from a store that was silent: it counts from when the store is known."""
    changing = GroupChanges(
        group="g", store=store, clock=clock, lease=LEASE, perform=lambda begun, _: begun
    )
    known_at = clock.monotonic() + 25.0
    monkeypatch.setattr(store, "known_since", lambda: known_at, raising=False)
    began = clock.monotonic()
    assert changing.is_actor_alive() is False
    assert clock.monotonic() - began >= 25.0 + LEASE
