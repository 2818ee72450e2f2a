"""A steady, numbered stream of orders: `python -m fleet.demo.producer`.

Problem: only a known number of records can show a loss, and only steady input can show a downtime.
Choice: a separate process produces records with consecutive numbers, evenly over the partitions. A
control file changes its rate. The process writes down what the brokers acknowledged (acks=all,
idempotent). Cost: it produces every 50 ms, so a partition gets small bursts.

It stops on SIGTERM, when the control file says so, or when the process that started it stops.
"""

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fleet.clock import Clock, SystemClock
from fleet.errors import FleetError, Unreachable
from fleet.model import TopicPartition
from fleet.system import processes
from fleet.system.home import read_state, write_state
from fleet.system.processes import ProcessId

SCHEMA: Final = 1
_TICK_SECONDS: Final = 0.05
_REPORT_SECONDS: Final = 0.5
_MOST_PER_TICK: Final = 2_000
_FLUSH_SECONDS: Final = 30.0
_ITEMS: Final = ("tea", "coffee", "cocoa", "maté", "rooibos", "chicory", "malt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The content of the control file."""

    rate: float
    """Records per second, over all partitions."""
    stop: bool = False

    def write(self, path: Path) -> None:
        """Writes the control file atomically."""
        write_state(path, {"rate": self.rate, "stop": self.stop}, schema=SCHEMA)

    @classmethod
    def read(cls, path: Path) -> "ProducerOptions":
        """Reads the control file. Raises FleetError if it is missing or damaged."""
        state = read_state(path, schema=SCHEMA)
        try:
            if state is None:
                raise KeyError("the file is missing")
            return cls(rate=max(0.0, float(state["rate"])), stop=bool(state["stop"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FleetError(
                f"{path} is not a control file of the producer ({error}); start the demo again"
            ) from error


@dataclass(slots=True)
class Pace:
    """Computes how many records are due: a steady rate, no backlog after a stall."""

    rate: float
    _last: float | None = None
    _owed: float = 0.0

    def due(self, monotonic: float, *, most: int = _MOST_PER_TICK) -> int:
        """Returns the records to send now; keeps a fraction, drops what exceeds `most`."""
        if self._last is not None:
            self._owed = min(self._owed + (monotonic - self._last) * self.rate, float(most))
        self._last = monotonic
        whole = int(self._owed)
        self._owed -= whole
        return whole


def order(sequence: int, at: float) -> bytes:
    """Returns the order with this number as JSON; a number always gives the same order."""
    value = {
        "seq": sequence,
        "customer": f"c{sequence * 7919 % 5000:04d}",
        "item": _ITEMS[sequence * 31 % len(_ITEMS)],
        "quantity": 1 + sequence * 13 % 9,
        "cents": 100 + sequence * 37 % 4900,
        "at": round(at, 3),
    }
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(kw_only=True)
class OrderProducer:
    """Produces numbered orders to all partitions in turn, and counts them."""

    sender: Any
    """A confluent_kafka.Producer."""
    topic: str
    partitions: int
    clock: Clock
    produced: int = 0
    acknowledged: list[int] = field(default_factory=list)
    """One more than the highest acknowledged offset of each partition."""
    failed: int = 0
    error: str | None = None

    def __post_init__(self) -> None:
        self.acknowledged = [0] * self.partitions

    def send(self, count: int) -> None:
        """Queues the next `count` records; waits while librdkafka's queue is full."""
        for _ in range(count):
            record = order(self.produced, self.clock.now())
            partition = self.produced % self.partitions
            while True:
                try:
                    self.sender.produce(
                        self.topic, value=record, partition=partition, on_delivery=self._delivered
                    )
                    break
                except BufferError:
                    self.sender.poll(0.1)
            self.produced += 1
        self.sender.poll(0)

    def _delivered(self, error: object, message: Any) -> None:
        if error is not None:
            self.failed += 1
            self.error = str(error)
            return
        partition = message.partition()
        self.acknowledged[partition] = max(self.acknowledged[partition], message.offset() + 1)

    def run(
        self,
        *,
        read_options: Callable[[], ProducerOptions],
        report: Callable[[bool], None],
        ended: Callable[[], bool],
    ) -> None:
        """Produces until `ended` or the options say stop; then flushes and reports once more.

        Raises Unreachable if brokers did not acknowledge all records.
        """
        pace = Pace(rate=0.0)
        looked = float("-inf")
        while not ended():
            now = self.clock.monotonic()
            if now - looked >= _REPORT_SECONDS:
                looked = now
                options = read_options()
                if options.stop:
                    break
                pace.rate = options.rate
                report(False)
            self.send(pace.due(now))
            self.clock.sleep(_TICK_SECONDS)
        left = self.sender.flush(_FLUSH_SECONDS)
        report(True)
        if left or self.failed:
            raise Unreachable(
                f"the broker did not acknowledge {left} records of topic {self.topic} within "
                f"{_FLUSH_SECONDS:g} s and refused {self.failed} ({self.error}); see its log"
            )


def main(arguments: list[str] | None = None) -> int:
    """Runs until stopped; returns 1 with a message if records were not acknowledged."""
    options = _options(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    stream = OrderProducer(
        sender=_sender(options.bootstrap),
        topic=options.topic,
        partitions=options.partitions,
        clock=SystemClock(),
    )

    def report(stopped: bool) -> None:
        state = {
            "produced": stream.produced,
            "ends": {str(p): end for p, end in enumerate(stream.acknowledged)},
            "failed": stream.failed,
            "stopped": stopped,
        }
        write_state(options.state, state, schema=SCHEMA)

    try:
        stream.run(
            read_options=lambda: ProducerOptions.read(options.control),
            report=report,
            ended=lambda: stop.is_set() or os.getppid() != options.starter,
        )
    except FleetError as error:
        sys.stderr.write(f"producer: {error}\n")
        return error.exit_code
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fleet.demo.producer", description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="brokers (HOST:PORT)")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", required=True, type=int)
    parser.add_argument("--control", required=True, type=Path, help="file that sets rate and stop")
    parser.add_argument("--state", required=True, type=Path, help="file to write counts to")
    parser.add_argument("--starter", required=True, type=int, help="process id to stop with")
    return parser.parse_args(arguments)


def _sender(bootstrap: str) -> Any:
    from confluent_kafka import Producer  # noqa: PLC0415 - loads librdkafka

    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 20,
        "client.id": "fleet-demo-producer",
    }
    return Producer(settings)


_STOP_SECONDS: Final = 40.0
_POLL_SECONDS: Final = 0.1
_END_GRACE: Final = 5.0


def state_file(folder: Path) -> Path:
    """Returns the file in which this folder's producer reports its counts."""
    return folder / "producer-state.json"


class OrderStream:
    """Runs a producer of numbered orders for one topic, evenly over its partitions."""

    def __init__(
        self,
        folder: Path,
        *,
        bootstrap: str,
        clock: Clock,
        topic: str,
        partitions: int,
    ) -> None:
        """folder: holds the producer's control file, its state and its log."""
        self._control = folder / "producer-control.json"
        self._produced = state_file(folder)
        self._log = folder / "producer.log"
        self._topic = topic
        self._partitions = partitions
        self._bootstrap = bootstrap
        self._clock = clock
        self._process: ProcessId | None = None

    def start(self, rate: float) -> None:
        """Starts the producer at this rate."""
        self.rate(rate)
        command = (sys.executable, "-m", "fleet.demo.producer", "--bootstrap", self._bootstrap)
        where = ("--control", str(self._control), "--state", str(self._produced))
        self._process = processes.spawn(
            (
                *(*command, *where, "--topic", self._topic, "--partitions", str(self._partitions)),
                *("--starter", str(os.getpid())),
            ),
            log=self._log,
            env=dict(os.environ),
        )

    def rate(self, rate: float) -> None:
        """Sets the records per second; the producer follows within half a second."""
        ProducerOptions(rate=rate).write(self._control)

    def stop(self) -> dict[TopicPartition, int]:
        """Stops the producer after a flush; returns the end offset of every partition.

        Raises FleetError if brokers did not acknowledge every record.
        """
        ProducerOptions(rate=0.0, stop=True).write(self._control)
        deadline = self._clock.monotonic() + _STOP_SECONDS
        while self._process is not None and processes.alive(self._process):
            if self._clock.monotonic() > deadline:
                raise FleetError(
                    f"the producer did not stop within {_STOP_SECONDS:g} s; see {self._log}"
                )
            self._clock.sleep(_POLL_SECONDS)
        state = read_state(self._produced, schema=SCHEMA) or {}
        known = state.get("ends", {})
        ends = {TopicPartition(self._topic, int(p)): int(e) for p, e in known.items()}
        if (
            not state.get("stopped")
            or state.get("failed")
            or sum(ends.values()) != state["produced"]
        ):
            raise FleetError(
                "the producer stopped before the brokers acknowledged every record "
                f"({state or 'no state'}); see {self._log}"
            )
        return ends

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            processes.end(self._process, grace=_END_GRACE)
            self._process = None


if __name__ == "__main__":
    sys.exit(main())
