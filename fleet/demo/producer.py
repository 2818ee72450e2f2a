"""A steady, numbered stream of orders.

Problem: only a known number of records can show a loss, and only steady input can show a downtime.
Choice: a thread produces records with consecutive numbers, evenly over the partitions, and counts
what the brokers acknowledged (acks=all, idempotent). Cost: it produces every 50 ms, so a partition
gets small bursts; it ends with its process, without a flush.
"""

import json
import threading
from dataclasses import dataclass
from typing import Any, Final

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.model import TopicPartition

_TICK_SECONDS: Final = 0.05
_MOST_PER_TICK: Final = 2_000
_FLUSH_SECONDS: Final = 30.0
_END_SECONDS: Final = 5.0
_ITEMS: Final = ("tea", "coffee", "cocoa", "maté", "rooibos", "chicory", "malt")


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


def order_sender(bootstrap: str) -> Any:
    """Opens a producer that loses and repeats nothing."""
    from confluent_kafka import Producer  # noqa: PLC0415 - loads librdkafka

    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 20,
        "client.id": "fleet-demo-producer",
    }
    return Producer(settings)


class OrderStream:
    """Produces numbered orders to all partitions of a topic in turn, and counts them.

    sender: a confluent_kafka.Producer.
    """

    def __init__(self, sender: Any, *, topic: str, partitions: int, clock: Clock) -> None:
        self._sender = sender
        self._topic = topic
        self._clock = clock
        self._pace = Pace(rate=0.0)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)
        self.produced = 0
        self.acknowledged = [0] * partitions
        """One more than the highest acknowledged offset of each partition."""
        self._failed = 0
        self._error = ""

    def start(self, rate: float) -> None:
        """Starts to produce at this rate."""
        self.rate(rate)
        self._thread.start()

    def rate(self, rate: float) -> None:
        """Sets the records per second."""
        self._pace.rate = rate

    def stop(self) -> dict[TopicPartition, int]:
        """Stops after a flush; returns the end offset of every partition.

        Raises Unreachable if brokers did not acknowledge every record.
        """
        self._stopping.set()
        self._thread.join()
        left = self._sender.flush(_FLUSH_SECONDS)
        if left or self._failed or sum(self.acknowledged) != self.produced:
            raise Unreachable(
                f"the broker did not acknowledge {left} records of topic {self._topic} within "
                f"{_FLUSH_SECONDS:g} s and refused {self._failed} ({self._error}); see its log"
            )
        return {TopicPartition(self._topic, p): end for p, end in enumerate(self.acknowledged)}

    def end(self) -> None:
        """Stops without a flush."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_END_SECONDS)

    def send(self, count: int) -> None:
        """Queues the next `count` records; waits while librdkafka's queue is full."""
        for _ in range(count):
            record = order(self.produced, self._clock.now())
            partition = self.produced % len(self.acknowledged)
            while not self._stopping.is_set():
                try:
                    self._sender.produce(
                        self._topic, value=record, partition=partition, on_delivery=self._delivered
                    )
                    self.produced += 1
                    break
                except BufferError:
                    self._sender.poll(0.1)
        self._sender.poll(0)

    def _delivered(self, error: object, message: Any) -> None:
        if error is not None:
            self._failed, self._error = self._failed + 1, str(error)
            return
        partition, offset = message.partition(), message.offset()
        if offset is None:  # sent twice, since the first answer was lost; deliveries are in order
            offset = self.acknowledged[partition]
        self.acknowledged[partition] = max(self.acknowledged[partition], offset + 1)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.send(self._pace.due(self._clock.monotonic()))
                self._clock.sleep(_TICK_SECONDS)
        except Exception as error:  # noqa: BLE001 - `stop` tells it
            self._failed, self._error = self._failed + 1, str(error)
