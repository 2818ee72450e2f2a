"""What one store has: values that read back, a file's schema, looks that
decode only what has changed, and renewals that are refused [12].
"""

import contextlib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.clock import ManualClock, SystemClock
from fleet.errors import FleetError, SchemaTooNew, Unreachable
from fleet.kubernetes.leases.lease_store import LeaseStore
from fleet.model import ExpectedCost, Plan, Receipt, Step
from fleet.slots import Change, Phase, Slot, SlotTargets, WorkerReport, codec, transitions
from fleet.slots.backend import Entry, Key, Value
from fleet.slots.store import Store
from tests.slots.opened import GROUP, sqlite
from tests.support.memory_server import MemoryServer
from tests.support.memory_slots import Memory, MemoryBackend
from tests.support.plans import plan_of
from tests.support.sampling import examples
from tests.support.waiting import until


def test_a_take_that_is_undone_keeps_the_tokens_growing() -> None:
    """Whoever saw the taken slot has seen another one than who sees it free again."""
    before = Slot(group="orders", number=3, token=7, phase=Phase.CLOSED, member_id="m", batches=4)
    taken = transitions.take_slot(before, worker="w", revision="r", spark_session="s")
    back = transitions.undo_take(taken, before)
    assert (back.owner, back.token, back.phase) == (None, 8, Phase.CLOSED)
    assert (back.member_id, back.batches, back.clean) == ("m", 4, True)


# --- what the store writes reads back as the same values --------------------------------------


_json = st.dictionaries(
    st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(max_size=5), max_size=3
)


@pytest.mark.parametrize(
    "kind", [ExpectedCost, Step, Plan, Receipt, Change, SlotTargets, WorkerReport]
)
def test_round_trip(kind):
    """Every field survives, through text."""
    as_json = codec.targets_as_json if kind is SlotTargets else codec.as_json
    st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
    st.register_type_strategy(object, _json)

    @examples(60)
    @given(st.from_type(kind))
    def round_trip(value):
        if isinstance(value, Change):  # a record's own detail is always one object of JSON
            value = replace(value, detail=dict(value.detail))
        stored = as_json(value)
        assert list(stored) == [field.name for field in fields(kind)]
        assert codec.from_json(kind, json.loads(json.dumps(stored))) == value

    round_trip()


# --- what only the local store has ------------------------------------------------------------


@pytest.fixture
def local(tmp_path):
    return sqlite(tmp_path)


def test_a_newer_schema_is_refused(local, tmp_path):
    """State written by a newer version is left alone, with the version in the message."""
    with local.database.write() as db:
        db.execute("UPDATE meta SET value = 99 WHERE name = 'schema'")
    with pytest.raises(SchemaTooNew, match="schema 99"):
        sqlite(tmp_path)


def test_a_poller_sees_every_change_and_only_changes(local, tmp_path):
    """data_version moves with own and others' writes, and stands still otherwise."""
    other = sqlite(tmp_path)
    at_first = local.data_version()
    assert local.data_version() == at_first
    local.put_manager_state(GROUP, "k", {})
    after_own = local.data_version()
    assert after_own != at_first
    other.put_manager_state(GROUP, "k", {"a": 1})
    assert local.data_version() != after_own


def stored_by_a_newer_release(path, kind, before, after):
    """A word of one kind, as a release that knows more of them writes it."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        done = db.execute(
            "UPDATE objects SET body = replace(body, ?, ?) WHERE kind = ?", (before, after, kind)
        )
        assert done.rowcount == 1
        db.commit()


def test_what_a_newer_release_added_is_kept(local):
    """Of the slot targets and of a slot: this one writes what it knows beside it."""
    local.write_targets(SlotTargets(group=GROUP, open=frozenset({0})))
    held = local.take(local.slots(GROUP)[0], worker="w", revision="r", spark_session=None)
    with contextlib.closing(sqlite3.connect(local.database.path)) as db:
        for kind, at in (("targets", "$.targets.colour"), ("slot", "$.colour")):
            db.execute(
                "UPDATE objects SET body = json_set(body, ?, 'red') WHERE kind = ?", (at, kind)
            )
        db.commit()
        local.write_targets(replace(local.targets(GROUP), open=frozenset({0, 1})))
        assert local.renew(held)
        bodies = db.execute(
            "SELECT body FROM objects WHERE kind = 'targets' OR (kind = 'slot' AND number = 0)"
        ).fetchall()
    assert [body.count('"colour":"red"') for (body,) in bodies] == [1, 1]


def test_what_only_a_newer_release_can_read_is_no_answer(local):
    """Its name is told with what to do; who holds a slot works on, as where a store is silent."""
    local.write_targets(SlotTargets(group=GROUP, open=frozenset({0})))
    held = local.take(local.slots(GROUP)[0], worker="w", revision="r", spark_session=None)
    path = local.database.path
    assert local.begin_change(plan_of(group=GROUP), actor="a", started_at=0.0)
    stored_by_a_newer_release(path, "change", '"state":"running"', '"state":"dancing"')
    for ask in (local.change, local.changes):
        with pytest.raises(
            Unreachable, match=rf"a change of group {GROUP} cannot be read.*dancing"
        ):
            ask(GROUP)
    stored_by_a_newer_release(path, "slot", '"joining"', '"dancing"')
    with pytest.raises(
        Unreachable, match=f"slot 0 of group {GROUP} cannot be read.*newer version of Fleet"
    ):
        local.slots(GROUP)
    with pytest.raises(Unreachable):
        local.renew(held)
    assert local.targets(GROUP).open == {0}


# --- a look decodes what has changed since the one before -------------------------------------


SLOTS = 30


def opened(store: Store) -> Slot:
    """Thirty slots; as an owner has slot 7."""
    assert store.write_targets(SlotTargets(group=GROUP, open=frozenset(range(SLOTS))))
    seen = store.slots(GROUP)[7]
    held = store.take(seen, worker="w", revision="r", spark_session=None)
    assert held is not None
    return held


def anew(before: Sequence[Slot], after: Sequence[Slot]) -> list[int]:
    """Numbers of the slots that were decoded for the second look."""
    told = zip(before, after, strict=True)
    return [now.number for then, now in told if now is not then]


@pytest.fixture
def here(tmp_path: Path) -> Any:
    store = sqlite(tmp_path)
    yield store
    store.close()


def test_one_renewal_is_one_slot_decoded(here: Store, tmp_path: Path):
    """Of the file; whoever wrote it."""
    held, other = opened(here), sqlite(tmp_path)
    before = here.slots(GROUP)
    renewed = other.renew(replace(held, phase=Phase.ACTIVE, batches=3))
    after = here.slots(GROUP)
    assert anew(before, after) == [7]
    assert after[7] == renewed
    assert anew(after, here.slots(GROUP)) == []
    assert here.targets(GROUP) is here.targets(GROUP)
    other.close()


def test_groups_and_clusters_are_told_apart(here: Store, tmp_path: Path):
    """The same number and the same row of another group is another slot."""
    for group in ("a", "b"):
        assert here.write_targets(SlotTargets(group=group, open=frozenset({0})))
    assert [here.slots(group)[0].group for group in ("a", "b", "a")] == ["a", "b", "a"]
    assert [here.targets(group).group for group in ("a", "b", "a")] == ["a", "b", "a"]


def test_one_renewal_is_one_lease_decoded():
    """Of what the watches brought, to a worker."""
    clock, server = SystemClock(), MemoryServer()
    api = server.api(clock)
    manager = LeaseStore.for_manager(api, cluster="main", clock=clock, lease=30.0)
    held = opened(manager)
    worker = LeaseStore.for_worker(
        api, cluster="main", group=GROUP, revision="r", lease=30.0, clock=clock
    )
    before = worker.slots(GROUP)
    renewed = manager.renew(replace(held, phase=Phase.ACTIVE, batches=3))
    until(lambda: worker.slots(GROUP)[7] == renewed, "the event", every=0.01)
    assert anew(before, worker.slots(GROUP)) == [7]
    worker.close()


# --- an owner that may read but not write learns that its slot is another's [12] --------------


class LastHeard(MemoryBackend):
    """A worker's way to the store: its watch tells nothing new any more, writes are refused."""

    refuses: FleetError | None = None
    silent = False

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory, clock=ManualClock())
        self._heard: dict[Key, Entry | None] = {}

    @property
    def reads_cache(self) -> bool:
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
    others(made).write_targets(SlotTargets(group=GROUP, open=frozenset({0})))
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
    assert other.end_owner(other.slots(GROUP)[0])


@pytest.mark.parametrize("lose", [taken, ended])
def test_a_refused_renewal_reads_whose_the_slot_is(memory, lose):
    """Another owner, or that somebody saw this one end: it has to stop."""
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
