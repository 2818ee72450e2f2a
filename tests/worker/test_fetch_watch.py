"""A consumer that fetches nothing: of a topic recreated, or because all brokers are away."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.clock import ManualClock
from fleet.model import TopicPartition
from fleet.slots import Phase
from fleet.worker.member import losses
from fleet.worker.member import membership as members
from fleet.worker.member.losses import StoppedPartitionsView
from fleet.worker.member.member_state import End
from fleet.worker.member.membership import Membership
from fleet.worker.slot.slot_life import Life
from tests.support.batch_parts import connected
from tests.support.memory_kafka import MemoryKafka
from tests.worker.rig import Drive, Parts

P = [TopicPartition("t", number) for number in range(2)]


# --- a member ----------------------------------------------------------------------------------


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for as long as real brokers are."""
    monkeypatch.setattr(losses, "_EVERY", 0.01)
    monkeypatch.setattr(losses, "_GRACE", 0.05)


def make_again(kafka: MemoryKafka) -> None:
    """With records in one partition of two; its leader epochs begin at 0."""
    with kafka.lock:
        kafka.make("t", 2, "id-2")
        kafka.epochs["t"] = 0
        kafka.produce(P[0], b"new1", b"new2")


def test_a_member_whose_consumer_fetches_nothing_ends_for_a_new_one(
    kafka, drive: Drive, monkeypatch
):
    """The batch in hand is finished and committed before."""
    kafka.epochs["t"] = 5
    kafka.make("u", 1, "id-3")
    other = TopicPartition("u", 0)
    driven = drive(*P, other, metadata_refresh="1s")
    driven.until(lambda: len(driven.rows) == 6, "the old topic")
    make_again(kafka)
    driven.until(lambda: kafka.commits.get(P[1], (9,))[0] == 0, "the new beginning")
    driven.may_end.clear()
    kafka.produce(other, b"other")
    driven.until(lambda: any(c.ranges[0].topic == "u" for c in driven.contexts), "a batch")
    hurry(monkeypatch)
    driven.until(lambda: driven.member._draining.then is not None, "the stall to be seen")
    driven.turns()
    assert driven.member.ended is None
    driven.may_end.set()
    driven.until(lambda: driven.member.ended is not None, "the end")
    assert driven.member.ended.how is End.STALLED
    assert driven.member.ended.clean
    assert "t was recreated, and the client fetches nothing of t-0" in driven.member.ended.sentence
    assert kafka.committed(other)[-1] == 1
    assert kafka.commits[P[0]][0] == 0, "the beginning, which its next consumer reads from"


def test_a_member_whose_consumer_reads_the_new_topic_stays(kafka, drive: Drive, monkeypatch):
    """Its leaders never changed."""
    hurry(monkeypatch)
    driven = drive(*P, metadata_refresh="1s")
    driven.until(lambda: len(driven.rows) == 6, "the old topic")
    make_again(kafka)
    driven.until(lambda: driven.values()[6:] == [b"new1", b"new2"], "the new topic")
    driven.turns(50)
    assert driven.member.ended is None


def test_an_end_that_the_old_topic_had_is_no_backlog(kafka, drive: Drive):
    """Fault: librdkafka tells it until it has fetched, and the way of reading changed at each look.

    4 times 3 records wait by that: ranges would be taken from 6 on.
    """
    kafka.epochs["t"] = 5
    driven = drive(*P, metadata_refresh="1s", batch={"max_wait": "10ms", "inline": 1, "ranges": 9})
    driven.until(lambda: len(driven.rows) == 6, "the old topic")
    driven.until(lambda: driven.member.state.reading == "inline", "its end")
    make_again(kafka)
    driven.until(lambda: kafka.commits.get(P[1], (9,))[0] == 0, "the new beginning")
    ways = set()
    for _ in range(200):
        driven.turns(1)
        ways.add(driven.member.state.reading)
    assert ways == {"inline"}


# --- what an owner tells while its consumer thread waits for brokers that are away ------------


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


class Place(Parts):
    """A worker's parts by a clock that stands, and a membership of it."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, clock=ManualClock(), link=connected(), bootstrap="kafka:9092")
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
            self.slot(),
            open_at=0.0,
            runner=self.runner,
            marks=StoppedPartitionsView(self.store, self.context),
            may_join=lambda: True,
        )
        self.reporter.member(0, made.state)
        return made


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.runner.stop()
    made.reporter.close()


def test_live_while_partitions_are_assigned(place: Place, monkeypatch: pytest.MonkeyPatch):
    """Where to begin is asked of brokers for up to 180 s, inside the callback: no restart."""
    membership = place.membership(Away(place.clock, place.look), monkeypatch)
    with pytest.raises(Exception, match="did not return where the assigned partitions begin"):
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
    assert "no broker answers at kafka:9092" in membership.ended.sentence
    assert len(place.answers) > 10
    assert all(place.answers)


def test_a_drain_is_told_when_it_is_asked_for(place: Place, monkeypatch: pytest.MonkeyPatch):
    """The slot and the report say `draining` while the thread waits for brokers."""
    asked, go = threading.Event(), threading.Event()

    def look() -> None:
        asked.set()
        assert go.wait(120)

    membership = place.membership(Away(place.clock, look), monkeypatch)
    owner = place.taken(place.slot())
    owner._membership = membership
    membership.start()
    assert asked.wait(120)
    owner._tick(membership)
    assert place.reporter.status()["phase"] == "joining"
    place.context.stop.set()  # SIGTERM
    owner._tick(membership)
    assert place.reporter.status()["phase"] == "draining"
    assert owner._lease.renew()
    assert place.slot().phase is Phase.DRAINING
    membership.become(Life.SERVING)
    assert place.reporter.status()["phase"] == "joining"
    membership.become(Life.REJOINING)
    assert place.reporter.status()["phase"] == "joining", "it stays"
    owner._lease.abandon()
    membership.become(Life.LOST)
    go.set()
    assert membership.join(10)
