"""An owner is one only while it renews: what a renewal finds, what a silent store means, how a slot
is given up, and when a standby or a silent actor's workers conclude something [13, 21].
"""

import io
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.clock import Clock, ManualClock, SystemClock
from fleet.errors import FleetError, Unreachable
from fleet.slots import Handover, Phase, Slot, SlotTargets
from fleet.slots.sqlite import SqliteStore
from fleet.worker.events import VARIABLE, Events
from fleet.worker.slot.leave_completion import LeaveCompleter, all_drained
from fleet.worker.slot.process import end_former_slots
from fleet.worker.slot.slot_lease import SlotLease, SlotWatcher
from tests.support.batch_parts import worker_context
from tests.support.declared import group_spec, settings_of
from tests.support.slot_records import report_of
from tests.support.waiting import until

LEASE = 3000.0
"""Its third is longer than any test: what is renewed is renewed by the test."""
SHORT = 0.3
FULL = "/dev/full"


class Store(SqliteStore):
    """Refuses renewals while it is told to, and counts them."""

    refuses: FleetError | None = None
    renewals = 0

    def renew(self, slot: Slot) -> Slot | None:
        self.renewals += 1
        if self.refuses is not None:
            raise self.refuses
        return super().renew(slot)


class Scene:
    """Slot 0, held by `w`, whose events find the disk full."""

    def __init__(self, folder: Path, *, clock: Clock, lease: float, **how: Any) -> None:
        self.clock = clock
        self.store = Store(folder / "fleet.db", cluster="main", clock=clock)
        self.store.write_targets(SlotTargets(group="g", open=frozenset({0})))
        taken = self.store.take(self.slot(), worker="w", revision="r", spark_session=None)
        assert taken is not None
        fields = {"member_id": "m", "phase": Phase.ACTIVE}
        self.holding = SlotLease(
            self.store,
            taken,
            lease=lease,
            clock=clock,
            events=Events(worker="w", clock=clock, environ={VARIABLE: FULL}),
            **{"fields": lambda: fields, **how},
        )
        self.holding.start()

    def slot(self) -> Slot:
        return self.store.slots("g")[0]

    def lose(self) -> None:
        """Somebody takes it, who has watched the lease expire; the owner renews in between."""
        while not self.store.take(self.slot(), worker="x", revision="r", spark_session=None):
            pass


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Time is the test's."""
    made = Scene(tmp_path, clock=ManualClock(), lease=LEASE)
    yield made
    made.holding.abandon()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    """Renewed by its own thread, by the real clock."""
    made: list[Scene] = []

    def new(**how: Any) -> Scene:
        made.append(Scene(tmp_path, clock=SystemClock(), lease=SHORT, **how))
        return made[-1]

    yield new
    for each in made:
        each.holding.abandon()


def test_another_owner_ends_it(scene: Scene):
    """Once and for all: a store that says so is not asked again [12]."""
    scene.lose()
    assert scene.holding.lost is None
    assert not scene.holding.renew()
    assert "another owner" in str(scene.holding.lost)
    asked = scene.store.renewals
    assert not scene.holding.renew()
    assert not scene.holding.is_ours()
    assert scene.store.renewals == asked
    assert not scene.holding.release(clean=True)
    assert scene.slot().owner == "x"


def test_a_silent_store_is_no_loss(scene: Scene):
    """Nobody else can take the slot then either; it is tried again soon [12]."""
    scene.store.refuses = Unreachable("nobody answers")
    assert scene.holding.renew()
    assert not scene.holding.lost
    assert scene.holding.pause < LEASE / 10, "before the lease of a store that is back is over"
    scene.store.refuses = None
    assert scene.holding.renew()
    assert scene.holding.pause == LEASE / 3


def test_a_slot_is_confirmed_before_its_join(scene: Scene):
    """An owner that stood still, or whose store is silent, may have a successor [54]."""
    assert scene.holding.may_join()
    asked = scene.store.renewals
    scene.clock.sleep(LEASE / 3 - 1)
    assert scene.holding.may_join()
    assert scene.store.renewals == asked, "nobody takes it so soon"
    scene.clock.sleep(2)
    scene.store.refuses = Unreachable("nobody answers")
    assert scene.holding.may_join() is None
    scene.store.refuses = None
    assert scene.holding.may_join()
    assert scene.holding.is_ours()
    scene.lose()
    scene.clock.sleep(LEASE)
    assert not scene.holding.is_ours(), "before a batch is run again, too"
    assert scene.holding.may_join() is False


def test_a_renewal_whose_answer_came_late_confirms_nothing(scene: Scene, monkeypatch):
    """The worker stood still between its write and its answer: another owner may follow [39]."""
    renew = scene.store.renew

    def late(slot: Slot) -> Slot | None:
        stored = renew(slot)
        scene.clock.sleep(LEASE)
        return stored

    monkeypatch.setattr(scene.store, "renew", late)
    assert scene.holding.may_join() is None
    monkeypatch.undo()
    assert scene.holding.may_join()


@pytest.mark.parametrize(
    ("how", "phase", "member"),
    [
        pytest.param({"clean": True}, Phase.FREE, "m", id="clean"),
        pytest.param({"clean": False}, Phase.FREE, "m", id="to be cured first [3]"),
        pytest.param({"clean": True, "closed": True}, Phase.CLOSED, "m", id="for a leave"),
        pytest.param(
            {"clean": True, "closed": True, "gone": True}, Phase.CLOSED, None, id="left already"
        ),
        pytest.param({"clean": True, "gone": True}, Phase.FREE, None, id="a dynamic one"),
    ],
)
def test_how_a_slot_is_given_up(scene: Scene, how: dict[str, bool], phase: Phase, member):
    """Whether it was clean, and whom a leave has to name yet."""
    assert scene.holding.release(**how)
    assert not scene.holding.lost
    asked = scene.store.renewals
    scene.holding._thread.join(timeout=5.0)
    assert not scene.holding._thread.is_alive()
    assert scene.store.renewals == asked
    left = scene.slot()
    assert (left.owner, left.clean, left.phase) == (None, how["clean"], phase)
    assert left.member_id == member


def test_a_standby_reads_again_though_nothing_is_told(scene: Scene, monkeypatch):
    """At least once a second: a version that stands still must not blind it."""
    watcher = SlotWatcher(scene.store, group="g", lease=LEASE, clock=scene.clock)
    monkeypatch.setattr(scene.store, "data_version", lambda: 7)
    assert watcher.refresh()
    scene.store.write_targets(replace(scene.store.targets("g"), open=frozenset({0, 1})))
    scene.clock.sleep(0.9)
    assert not watcher.refresh()
    scene.clock.sleep(0.2)
    assert watcher.refresh()
    assert watcher.targets.open == {0, 1}


def test_the_dead_are_not_dead_while_nothing_is_known(scene: Scene, monkeypatch):
    """What was concluded a moment ago holds for as long as the store is heard of [13]."""
    watcher = SlotWatcher(scene.store, group="g", lease=9.0, clock=scene.clock)
    for _ in range(15):
        watcher.refresh()
        scene.clock.sleep(1.0)
    watcher.refresh()
    assert watcher.dead() == {0}
    monkeypatch.setattr(scene.store, "known_since", lambda: None, raising=False)
    assert watcher.dead() == frozenset()


def test_a_owner_that_is_said_to_have_ended_is_dead_at_once(scene: Scene):
    """Whoever saw its process end needs no lease; it stops itself where it lives after all."""
    watcher = SlotWatcher(scene.store, group="g", lease=LEASE, clock=scene.clock)
    assert watcher.refresh()
    assert watcher.dead() == frozenset()
    assert scene.store.end_owner(scene.slot())
    assert watcher.refresh()
    assert watcher.dead() == {0}
    (seen,) = watcher.takeable_slots(worker="x", revision="r", since=0.0)
    assert (seen.number, seen.owner) == (0, "w")
    assert not scene.holding.renew()
    assert scene.holding.lost


def test_a_container_ends_what_its_pods_last_one_held(scene: Scene, capsys):
    """What stands under its pod's name, and nothing else."""
    events = Events(worker="w", clock=scene.clock, environ={})
    end_former_slots(scene.store, group="g", name="other", events=events)
    assert not scene.slot().owner_ended
    end_former_slots(scene.store, group="g", name="w", events=events)
    assert scene.slot().owner_ended
    assert "this pod's last container owned slot 0" in capsys.readouterr().err


# --- by the lease's own thread --------------------------------------------------------------


def full_stream() -> io.TextIOWrapper:
    """Each write finds the disk full."""
    return io.TextIOWrapper(io.FileIO(FULL, "w"), write_through=True)


@pytest.mark.parametrize("refusal", [Unreachable("silent"), FleetError("a webhook says no")])
def test_a_store_that_is_silent_or_refuses_is_no_loss(live, refusal: FleetError):
    """The owner goes on, and renews when it may again [12]."""
    scene = live()
    scene.store.refuses = refusal
    time.sleep(SHORT)
    assert scene.holding.lost is None
    counter = scene.slot().counter
    scene.store.refuses = None
    until(lambda: scene.slot().counter > counter, "a renewal", still=20.0, every=0.005)


def test_a_full_disk_ends_no_lease(live, monkeypatch: pytest.MonkeyPatch):
    """Neither the lines for people nor the events nor the report can be written [40]."""

    def report() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", full_stream())
    scene = live(after=report)
    scene.store.refuses = Unreachable("the disk may be full")  # says so
    time.sleep(SHORT / 2)
    scene.store.refuses = None
    counter = scene.slot().counter
    until(lambda: scene.slot().counter > counter + 2, "renewals", still=20.0, every=0.005)
    assert scene.holding.lost is None


def test_a_lease_thread_that_ends_ends_the_membership(live):
    """For whatever reason: nobody would renew, and nobody would know [40]."""

    def fields() -> dict[str, Any]:
        raise ZeroDivisionError("a bug of ours")

    scene = live(fields=fields)
    until(lambda: scene.holding.lost is not None, "the loss", still=20.0, every=0.005)
    assert "a bug of ours" in str(scene.holding.lost)


@pytest.mark.parametrize("stream", [None, "closed", FULL])
def test_telling_never_raises(monkeypatch: pytest.MonkeyPatch, stream: str | None):
    """No stream, a closed one, a full disk."""
    file = None if stream is None else full_stream()
    if stream == "closed":
        file.close()
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(sys, "stdout", file)
    for target in ("-", FULL, "/nowhere/at/all"):
        events = Events(worker="w", clock=SystemClock(), environ={VARIABLE: target})
        events.log("one")
        events.log_rarely("two")
        events.emit("three", four=5)


# --- a standby concludes nothing from a store that was silent [13] ----------------------------


class FedStore(SqliteStore):
    """Says since when it knows, as a store does that is fed by watches."""

    since: float | None = 0.0

    def known_since(self) -> float | None:
        """As the test says."""
        return self.since


class Looking:
    """One slot that a worker held and renews no more, one standby that looks."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.store = FedStore(folder / "fleet.db", cluster="main", clock=self.clock)
        self.store.since = self.clock.monotonic()
        self.store.write_targets(SlotTargets(group="g", open=frozenset({0, 1})))
        held = self.store.take(
            self.store.slots("g")[0], worker="w", revision="r", spark_session=None
        )
        assert held.phase is Phase.JOINING
        self.watcher = SlotWatcher(self.store, group="g", lease=10.0, clock=self.clock)
        self.watcher.refresh()
        self.dead()

    def later(self, seconds: float) -> None:
        """Time goes by, with a look each second."""
        while seconds > 0:
            self.clock.sleep(min(1.0, seconds))
            seconds -= 1.0
            self.watcher.refresh()

    def dead(self) -> frozenset[int]:
        self.watcher.refresh()
        return self.watcher.dead()

    def takeable_slots(self) -> list[int]:
        """What a standby may take."""
        self.watcher.refresh()
        slots = self.watcher.takeable_slots(worker="s", revision="r", since=0.0)
        return sorted(slot.number for slot in slots)


@pytest.fixture
def looking(tmp_path: Path) -> Looking:
    return Looking(tmp_path)


def test_after_silence_a_owner_has_a_whole_lease(looking: Looking):
    """It could not renew while nobody answered; what was free is free at once."""
    looking.store.since = None
    looking.later(300.0)
    looking.store.since = looking.clock.monotonic()
    assert looking.takeable_slots() == [1]
    looking.later(9.9)
    assert looking.dead() == frozenset()
    looking.later(0.2)
    assert looking.dead() == {0}


def test_who_does_not_see_a_lease_calls_nobody_dead(looking: Looking, monkeypatch):
    """What an owner is shown of another's slot stands still; seen again, it has a whole lease."""
    monkeypatch.setattr(looking.store, "attend", lambda group, slot: slot is not None)
    looking.later(5.0)
    looking.watcher.attend(1)
    looking.later(30.0)
    assert looking.dead() == frozenset()
    looking.watcher.attend(None)
    assert looking.dead() == frozenset()
    looking.later(9.9)
    assert looking.dead() == frozenset()
    looking.later(0.2)
    assert looking.dead() == {0}


def test_a_slot_that_was_handed_over_is_left_to_others(looking: Looking):
    """While it is pinned, for a lease; how long it was free before its owner says nothing."""
    slot = looking.store.slots("g")[0]
    looking.later(10.0)
    assert looking.takeable_slots() == [0, 1]
    looking.later(60.0)  # as long as its owner took
    assert looking.store.release(slot, clean=True)
    asked = Handover(token=slot.token, revision="r")
    looking.store.write_targets(replace(looking.store.targets("g"), handover={0: asked}))
    looking.watcher.forget_released(slot, handed=True)
    assert looking.takeable_slots() == [1]
    looking.later(10.0)
    assert looking.takeable_slots() == [0, 1]
    looking.store.write_targets(replace(looking.store.targets("g"), handover={}))
    looking.watcher.forget()
    assert looking.takeable_slots() == [0, 1]


PIN = Handover(token=1, revision="new")


class Pinned(Looking):
    """Slot 1, released by its owner, is pinned to another revision than the standby's."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        held = self.store.take(
            self.store.slots("g")[1], worker="v", revision="r", spark_session=None
        )
        targets = self.store.targets("g")
        assert self.store.write_targets(replace(targets, handover={1: PIN})) is not None
        assert self.store.release(held, clean=True)
        self.counter, self.phase = 0, "standby"

    def later(self, seconds: float, *alive: str) -> None:
        """Time goes by; workers of these revisions report meanwhile."""
        while seconds > 0:
            self.clock.sleep(1.0)
            seconds -= 1.0
            self.counter += 1
            for revision in alive:
                self.store.report(
                    report_of(
                        worker=f"w-{revision}",
                        revision=revision,
                        counter=self.counter,
                        phase=self.phase,
                    )
                )
            self.store.beat("g")
            self.takeable_slots()

    def pinned(self) -> bool:
        """Whether slot 1 is not for this standby."""
        return 1 not in self.takeable_slots()


@pytest.mark.parametrize("revision", ["new", "new~5d9f"])
def test_a_pin_holds_while_its_revision_has_a_standby(tmp_path: Path, revision: str):
    """One of a template that is not registered yet, too; its last report counts for a lease."""
    looking = Pinned(tmp_path)
    looking.later(60.0, revision)
    assert looking.pinned()
    looking.later(10.0)
    assert looking.pinned()
    looking.later(2.0)
    assert not looking.pinned()
    assert looking.watcher.void == {1: PIN}
    (seen,) = (s for s in looking.watcher.slots if s.number == 1)
    taken = looking.store.take(
        seen, worker="s", revision="r", spark_session=None, void=looking.watcher.void[1]
    )
    assert (taken.owner, taken.token) == ("s", 2)


@pytest.mark.parametrize("phase", ["starting", "active", "ended"])
def test_workers_that_cannot_take_it_soon_keep_no_pin(tmp_path: Path, phase: str):
    """Those that come back start first; an owner has its slot; who ends takes none."""
    looking = Pinned(tmp_path)
    looking.phase = phase
    looking.later(1.0, "new")
    assert looking.pinned()
    looking.later(2.0, "new")
    assert not looking.pinned()


def test_a_pin_stands_while_reports_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Who is there is not known then."""
    looking = Pinned(tmp_path)

    def away(group: str) -> None:
        raise Unreachable("the store is away")

    monkeypatch.setattr(looking.store, "reports", away)
    looking.later(60.0)
    assert looking.pinned()


# --- a batched leave that its actor left behind is completed by the workers [21] --------------


NOBODY: frozenset[int] = frozenset()


class Leaving:
    """Two of three slots closed for a leave, their actor silent."""

    def __init__(self, folder: Path, *, static: bool = True) -> None:
        self.clock = ManualClock()
        self.store = SqliteStore(folder / "fleet.db", cluster="main", clock=self.clock)
        self.sent: list[list[tuple[str | None, str]]] = []
        self.refusal: str | None = None
        self.store.write_targets(SlotTargets(group="g", open=frozenset({0, 1, 2})))
        for number in (0, 1, 2):
            self.hold(number)
        targets = self.store.targets("g")
        self.store.write_targets(replace(targets, leaving=frozenset({1, 2}), plan_id="p"))
        group = group_spec("g", worker={"membership": "static" if static else "dynamic"})
        context = worker_context(settings_of(group), name="w0", clock=self.clock)
        self.completer = LeaveCompleter(context, self.store, leave=self._leave)

    def hold(self, number: int) -> None:
        """Take a slot as w<number>."""
        seen = self.store.slots("g")[number]
        slot = self.store.take(seen, worker=f"w{number}", revision="r", spark_session=None)
        self.store.renew(replace(slot, member_id=f"m{number}", phase=Phase.ACTIVE))

    def close(self, number: int) -> None:
        slot = self.store.renew(replace(self.store.slots("g")[number], phase=Phase.CLOSED))
        assert self.store.release(slot, clean=True)

    def _leave(self, group: str, members: Sequence[tuple[str | None, str]]) -> str | None:
        """What worker w0 sends is kept."""
        self.sent.append(list(members))
        return self.refusal

    def later(self, seconds: float, dead: frozenset[int] = NOBODY) -> None:
        """Time goes by, with a look each second that completes nothing."""
        while seconds > 0:
            assert not self.step(dead)
            self.clock.sleep(min(1.0, seconds))
            seconds -= 1.0

    def step(self, dead: frozenset[int] = NOBODY) -> bool:
        return self.completer.step(self.store.targets("g"), self.store.slots("g"), dead)


@pytest.fixture
def leaving(tmp_path: Path) -> Leaving:
    return Leaving(tmp_path)


def test_actor_gets_one_lease(leaving: Leaving):
    """Only after the actor was silent for one lease, and then with one request for all."""
    leaving.close(1)
    leaving.close(2)
    assert not leaving.step()
    leaving.later(9.9)
    assert not leaving.step()
    leaving.later(0.2)
    assert leaving.step()
    assert leaving.sent == [[("g-1", "m1"), ("g-2", "m2")]]
    targets = leaving.store.targets("g")
    assert (targets.open, targets.leaving) == (frozenset({0}), frozenset())
    assert leaving.store.slots("g")[1].member_id is None


def test_living_owner_is_waited_for(leaving: Leaving):
    """A slot that is still held is not left over its owner's head; a dead owner's is.

    Until all are drained, closed or dead nobody closes, either.
    """
    leaving.close(1)
    targets, slots = leaving.store.targets("g"), leaving.store.slots("g")
    assert not all_drained(targets, slots, NOBODY)
    assert all_drained(targets, slots, frozenset({2}))
    leaving.step()
    leaving.later(20)
    assert not leaving.step()
    leaving.later(10, frozenset({2}))
    assert leaving.step(frozenset({2}))


def test_refused_leave_changes_nothing(leaving: Leaving):
    """Superseded members stay: the slot targets still says what is wanted."""
    leaving.refusal = "g-1 now belongs to another process"
    leaving.close(1)
    leaving.close(2)
    leaving.step()
    leaving.later(20)
    assert not leaving.step()
    assert leaving.store.targets("g").leaving == {1, 2}
    assert leaving.store.slots("g")[1].member_id == "m1"


def test_dynamic_members_are_named_by_member_id_and_clear_themselves(tmp_path: Path):
    """A living one is closed, polls no more and holds its slot still: it gives that up itself."""
    leaving = Leaving(tmp_path, static=False)
    done = False
    for number in (1, 2):
        assert leaving.store.renew(replace(leaving.store.slots("g")[number], phase=Phase.CLOSED))
    for _ in range(8):
        # Whoever looks is a worker, and renews meanwhile.
        assert leaving.store.renew(leaving.store.slots("g")[1])
        done = done or leaving.step(frozenset({2}))
        leaving.clock.sleep(2.0)
    assert done
    assert leaving.sent == [[(None, "m1"), (None, "m2")]]
    _, living, dead = leaving.store.slots("g")
    assert (living.owner, living.member_id) == ("w1", "m1")
    assert (dead.owner, dead.member_id) == (None, None)
