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
from fleet.slots import Gate, Phase
from fleet.slots.sqlite import SqliteStore
from fleet.worker.canary_note import CanaryNote
from fleet.worker.member import membership as members
from fleet.worker.member.member_state import BackingOff, MembershipOptions
from fleet.worker.member.membership import Membership
from fleet.worker.member.protocols import protocol_of
from fleet.worker.offsets.assigning import Assigner
from fleet.worker.slot.holder_tools import HolderTools
from fleet.worker.slot.reporting import Reporter
from fleet.worker.slot.slot_holder import SlotHolder
from fleet.worker.slot.slot_lease import SlotWatcher
from fleet.worker.slot.slot_life import Life
from tests.support.batch_parts import events_of
from tests.support.declared import settings_of

PATIENCE = 180.0


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
        self.events = events_of("w1", self.clock)
        self.settings = settings_of()
        self.protocol = protocol_of(self.settings)
        self.reporter = Reporter(self.settings, name="w1", clock=self.clock, events=self.events)
        self.store = SqliteStore(home / "fleet.db", cluster="main", clock=SystemClock())
        self.answers: list[bool] = []
        """Whether the worker was live, at each call that no broker answered."""

    def look(self) -> None:
        """What a probe would be told now."""
        self.answers.append(bool(self.reporter.status()["live"]))

    def membership(self, consumer: Any, monkeypatch: pytest.MonkeyPatch) -> Membership:
        """Of slot 0, on this consumer."""
        monkeypatch.setattr(members, "Consumer", lambda _: consumer)
        made = Membership(
            terms=MembershipOptions(
                options={"bootstrap.servers": "kafka:9092"},
                topics=("orders",),
                open_at=0.0,
                may_join=lambda: True,
                drain_timeout=60.0,
                patience=PATIENCE,
                skip_truncated=False,
                metadata_refresh=300.0,
                commit_delay=0.0,
                revision="r1",
            ),
            protocol=self.protocol,
            reading=SimpleNamespace(),  # type: ignore[arg-type] # nothing is read
            runner=SimpleNamespace(),  # type: ignore[arg-type]
            assigner=Assigner(
                admin=consumer,
                start_from="earliest",
                isolation="read_committed",
                patience=PATIENCE,
                clock=self.clock,
            ),
            marks=lambda _: frozenset(),
            poisoned=lambda *_: None,
            backing_off=BackingOff(patience=600.0, may_wait=lambda: True, clock=self.clock),
            nudging=None,
            clock=self.clock,
            events=self.events,
        )
        self.reporter.member(0, made.state)
        return made


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
    tools = _tools(place, membership)
    (slot,) = (s for s in place.store.slots("orders") if s.number == 0)
    taken = place.store.take(slot, worker="w1", revision="r1", spark_session=None)
    assert taken is not None
    holder = SlotHolder(tools, taken)
    holder._membership = membership
    membership.start()
    assert asked.wait(120)
    holder._tick(membership)
    assert place.reporter.status()["phase"] == "joining"
    tools.stop.set()  # SIGTERM
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


def _tools(place: Place, membership: Membership) -> HolderTools:
    place.store.write_gate(Gate(group="orders", open=frozenset({0})))
    watcher = SlotWatcher(place.store, group="orders", lease=10.0, clock=place.clock)
    watcher.look()
    unused: Any = SimpleNamespace()
    return HolderTools(
        settings=place.settings,
        name="w1",
        store=place.store,
        watcher=watcher,
        completer=unused,
        leave=lambda *_: None,
        takeover=unused,
        protocol=place.protocol,
        runner=SimpleNamespace(session_id=None, watch=lambda: None),  # type: ignore[arg-type]
        reporter=place.reporter,
        canary=CanaryNote(None),
        stop=threading.Event(),
        clock=place.clock,
        events=place.events,
    )
