"""What a holder tells while its consumer thread waits for brokers that are away.

The consumer is a double: librdkafka's calls as they are then, each of its whole timeout.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.clock import ManualClock, SystemClock
from fleet.slots import Gate, Phase, Slot
from fleet.slots.sqlite import SqliteStore
from fleet.worker.member import membership as members
from fleet.worker.member.losses import QuarantinedPartitions
from fleet.worker.member.membership import Membership
from fleet.worker.slot.reporting import Reporter
from fleet.worker.slot.slot_holder import SlotHolder
from fleet.worker.slot.slot_lease import SlotWatcher
from fleet.worker.slot.slot_life import Life
from tests.support.batch_parts import worker_context
from tests.support.declared import settings_of


class Away:
    """A Consumer that no broker answers, for as long as `seconds` of the clock."""

    def __init__(self, clock: ManualClock, look: Any) -> None:
        self.clock, self.look = clock, look

    def committed(self, asked: list[Any], timeout: float) -> list[Any]:
        """After its timeout, in vain."""
        self.clock.sleep(timeout)
        self.look()
        raise KafkaException(KafkaError(-195))

    def list_topics(self, topic: str | None = None, timeout: float = 0.0) -> None:
        self.committed([], timeout)

    def memberid(self) -> str:
        """It never joined."""
        return ""

    def close(self) -> None:
        """At once."""


class Place:
    """A worker's facts, and a membership of it."""

    def __init__(self, home: Path) -> None:
        self.clock = ManualClock()
        self.context = worker_context(
            settings_of(bootstrap="kafka:9092"), name="w1", clock=self.clock
        )
        self.reporter = Reporter(self.context)
        self.store = SqliteStore(home / "fleet.db", cluster="main", clock=SystemClock())
        self.answers: list[bool] = []
        """Whether the worker was live, at each call that no broker answered."""

    def look(self) -> None:
        """What a probe would be told now."""
        self.answers.append(bool(self.reporter.status()["live"]))

    def membership(self, consumer: Any, monkeypatch: pytest.MonkeyPatch) -> Membership:
        """Of slot 0, on this consumer."""
        monkeypatch.setattr(members, "Consumer", lambda _: consumer)
        monkeypatch.setattr(members, "AdminClient", lambda _: consumer)
        made = Membership(
            self.context,
            Slot(group="orders", number=0),
            open_at=0.0,
            runner=SimpleNamespace(),  # type: ignore[arg-type] # nothing is read
            marks=QuarantinedPartitions(self.store, self.context),
            may_join=lambda: True,
        )
        self.reporter.member(0, made.state)
        return made

    def holder(self, seen: Slot) -> SlotHolder:
        """Of a slot that is not taken yet."""
        watcher = SlotWatcher(self.store, group="orders", lease=10.0, clock=self.clock)
        watcher.look()
        unused: Any = SimpleNamespace()
        return SlotHolder(
            self.context,
            seen,
            watcher=watcher,
            completer=SimpleNamespace(see=lambda _: False),  # type: ignore[arg-type]
            takeover=unused,
            runner=SimpleNamespace(session_id=None, watch=lambda: None),  # type: ignore[arg-type]
            reporter=self.reporter,
        )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A worker's parts, with a clock that stands."""
    made = Place(tmp_path)
    yield made
    made.reporter.close()
    made.store.close()


def test_live_while_partitions_are_assigned(place: Place, monkeypatch: pytest.MonkeyPatch):
    """Where to begin is asked of brokers for up to 180 s, inside the callback: no restart."""
    membership = place.membership(Away(place.clock, place.look), monkeypatch)
    with pytest.raises(Exception, match="did not tell where the assigned partitions begin"):
        membership._on_assign(Away(place.clock, place.look), [KafkaPartition("orders", 0)])
    assert len(place.answers) > 10
    assert all(place.answers)
    place.look()
    assert place.answers[-1], "the wait was no hang"


def test_live_while_it_connects(place: Place, monkeypatch: pytest.MonkeyPatch):
    """A joiner looks around for as long, and ends by itself then, with a sentence."""
    consumer = Away(place.clock, place.look)
    membership = place.membership(consumer, monkeypatch)
    monkeypatch.setattr(membership._commands, "serve", lambda _: None)
    membership.start()
    assert membership.join(10)
    assert membership.ended is not None
    assert "no broker answers at kafka:9092" in membership.ended.sentence
    assert len(place.answers) > 10
    assert all(place.answers)


def test_a_drain_is_told_when_it_is_asked_for(place: Place, monkeypatch: pytest.MonkeyPatch):
    """The slot and the report say `draining` while the thread waits for brokers: whoever comes
    to replace the next pod has to know that this one goes. What is taken back is untold.
    """
    asked, go = threading.Event(), threading.Event()

    def look() -> None:
        asked.set()
        assert go.wait(120)

    membership = place.membership(Away(place.clock, look), monkeypatch)
    place.store.write_gate(Gate(group="orders", open=frozenset({0})))
    holder = place.holder(place.store.slots("orders")[0])
    assert holder.take()
    holder._membership = membership
    membership.start()
    assert asked.wait(120)
    holder._tick(membership)
    assert place.reporter.status()["phase"] == "joining"
    place.context.stop.set()  # SIGTERM
    holder._tick(membership)
    assert place.reporter.status()["phase"] == "draining"
    assert holder._lease.renew()
    assert place.store.slots("orders")[0].phase is Phase.DRAINING
    membership.become(Life.SERVING)
    assert place.reporter.status()["phase"] == "joining"
    membership.become(Life.REJOINING)
    assert place.reporter.status()["phase"] == "joining", "it stays"
    holder._lease.abandon()
    membership.become(Life.LOST)
    go.set()
    assert membership.join(10)
