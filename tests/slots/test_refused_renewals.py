"""A holder that may read but not write still learns that its slot is another's [12]."""

import pytest

from fleet.clock import ManualClock
from fleet.errors import FleetError, Unreachable
from fleet.slots import Gate, Slot
from fleet.slots.backend import Entry, Key, Value
from fleet.slots.memory import Memory, MemoryBackend
from fleet.slots.store import Store
from tests.slots.opened import GROUP


class LastHeard(MemoryBackend):
    """A worker's way to the store: its watch tells nothing new any more, writes are refused."""

    refuses: FleetError | None = None
    silent = False

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory, clock=ManualClock())
        self._heard: dict[Key, Entry | None] = {}

    @property
    def hears(self) -> bool:
        return True

    def read(self, key: Key, *, fresh: bool) -> Entry | None:
        if fresh and self.silent:
            raise Unreachable("nobody answers")
        if fresh or key not in self._heard:
            self._heard[key] = super().read(key, fresh=fresh)
        return self._heard[key]

    def swap(self, key: Key, value: Value, seen: Entry | None) -> Value:
        if self.refuses is not None:
            raise self.refuses
        self._heard[key] = None
        stored = super().swap(key, value, seen)
        self._heard[key] = super().read(key, fresh=True)
        return stored


@pytest.fixture
def memory() -> Memory:
    """Slot 0 is open."""
    made = Memory()
    others(made).write_gate(Gate(group=GROUP, open=frozenset({0})))
    return made


def others(memory: Memory) -> Store:
    """As everybody else has the store."""
    return Store(MemoryBackend(memory, clock=ManualClock()), clock=ManualClock())


def held(memory: Memory) -> tuple[LastHeard, Store, Slot]:
    """By a worker whose writes are refused from now on."""
    way = LastHeard(memory)
    store = Store(way, clock=ManualClock())
    slot = store.take(store.slots(GROUP)[0], worker="w", revision="r", spark_session=None)
    assert slot is not None
    way.refuses = Unreachable("the Role lets nobody write")
    return way, store, slot


def taken(memory: Memory) -> None:
    other = others(memory)
    assert other.take(other.slots(GROUP)[0], worker="x", revision="r", spark_session=None)


def ended(memory: Memory) -> None:
    other = others(memory)
    assert other.end_holder(other.slots(GROUP)[0])


@pytest.mark.parametrize("lose", [taken, ended])
def test_a_refused_renewal_reads_whose_the_slot_is(memory, lose):
    """Another holder, or that somebody saw this one end: it has to stop."""
    _, store, slot = held(memory)
    lose(memory)
    assert store.renew(slot) is None


def test_a_refused_renewal_of_an_own_slot_is_no_loss(memory):
    """It is told as refused, in the refusal's own words."""
    _, store, slot = held(memory)
    with pytest.raises(Unreachable, match="lets nobody write"):
        store.renew(slot)


def test_a_store_that_cannot_be_read_either_is_no_loss(memory):
    """Nothing is concluded from it, and the refusal is what is told."""
    way, store, slot = held(memory)
    taken(memory)
    way.silent = True
    with pytest.raises(Unreachable, match="lets nobody write"):
        store.renew(slot)


def test_a_renewal_whose_answer_was_lost_is_no_loss(memory, monkeypatch):
    """The slot counts on, and is still ours."""
    way, store, slot = held(memory)
    way.refuses = None
    stored = MemoryBackend.swap

    def unanswered(*args: object) -> None:
        stored(way, *args)
        raise Unreachable("the answer was lost")

    monkeypatch.setattr(way, "swap", unanswered)
    with pytest.raises(Unreachable, match="answer was lost"):
        store.renew(slot)
    assert others(memory).slots(GROUP)[0].counter == slot.counter + 1
    monkeypatch.undo()
    assert store.renew(slot) is not None
