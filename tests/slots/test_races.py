"""Real processes race, are killed in the middle, and the store stays right."""

import itertools
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase as HypothesisPhase
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fleet.clock import ManualClock, SystemClock
from fleet.errors import Unreachable
from fleet.slots import Phase, Slot, SlotTargets
from fleet.slots.sqlite import SqliteStore

GROUP = "orders"
ROUNDS = 12

# Takes every slot number as soon as it is open, prints what it won.
RACER = """
import sys
from fleet.slots import Slot
from tests.slots.opened import opened_by
store = opened_by(sys.argv[1])
name = sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    won = store.take(
        Slot(group="orders", number=number), worker=name, revision="r", spark_session=None
    )
    if won is not None:
        print(number, won.token, flush=True)
"""

# Reaches for the slot of its own number, seen before the race began; prints what it won.
TRIAL = """
import sys
from tests.slots.opened import opened_by
store = opened_by(sys.argv[1])
seen = store.slots("orders")[int(sys.argv[2])]
print("ready", flush=True)
sys.stdin.readline()
won = store.take(seen, worker=sys.argv[2], revision="new", spark_session=None)
if won is not None:
    print(won.number, flush=True)
"""

# Writes as fast as it can until it is killed.
WRITER = """
import sys
from dataclasses import replace
from tests.slots.opened import opened_by
store = opened_by(sys.argv[1])
number = int(sys.argv[2])
seen = next(s for s in store.slots("orders") if s.number == number)
slot = store.take(seen, worker=sys.argv[3], revision="r", spark_session=None)
print("ready", flush=True)
while slot is not None:
    slot = store.renew(replace(slot, member_id="m" * 500, batches=slot.batches + 1))
    targets = store.targets("orders")
    store.write_targets(replace(targets, open_at=targets.open_at + 1))
"""


def start(program: str, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


def let_go(racers: "list[subprocess.Popen[str]]") -> None:
    """All at once, when all are there."""
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()


def test_of_many_processes_exactly_one_takes_each_slot(racing):
    """All see the same free slot and take it at once: one wins, the others get None."""
    store, stores = racing.open(), racing
    assert store.write_targets(SlotTargets(group=GROUP, open=frozenset(range(ROUNDS))))
    racers = [start(RACER, stores.told(), f"w{n}", ROUNDS) for n in range(stores.racers)]
    let_go(racers)
    won = [
        line.split() for racer in racers for line in racer.communicate(timeout=300)[0].splitlines()
    ]
    assert sorted(int(number) for number, _ in won) == list(range(ROUNDS))
    assert {slot.owner is not None for slot in store.slots(GROUP)} == {True}


def test_of_many_processes_of_a_new_revision_one_takes_a_slot(racing):
    """Each sees another free slot of the old revision: one of them is the trial [22]."""
    store, stores = racing.open(), racing
    assert store.write_targets(SlotTargets(group=GROUP, open=frozenset(range(8))))
    for slot in store.slots(GROUP):
        held = store.take(slot, worker="old", revision="old", spark_session=None)
        assert store.release(held, clean=True)
    racers = [start(TRIAL, stores.told(), n) for n in range(stores.racers)]
    let_go(racers)
    won = [int(line) for racer in racers for line in racer.communicate(timeout=300)[0].split()]
    assert len(won) == 1
    assert [s.number for s in store.slots(GROUP) if s.revision == "new"] == won


def test_a_store_whose_writers_are_killed_stays_readable(racing):
    """After kill -9 in write loops the store opens, slots can be taken, tokens grow."""
    store, stores = racing.open(), racing
    assert store.write_targets(SlotTargets(group=GROUP, open=frozenset({0, 1})))
    tokens: dict[int, int] = {0: 0, 1: 0}
    seeded = random.Random(7)
    for round_ in range(3):
        writers = [start(WRITER, stores.told(), n, f"w{n}-{round_}") for n in (0, 1)]
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        time.sleep(seeded.uniform(0.05, 0.2))
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.communicate(timeout=300)
        fresh = stores.open()
        for slot in fresh.slots(GROUP):
            assert slot.token > tokens[slot.number]
            assert slot.counter > 0
            tokens[slot.number] = slot.token
    if stores.kind == "sqlite":
        with sqlite3.connect(stores.folder / "fleet.db") as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_stores_opened_for_the_first_time_at_once(tmp_path):
    """The schema is made once, whoever comes first."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(8)

    def open_it(number: int) -> None:
        try:
            barrier.wait()
            store = SqliteStore(tmp_path / "fleet.db", cluster="main", clock=SystemClock())
            store.put_manager_state(GROUP, str(number), {})
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=open_it, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_store_that_stays_locked_is_unreachable(tmp_path, monkeypatch):
    """The wait for another writer is bounded and ends in a sentence."""
    store = SqliteStore(tmp_path / "fleet.db", cluster="main", clock=ManualClock())
    monkeypatch.setattr("fleet.slots.sqlite._BUSY_SECONDS", 0.1)
    impatient = SqliteStore(tmp_path / "fleet.db", cluster="main", clock=ManualClock())
    with (
        store.database.write(),
        pytest.raises(Unreachable, match=r"does not answer \(database is locked\)"),
    ):
        impatient.put_manager_state(GROUP, "k", {})
    impatient.put_manager_state(GROUP, "k", {})


def test_threads_of_a_process_write_in_turn(tmp_path):
    """SQLite serves waiting threads in no order. A forked process does not inherit the turn."""
    one, two = (
        SqliteStore(tmp_path / "fleet.db", cluster="main", clock=SystemClock()) for _ in range(2)
    )
    waiting = threading.Thread(target=two.put_manager_state, args=(GROUP, "waiting", {}))
    forked = multiprocessing.get_context("fork").Process(
        target=one.put_manager_state, args=(GROUP, "forked", {})
    )
    with one.database._turn():
        waiting.start()
        forked.start()
        forked.join(60)
        assert (forked.exitcode, waiting.is_alive()) == (0, True)
        assert one.manager_state(GROUP, "forked") == {}
        assert one.manager_state(GROUP, "waiting") is None
    waiting.join(60)
    assert one.manager_state(GROUP, "waiting") == {}


class Slots(RuleBasedStateMachine):
    """Stale and fresh actors in any order; at most one of them ever holds the slot."""

    def __init__(self, store: Any, number: int) -> None:
        super().__init__()
        self.store = store
        self.number = number
        self.views: list[Slot] = [Slot(group=GROUP, number=number)]
        self.held: dict[str, Slot] = {}
        self.tokens = [0]

    def stored(self) -> list[Slot]:
        """The slot, once it was opened."""
        return [slot for slot in self.store.slots(GROUP) if slot.number == self.number]

    @rule(open_=st.booleans())
    def write_targets(self, open_: bool) -> None:
        """Open or shut the slot."""
        targets = self.store.targets(GROUP)
        assert self.store.write_targets(
            replace(targets, open=frozenset({self.number} if open_ else ()))
        )

    @rule()
    def look(self) -> None:
        """Remember the slot as it is now, to act on it later."""
        self.views.extend(self.stored())

    @rule(data=st.data(), worker=st.sampled_from(["a", "b", "c"]))
    def take(self, data: st.DataObject, worker: str) -> None:
        """Act on any view, however old."""
        seen = data.draw(st.sampled_from(self.views))
        won = self.store.take(seen, worker=worker, revision="r", spark_session=None)
        if won is not None:
            assert self.number in self.store.targets(GROUP).open
            assert won.token > self.tokens[-1]
            self.tokens.append(won.token)
            self.held[worker] = won

    @precondition(lambda self: self.held)
    @rule(data=st.data(), phase=st.sampled_from([Phase.ACTIVE, Phase.CLOSED]))
    def renew(self, data: st.DataObject, phase: Phase) -> None:
        """Renew as the owner that one believes to be."""
        worker = data.draw(st.sampled_from(sorted(self.held)))
        renewed = self.store.renew(replace(self.held[worker], phase=phase))
        assert (renewed is not None) is (self.held[worker].token == self.owner_token())
        if renewed is None:
            del self.held[worker]
        else:
            self.held[worker] = renewed

    @precondition(lambda self: self.held)
    @rule(data=st.data(), clean=st.booleans())
    def release(self, data: st.DataObject, clean: bool) -> None:
        """Give up what one believes to hold."""
        worker = data.draw(st.sampled_from(sorted(self.held)))
        mine = self.held.pop(worker)
        assert self.store.release(mine, clean=clean) is (mine.token == self.owner_token(mine))

    def owner_token(self, before: Slot | None = None) -> int | None:
        """The token that owns the slot; asked after a release, the one that owned it."""
        (slot,) = self.stored()
        if slot.owner is None and before is None:
            return None
        return slot.token

    @invariant()
    def one_owner(self) -> None:
        """At most one worker's slot is the stored one."""
        for slot in self.stored():
            live = [
                w for w, mine in self.held.items() if (w, mine.token) == (slot.owner, slot.token)
            ]
            assert len(live) <= 1


def test_whatever_stale_actors_do_one_holds_the_slot(store, stores):
    """In any order of looks, takes, renewals and releases."""
    local, numbers = stores.local, itertools.count()
    run_state_machine_as_test(
        lambda: Slots(store, next(numbers)),
        settings=settings(
            max_examples=40 if local else 8,  # of twenty slots that a worker finds made
            stateful_step_count=30,
            deadline=None,
            phases=list(HypothesisPhase) if local else [HypothesisPhase.generate],
        ),
    )
