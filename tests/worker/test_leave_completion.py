"""A batched leave that its actor left behind is completed by the workers [21]."""

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.clock import ManualClock
from fleet.slots import Gate, Phase
from fleet.slots.sqlite import SqliteStore
from fleet.worker.slot.leave_completion import LeaveCompleter, all_drained
from tests.support.batch_parts import events_of

NOBODY: frozenset[int] = frozenset()


class Scene:
    """Two of three slots closed for a leave, their actor silent."""

    def __init__(self, folder: Path, *, static: bool = True) -> None:
        self.static = static
        self.clock = ManualClock()
        self.store = SqliteStore(folder / "fleet.db", cluster="main", clock=self.clock)
        self.sent: list[list[tuple[str | None, str]]] = []
        self.refusal: str | None = None
        self.store.write_gate(Gate(group="g", open=frozenset({0, 1, 2})))
        for number in (0, 1, 2):
            self.hold(number)
        gate = self.store.gate("g")
        self.store.write_gate(replace(gate, leaving=frozenset({1, 2}), plan_id="p"))

    def hold(self, number: int) -> None:
        """Take a slot as w<number>."""
        seen = self.store.slots("g")[number]
        slot = self.store.take(seen, worker=f"w{number}", revision="r", spark_session=None)
        assert slot is not None
        self.store.renew(replace(slot, member_id=f"m{number}", phase=Phase.ACTIVE))

    def close(self, number: int) -> None:
        slot = self.store.renew(replace(self.store.slots("g")[number], phase=Phase.CLOSED))
        assert slot is not None
        assert self.store.release(slot, clean=True)

    def completer(self) -> LeaveCompleter:
        """Of worker w0; what it sends is kept."""

        def leave(group: str, members) -> str | None:
            self.sent.append(list(members))
            return self.refusal

        return LeaveCompleter(
            self.store,
            group="g",
            static=self.static,
            lease=10.0,
            leave=leave,
            clock=self.clock,
            events=events_of("w0", self.clock),
        )

    def later(
        self, completer: LeaveCompleter, seconds: float, dead: frozenset[int] = NOBODY
    ) -> None:
        """Time goes by, with a look each second that completes nothing."""
        while seconds > 0:
            assert not self.step(completer, dead)
            self.clock.sleep(min(1.0, seconds))
            seconds -= 1.0

    def step(self, completer: LeaveCompleter, dead: frozenset[int] = NOBODY) -> bool:
        return completer.step(self.store.gate("g"), self.store.slots("g"), dead)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_actor_gets_one_lease(scene: Scene):
    """Only after the actor was silent for one lease, and then with one request for all."""
    completer = scene.completer()
    scene.close(1)
    scene.close(2)
    assert not scene.step(completer)
    scene.later(completer, 9.9)
    assert not scene.step(completer)
    scene.later(completer, 0.2)
    assert scene.step(completer)
    assert scene.sent == [[("g-1", "m1"), ("g-2", "m2")]]
    gate = scene.store.gate("g")
    assert (gate.open, gate.leaving) == (frozenset({0}), frozenset())
    assert scene.store.slots("g")[1].member_id is None


def test_living_holder_is_waited_for(scene: Scene):
    """A slot that is still held is not left over its holder's head; a dead holder's is."""
    completer = scene.completer()
    scene.close(1)
    scene.step(completer)
    scene.later(completer, 20)
    assert not scene.step(completer)
    scene.later(completer, 10, frozenset({2}))
    assert scene.step(completer, frozenset({2}))


def test_refused_leave_changes_nothing(scene: Scene):
    """Superseded members stay: the gate still says what is wanted."""
    scene.refusal = "g-1 now belongs to another process"
    completer = scene.completer()
    scene.close(1)
    scene.close(2)
    scene.step(completer)
    scene.later(completer, 20)
    assert not scene.step(completer)
    assert scene.store.gate("g").leaving == {1, 2}
    assert scene.store.slots("g")[1].member_id == "m1"


def test_all_drained_before_anybody_closes(scene: Scene):
    """The leaving close together: when the last of them is drained, closed or dead."""
    gate = scene.store.gate("g")
    assert not all_drained(gate, scene.store.slots("g"), NOBODY)
    scene.close(1)
    assert not all_drained(gate, scene.store.slots("g"), NOBODY)
    assert all_drained(gate, scene.store.slots("g"), frozenset({2}))


def test_a_store_that_was_silent_makes_nobody_complete_a_leave(scene: Scene, monkeypatch):
    """The actor could not renew either: it has a whole lease from when the store is known."""
    completer = scene.completer()
    scene.close(1)
    scene.close(2)
    back_at: list[float] = []
    monkeypatch.setattr(
        scene.store, "known_since", lambda: back_at[0] if back_at else None, raising=False
    )
    scene.later(completer, 60)
    back_at.append(scene.clock.monotonic())
    assert not scene.step(completer)
    scene.later(completer, 9.9)
    assert not scene.step(completer)
    scene.later(completer, 0.2)
    assert scene.step(completer)


def test_dynamic_members_are_named_by_member_id_and_clear_themselves(tmp_path: Path):
    """A living one is closed, polls no more and holds its slot still: it gives that up itself."""
    scene = Scene(tmp_path, static=False)
    completer, done = scene.completer(), False
    for number in (1, 2):
        assert scene.store.renew(replace(scene.store.slots("g")[number], phase=Phase.CLOSED))
    for _ in range(8):
        # Whoever looks is a worker, and renews meanwhile.
        assert scene.store.renew(scene.store.slots("g")[1])
        done = done or scene.step(completer, frozenset({2}))
        scene.clock.sleep(2.0)
    assert done
    assert scene.sent == [[(None, "m1"), (None, "m2")]]
    _, living, dead = scene.store.slots("g")
    assert (living.holder, living.member_id) == ("w1", "m1")
    assert (dead.holder, dead.member_id) == (None, None)
