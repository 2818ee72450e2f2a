"""The stream of orders: steady, numbered, counted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.demo.producer import OrderProducer, Pace, ProducerOptions
from fleet.errors import FleetError, Unreachable


class Log:
    """A topic in memory with librdkafka's producer interface."""

    def __init__(self, *, queue: int = 1000, refuse: bool = False) -> None:
        self.records: dict[int, list[bytes]] = {}
        self._queue = queue
        self._refuse = refuse
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
            delivered("refused" if self._refuse else None, Message(partition, len(log) - 1))
        return len(waiting)

    def flush(self, timeout: float) -> int:
        self.poll(timeout)
        return 0


class Message:
    """Where a record went."""

    def __init__(self, partition: int, offset: int) -> None:
        self._place = (partition, offset)

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
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
    stream = OrderProducer(sender=log, topic="orders", partitions=4, clock=ManualClock())
    stream.send(40)
    log.flush(1)
    for partition, records in log.records.items():
        assert [json.loads(r)["seq"] for r in records] == list(range(partition, 40, 4))
    assert stream.acknowledged == [10, 10, 10, 10]


def test_a_clean_stop_reports_all_that_was_acknowledged():
    """The last report comes after the flush."""
    clock = ManualClock()
    began = clock.now()
    stream = OrderProducer(sender=Log(), topic="orders", partitions=3, clock=clock)
    reports: list[tuple[bool, int]] = []
    stream.run(
        read_options=lambda: ProducerOptions(rate=60.0, stop=clock.now() - began > 10),
        report=lambda stopped: reports.append((stopped, sum(stream.acknowledged))),
        ended=lambda: False,
    )
    assert reports[-1] == (True, stream.produced)
    assert stream.produced == pytest.approx(60 * 10, rel=0.1)


def test_refused_records_are_a_failure():
    """A stream with holes would make every count wrong."""
    clock = ManualClock()
    stream = OrderProducer(sender=Log(refuse=True), topic="orders", partitions=3, clock=clock)
    with pytest.raises(Unreachable, match=r"refused 297 \(refused\)"):
        stream.run(
            read_options=lambda: ProducerOptions(rate=60.0, stop=clock.now() > 1_000_005),
            report=lambda _stopped: None,
            ended=lambda: False,
        )


def test_the_control_file(tmp_path: Path):
    """What is asked is read; a missing or damaged one is named."""
    path = tmp_path / "control.json"
    ProducerOptions(rate=5.0, stop=True).write(path)
    assert ProducerOptions.read(path) == ProducerOptions(rate=5.0, stop=True)
    path.write_text('{"rate": "fast"}')
    with pytest.raises(FleetError, match="not a control file"):
        ProducerOptions.read(path)
    with pytest.raises(FleetError, match="missing"):
        ProducerOptions.read(tmp_path / "none.json")


def test_a_starter_that_is_gone_before_the_first_look(tmp_path: Path):
    """Killed while the producer was loaded: it ends, and takes nobody else for its starter."""
    ProducerOptions(rate=0.0).write(tmp_path / "control")
    command = (sys.executable, "-m", "fleet.demo.producer", "--bootstrap", "127.0.0.1:1")
    place = ("--control", str(tmp_path / "control"), "--state", str(tmp_path / "state"))
    gone = ("--topic", "t", "--partitions", "1", "--starter", str(os.getppid()))
    done = subprocess.run([*command, *place, *gone], timeout=60, check=False)
    assert done.returncode == 0
