"""What a change asks of a place that takes no more workers: as few as will do, and none twice."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.act.lease import ChangeLease
from fleet.act.standby_pool import StandbyPool
from fleet.act.steps import kinds
from fleet.act.steps.work import StepWork
from fleet.clock import ManualClock
from fleet.config.spec import GroupSpec
from fleet.errors import NoRoom, RolledBack
from fleet.model import StepKind
from fleet.slots import Gate, WorkerProcess
from fleet.slots.sqlite import SqliteStore
from tests.support.plans import plan_of, step_of


class Place:
    """Of a runtime: what starts, lists and removes workers, where there is room for so many."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.names: list[str] = []
        self.asked: list[int] = []
        self._made = 0

    def start(self, group: str, revision: str, count: int) -> tuple[str, ...]:
        self.asked.append(count)
        made = []
        for _ in range(min(count, self.room - len(self.names))):
            self._made += 1
            made.append(f"{revision}-{self._made}")
        self.names += made
        if len(made) < count:
            raise NoRoom("exceeded quota", made=tuple(made))
        return tuple(made)

    def workers(self, group: str) -> tuple[WorkerProcess, ...]:
        return tuple(
            WorkerProcess(
                name=name,
                group=group,
                revision=name.partition("-")[0],
                wanted=True,
                running=True,
                restarts=0,
            )
            for name in self.names
        )

    def remove(self, names: tuple[str, ...], *, grace: float) -> None:
        self.names = [name for name in self.names if name not in names]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "fleet.db", cluster="main", clock=ManualClock())
    yield made
    made.close()


def crew_of(place: Any, store: SqliteStore, said: list[str] | None = None) -> StandbyPool:
    """One change's."""
    return StandbyPool(place, store, "orders", say=([] if said is None else said).append)


def test_fewer_will_do_and_it_is_said_once(store: SqliteStore) -> None:
    """Of three one; the next asks for no more than there was room for, until more are needed."""
    place, said = Place(3), list[str]()
    place.start("orders", "old", 2)
    pool = crew_of(place, store, said)
    assert pool.ensure("new", 3, least=1) == 1
    assert said == ["  1 worker without a slot where 3 were wanted: exceeded quota"]
    assert place.asked == [2, 3]
    assert pool.ensure("new", 3, least=1) == 1
    place.names.remove("new-3")  # it took a slot, say
    place.names.remove("old-1")  # whose holder went
    assert pool.ensure("new", 3, least=1) == 1
    assert place.asked == [2, 3, 1]
    assert len(said) == 1


def test_too_few_are_taken_back(store: SqliteStore) -> None:
    """Where all of them are needed, those that were made go again; tried again, it is the same."""
    place = Place(3)
    place.start("orders", "old", 2)
    for _ in range(3):
        with pytest.raises(NoRoom, match="exceeded quota"):
            crew_of(place, store).ensure("new", 3, least=2)
        assert place.names == ["old-1", "old-2"]
    with pytest.raises(NoRoom):
        crew_of(place, store).ensure("new", 3)
    assert place.asked == [2, 3, 3, 3, 3]


def test_a_standby_is_worth_no_failure(store: SqliteStore) -> None:
    """At the end of a change that went well: it is said, and that is all."""
    place, said = Place(0), list[str]()
    crew_of(place, store, said).settle_standbys("new", 1, grace=1.0, least=0)
    assert said == ["  0 workers without a slot where 1 were wanted: exceeded quota"]


def test_a_roll_without_room_for_one_pod_has_touched_nothing(store: SqliteStore) -> None:
    """Rolled back, with the words of who refused it: no ask in the gate, the old ones as before."""
    place, said, clock = Place(3), list[str](), ManualClock()
    place.start("orders", "old", 3)
    store.write_gate(Gate(group="orders", open=frozenset({0, 1})))
    for slot, worker in zip(store.slots("orders"), place.names, strict=False):
        assert store.take(slot, worker=worker, revision="old", spark_session=None) is not None
    step = step_of(StepKind.ROLL, (0, 1))
    change = store.begin_change(plan_of(step), actor="test", started_at=0.0)
    assert change is not None
    worker = {"protocol": "classic", "entrypoint": "job:process"}
    work = StepWork(
        spec=GroupSpec.model_validate({"group": "orders", "topics": ["t"], "worker": worker}),
        store=store,
        pool=crew_of(place, store, said),
        leave=lambda *_, **__: None,
        lease=ChangeLease(store, change, lease=10.0),
        wait=lambda *_: None,
        ledger=place,
        clock=clock,
        progress=said.append,
        window=None,
    )
    with pytest.raises(RolledBack, match="exceeded quota; nothing was handed over, old goes on"):
        kinds.perform(work, step)
    assert place.names == ["old-1", "old-2", "old-3"]
    assert not store.gate("orders").handover
    assert place.asked == [3, 3]
