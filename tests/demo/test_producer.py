"""The stream of orders: steady, numbered, counted."""

import json
from typing import Any

import pytest

from fleet.clock import ManualClock, SystemClock
from fleet.demo.producer import OrderStream, Pace
from fleet.errors import Unreachable


class Log:
    """A topic in memory with librdkafka's producer interface."""

    def __init__(self, *, queue: int = 1000, refuse: bool = False, places: bool = True) -> None:
        self.records: dict[int, list[bytes]] = {}
        self._queue = queue
        self._refuse = refuse
        self._places = places
        self._waiting: list[tuple[int, bytes, Any]] = []

    def produce(self, topic: str, **record: Any) -> None:
        """Queue it, or say that the queue is full."""
        assert topic == "orders"
        if len(self._waiting) >= self._queue:
            raise BufferError
        self._waiting.append((record["partition"], record["value"], record["on_delivery"]))

    def poll(self, timeout: float) -> int:
        """Deliver what is queued."""
        del timeout
        waiting, self._waiting = self._waiting, []
        for partition, value, delivered in waiting:
            log = self.records.setdefault(partition, [])
            if not self._refuse:
                log.append(value)
            offset = len(log) - 1 if self._places else None
            delivered("refused" if self._refuse else None, Message(partition, offset))
        return len(waiting)

    def flush(self, timeout: float) -> int:
        self.poll(timeout)
        return 0


class Message:
    """Where a record went."""

    def __init__(self, partition: int, offset: int | None) -> None:
        self._place = (partition, offset)

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int | None:
        return self._place[1]


def test_the_rate_is_kept_exactly():
    """Fractions of a record stay owed until they are whole."""
    pace = Pace(rate=30.0)
    assert sum(pace.due(tick * 0.05) for tick in range(201)) == pytest.approx(300, abs=1)


def test_a_stall_leaves_no_debt():
    """After a long stop the stream goes on at its rate, without a burst of everything missed."""
    pace = Pace(rate=1000.0)
    pace.due(0.0)
    assert pace.due(60.0, most=500) == 500
    assert pace.due(60.1, most=500) == 100


def test_the_rate_changes_while_it_runs():
    """What is asked anew counts from the next tick."""
    pace = Pace(rate=100.0)
    pace.due(0.0)
    assert pace.due(1.0) == 100
    pace.rate = 10.0
    assert pace.due(2.0) == 10


def test_numbers_are_consecutive_and_partitions_even():
    """Partition p holds the numbers p, p + n, p + 2n …, so a gap is visible to anybody."""
    log = Log(queue=7)
    stream = OrderStream(log, topic="orders", partitions=4, clock=ManualClock())
    stream.send(40)
    log.flush(1)
    for partition, records in log.records.items():
        assert [json.loads(r)["seq"] for r in records] == list(range(partition, 40, 4))
    assert stream.acknowledged == [10, 10, 10, 10]


def test_a_record_that_was_sent_twice_has_no_offset():
    """An idempotent producer does not learn where the first request put it."""
    log = Log(places=False)
    stream = OrderStream(log, topic="orders", partitions=4, clock=ManualClock())
    stream.send(40)
    log.flush(1)
    assert stream.acknowledged == [10, 10, 10, 10]


def test_refused_records_are_a_failure():
    """A stream with holes would make every count wrong."""
    stream = OrderStream(Log(refuse=True), topic="orders", partitions=3, clock=SystemClock())
    stream.start(0.0)
    stream.send(297)
    with pytest.raises(Unreachable, match=r"refused 297 \(refused\)"):
        stream.stop()
