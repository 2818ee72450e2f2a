"""Nobody alive is called dead: not by who could not write, not by who did not look [38, 39]."""

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.act.change import GroupChanges
from fleet.clock import ManualClock
from fleet.errors import Unreachable
from fleet.slots import Slot, SlotTargets, sqlite
from fleet.slots.evidence import Evidence, LeaseWatch
from fleet.slots.sqlite import DATABASE, SqliteStore
from fleet.slots.store import Store
from fleet.worker.slot.leave_completion import LeaveCompleter
from fleet.worker.slot.slot_lease import SlotLease, SlotWatcher
from tests.acting.standbys import Turning
from tests.support.batch_parts import events_of, worker_context
from tests.support.declared import group_spec, settings_of
from tests.support.memory_slots import Memory, MemoryBackend
from tests.support.plans import plan_of

GROUP = "g"
LEASE = 9.0


class Scene:
    """An owner that renews each third of the lease where it can, and those who watch it."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.path = folder / DATABASE
        self.owner, self.store = self.opened(), self.opened()
        self.owner.write_targets(SlotTargets(group=GROUP, open=frozenset({0})))
        held = self.owner.take(
            self.owner.slots(GROUP)[0], worker="w", revision="r", spark_session=None
        )
        assert held is not None
        self.held: Slot = held
        self.looker = SlotWatcher(self.store, group=GROUP, lease=LEASE, clock=self.clock)
        self.lives = True
        self.taken = 0

    def opened(self) -> SqliteStore:
        """The store as another process has it."""
        return SqliteStore(self.path, cluster="main", clock=self.clock)

    def later(self, seconds: float) -> None:
        """Time goes by in tenths of a lease: the owner renews, the standby looks and reaches."""
        for _ in range(round(seconds / LEASE * 10)):
            self.clock.sleep(LEASE / 10)
            if self.lives:
                with contextlib.suppress(Unreachable):
                    renewed = self.owner.renew(self.held)
                    assert renewed is not None, "taken from the living"
                    self.held = renewed
            self.look()

    def look(self) -> None:
        """One look of the standby; what it may take it takes."""
        with contextlib.suppress(Unreachable):
            self.looker.refresh()
            for seen in self.looker.takeable_slots(worker="s", revision="r", since=0.0):
                taken = self.store.take(seen, worker="s", revision="r", spark_session=None)
                self.taken += taken is not None


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(sqlite, "_BUSY_SECONDS", 0.0)
    return Scene(tmp_path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else's write that does not end."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def test_who_died_is_replaced_after_one_lease(scene: Scene):
    """Not earlier, and hardly later."""
    scene.later(2 * LEASE)
    scene.lives = False
    scene.later(0.9 * LEASE)
    assert scene.taken == 0
    scene.later(0.3 * LEASE)
    assert scene.taken == 1


@pytest.mark.parametrize("seconds", [0.5 * LEASE, 1.1 * LEASE, 5 * LEASE])
def test_a_store_that_cannot_be_written_kills_nobody(scene: Scene, seconds: float):
    """However long: the owner works on, and has a whole lease when the store is well."""
    scene.later(LEASE)
    with locked(scene.path):
        scene.later(seconds)
    scene.lives = False
    scene.later(0.9 * LEASE)
    scene.lives = True  # it came late, but in time
    scene.later(LEASE)
    assert scene.taken == 0
    scene.lives = False
    scene.later(1.2 * LEASE)
    assert scene.taken == 1


@pytest.mark.parametrize("seconds", [0.4 * LEASE, 1.1 * LEASE, 100 * LEASE])
def test_a_frozen_machine_kills_nobody(scene: Scene, seconds: float):
    """The observer was frozen with the owner: thawed, it begins to count."""
    scene.later(0.5 * LEASE)
    for _ in range(3):
        scene.clock.sleep(seconds)
        scene.look()
    assert scene.taken == 0
    scene.later(LEASE)
    assert scene.taken == 0


def test_an_old_look_says_nothing(scene: Scene):
    """What was dead at the last look is not concluded from a third of a lease later."""
    scene.lives = False
    for _ in range(11):
        scene.clock.sleep(LEASE / 10)
        scene.looker.refresh()
    assert scene.looker.dead() == {0}
    scene.clock.sleep(LEASE / 2)
    assert scene.looker.dead() == frozenset()


def change_of(scene: Scene):
    change = scene.owner.begin_change(plan_of(group=GROUP), actor="ann", started_at=0.0)
    assert change is not None
    return change


def test_a_living_managers_change_is_not_adopted(scene: Scene):
    """Of a store that is locked for two leases: its actor has another one to renew in."""
    change = change_of(scene)
    until = scene.clock.at + 2 * LEASE
    lock = contextlib.ExitStack()

    class Passing(ManualClock):
        """The lock goes in time, and 0.9 leases later the actor renews."""

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            scene.clock.at = self.at
            if self.at >= until:
                lock.close()
            if self.at >= until + 0.9 * LEASE:
                scene.owner.advance(change)

    clock = Passing(scene.clock.at)
    store = SqliteStore(scene.path, cluster="main", clock=clock)
    lock.enter_context(locked(scene.path))
    changing = GroupChanges(
        group=GROUP, store=store, clock=clock, lease=LEASE, perform=lambda begun, _: begun
    )
    assert changing.is_actor_alive() is True
    assert clock.at >= until


def test_workers_complete_no_leave_of_an_actor_that_could_not_write(scene: Scene):
    """The same for the last steps of a batched leave [21]."""
    sent: list[object] = []
    change_of(scene)
    targets = scene.owner.targets(GROUP)
    assert scene.owner.release(scene.held, clean=True)
    scene.owner.write_targets(replace(targets, leaving=frozenset({0}), plan_id="p"))
    settings = settings_of(group_spec(GROUP, runtime={"kind": "local", "lease": LEASE}))
    context = worker_context(settings, name="s", clock=scene.clock)
    completer = LeaveCompleter(context, scene.store, leave=lambda _, members: sent.append(members))

    def later(seconds: float) -> bool:
        done = False
        for _ in range(round(seconds / LEASE * 10)):
            scene.clock.sleep(LEASE / 10)
            done = done or completer.step(
                scene.store.targets(GROUP), scene.store.slots(GROUP), frozenset()
            )
        return done

    with locked(scene.path):
        assert not later(3 * LEASE)
    assert not later(0.9 * LEASE)
    assert later(0.4 * LEASE)


def test_a_write_that_waits_for_long_proves_nothing_of_what_was_seen_before(scene: Scene):
    """The lock was held for as long: the owner's renewal waits behind it too."""

    class Slow(SqliteStore):
        """Each write waits for the lock."""

        def beat(self, group: str) -> None:
            scene.clock.sleep(LEASE / 3)
            super().beat(group)

    store = Slow(scene.path, cluster="main", clock=scene.clock)
    watch = LeaseWatch(LEASE, Evidence(store=store, group=GROUP, lease=LEASE, clock=scene.clock))
    for _ in range(50):
        scene.clock.sleep(LEASE / 10)
        assert not watch.is_expired("0", ("w", 1, 1), scene.clock.monotonic())


def test_a_lease_counts_from_when_its_renewal_was_read():
    """A slow store may store it while it is read: its owner has a whole lease from then on."""
    clock = ManualClock()
    store = Store(MemoryBackend(Memory(), clock=clock), clock=clock)
    watch = LeaseWatch.for_group(store, group="g", lease=9.0, clock=clock)
    began = clock.monotonic()
    clock.sleep(2.0)
    expired = [watch.is_expired("0", "mark", began)]
    for seconds in (1.0, 3.0, 3.0, 2.0):
        clock.sleep(seconds)
        expired.append(watch.is_expired("0", "mark", clock.monotonic()))
    assert expired == [False, False, False, False, True]


@pytest.mark.parametrize("renews", [True, False])
def test_of_two_leases_the_longer_one_counts(tmp_path, renews):
    """`runtime.lease` was made shorter: whoever lives by the old one is not dead by the new one."""
    clock = ManualClock()
    owner, other = (SqliteStore(tmp_path / DATABASE, cluster="m", clock=clock) for _ in range(2))
    owner.write_targets(SlotTargets(group=GROUP, open=frozenset({0})))
    seen = owner.slots(GROUP)[0]
    slot = owner.take(seen, worker="w", revision="r", spark_session=None, lease=60.0)
    assert slot is not None
    held = SlotLease(
        owner, slot, lease=60.0, fields=dict, clock=clock, events=events_of(clock=clock)
    )
    looker = SlotWatcher(other, group=GROUP, lease=9.0, clock=clock)
    for second in range(1, 120):
        clock.sleep(1.0)
        if renews and second % 20 == 0:
            assert held.renew()
        looker.refresh()
        dead = bool(looker.dead())
        assert dead == (not renews and second >= 61), second


def test_a_change_is_its_actors_for_the_longer_of_two_leases():
    """The same for who carries out a change: a manager that was told a shorter one."""
    clock = Turning()
    store = Store(MemoryBackend(Memory(), clock=clock), clock=clock)
    changes = [
        GroupChanges(group="g", store=store, clock=clock, lease=lease, perform=lambda c, _: c)
        for lease in (60.0, 9.0)
    ]
    begun = changes[0].begin(plan_of(group="g"), actor="ann", progress=print)
    began = clock.monotonic()

    def renew() -> None:
        if 20.0 <= clock.monotonic() - began < 21.0:
            nonlocal begun
            begun = store.advance(begun)

    clock.turn = renew
    assert changes[1].is_actor_alive()
    clock.turn = lambda: None
    began = clock.monotonic()
    assert not changes[1].is_actor_alive()
    assert 60.0 <= clock.monotonic() - began < 62.0
