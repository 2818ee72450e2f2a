"""A holder is one only while it renews: whoever finds another one, or ends, is lost at once."""

import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.act.lease import ChangeLease
from fleet.clock import SystemClock
from fleet.errors import FleetError, LostLease, Unreachable
from fleet.model import Plan
from fleet.slots import Gate, Slot
from fleet.slots.sqlite import SqliteStore
from fleet.worker.events import VARIABLE, Events
from fleet.worker.holding import Holding

LEASE = 0.3
FULL = "/dev/full"


class Refusing(SqliteStore):
    """Refuses renewals while it is told to."""

    refuses: FleetError | None = None

    def renew(self, slot: Slot) -> Slot | None:
        """See SlotStore."""
        if self.refuses is not None:
            raise self.refuses
        return super().renew(slot)


@pytest.fixture
def store(tmp_path: Path) -> Refusing:
    store = Refusing(tmp_path / "fleet.db", cluster="main", clock=SystemClock())
    store.write_gate(Gate(group="g", open=frozenset({0})))
    return store


Hold = Callable[..., Holding]


@pytest.fixture
def hold(store: Refusing) -> Iterator[Hold]:
    """Takes slot 0 and keeps it."""
    held: list[Holding] = []

    def take(lease: float = LEASE, **how: Any) -> Holding:
        slot = store.take(store.slots("g")[0], worker="w", revision="r", spark_session=None)
        assert slot is not None
        clock = SystemClock()
        parts = {"fields": dict, "after": lambda: None, **how}
        environ = {VARIABLE: FULL}
        events = Events(worker="w", clock=clock, environ=environ)
        held.append(Holding(store, slot, lease=lease, clock=clock, events=events, **parts))
        return held[-1]

    yield take
    for each in held:
        each.abandon()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def full_stream() -> io.TextIOWrapper:
    """Each write finds the disk full."""
    return io.TextIOWrapper(io.FileIO(FULL, "w"), write_through=True)


def steal(store: SqliteStore) -> None:
    """As who watched the lease expire."""
    stolen: Slot | None = None
    while stolen is None:  # the holder renews in between
        seen = store.slots("g")[0]
        stolen = store.take(seen, worker="x", revision="r", spark_session=None)


def test_another_holder_is_found_at_the_next_renewal(store: Refusing, hold: Hold):
    """And nothing of ours is written any more: not the fields, not the release [12]."""
    holding = hold(lease=60.0)
    steal(store)
    assert holding.lost is None
    assert holding.renew() is False
    assert "another holder" in str(holding.lost)
    assert not holding.still_ours()
    assert not holding.release(clean=True)
    assert store.slots("g")[0].holder == "x"


def test_the_lease_thread_finds_another_holder(store: Refusing, hold: Hold):
    """Within a third of the lease, without being asked."""
    holding = hold()
    steal(store)
    until(lambda: holding.lost is not None)


@pytest.mark.parametrize("refusal", [Unreachable("silent"), FleetError("a webhook says no")])
def test_a_store_that_is_silent_or_refuses_is_no_loss(
    store: Refusing, hold: Hold, refusal: FleetError
):
    """The holder goes on, and renews when it may again [12]."""
    holding = hold()
    store.refuses = refusal
    time.sleep(LEASE)
    assert holding.lost is None
    counter = store.slots("g")[0].counter
    store.refuses = None
    until(lambda: store.slots("g")[0].counter > counter)


def test_a_full_disk_ends_no_lease(store: Refusing, hold: Hold, monkeypatch: pytest.MonkeyPatch):
    """Neither the lines for people nor the events nor the report can be written [40]."""

    def report() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", full_stream())
    holding = hold(after=report)
    store.refuses = Unreachable("the disk may be full")  # says so
    time.sleep(LEASE / 2)
    store.refuses = None
    counter = store.slots("g")[0].counter
    until(lambda: store.slots("g")[0].counter > counter + 2)
    assert holding.lost is None


def test_a_lease_thread_that_ends_ends_the_membership(hold: Hold):
    """For whatever reason: nobody would renew, and nobody would know [40]."""

    def fields() -> dict[str, Any]:
        raise ZeroDivisionError("a bug of ours")

    holding = hold(fields=fields)
    until(lambda: holding.lost is not None)
    assert "a bug of ours" in str(holding.lost)


def test_being_stopped_is_no_loss(hold: Hold):
    """Released in good order."""
    holding = hold()
    assert holding.release(clean=True)
    time.sleep(LEASE / 2)
    assert holding.lost is None


@pytest.mark.parametrize("stream", [None, "closed", FULL])
def test_telling_never_raises(monkeypatch: pytest.MonkeyPatch, stream: str | None):
    """No stream, a closed one, a full disk."""
    file = None if stream is None else full_stream()
    if stream == "closed":
        assert file is not None
        file.close()
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(sys, "stdout", file)
    for target in ("-", FULL, "/nowhere/at/all"):
        events = Events(worker="w", clock=SystemClock(), environ={VARIABLE: target})
        events.say("one")
        events.say_rarely("two")
        events.tell("three", four=5)


def test_a_managers_lease_that_is_kept_no_more_ends_its_work(store: Refusing):
    """It would go on changing a group that another one may adopt [40]."""
    plan = Plan(
        id="p",
        cluster="main",
        group="g",
        created_at=0.0,
        snapshot_at=0.0,
        wanted=1,
        revision="r",
        steps=(),
    )
    change = store.begin(plan, actor="ann", started_at=0.0)
    assert change is not None
    advance, main = store.advance, threading.current_thread()

    def failing(seen):
        if threading.current_thread() is not main:
            raise ZeroDivisionError("a bug of ours")
        return advance(seen)

    store.advance = failing  # type: ignore[method-assign]

    def is_lost() -> bool:
        try:
            lease.check()
        except LostLease as error:
            return "a bug of ours" in str(error)
        return False

    with ChangeLease(store, change, lease=LEASE) as lease:
        until(is_lost)
        with pytest.raises(LostLease):
            lease.remember(more=1)
