"""A real pipeline with its batch thread, over a consumer and a Spark session that are stand-ins.

One process is one `Process`; what was committed outlives it, as in Kafka.
"""

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import TopicPartition as KafkaPartition

from fleet.clock import ManualClock
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchContext
from fleet.worker.batch.batches import InlineReading
from fleet.worker.member.member_state import BackingOff, MemberState
from fleet.worker.member.pipeline import Pipeline
from fleet.worker.offsets.assigning import Start
from fleet.worker.offsets.commit_metadata import decode_plan
from tests.support.batch_parts import connected, runner_of, worker_context
from tests.support.declared import group_spec, settings_of
from tests.support.memory_kafka import Message

REVISION = "r1"


@dataclass
class Broker:
    """Logs and commits of one group."""

    ends: dict[int, int]
    committed: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Partition → (offset, metadata)."""


class Consumer:
    """What the pipeline asks of its consumer."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def commit(self, *, offsets: list[KafkaPartition], asynchronous: bool) -> list[Any]:
        assert not asynchronous
        for each in offsets:
            self.broker.committed[each.partition] = (each.offset, each.metadata or "")
        return []

    def seek(self, partition: KafkaPartition) -> None:
        """Everything is read by `Process.read`."""

    def consumer_group_metadata(self) -> bytes:
        return b""


class Process:
    """One worker process that was assigned everything: from its start to its end or its death."""

    def __init__(
        self,
        broker: Broker,
        entrypoint: Callable[[list[tuple[int, int]]], None],
        *,
        clock: ManualClock | None = None,
        may_wait: bool = True,
        patience: float = 600.0,
        revision: str = REVISION,
    ) -> None:
        self.broker = broker
        self.clock = clock or ManualClock()
        self.state = MemberState()
        self.marks: dict[int, tuple[int, str]] = {}
        self.begun: list[dict[int, tuple[int, int]]] = []
        """Batches: partition → first offset, next after the last."""
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

        def process(df: Any, context: BatchContext) -> None:
            self.begun.append({r.partition: (r.start, r.end) for r in context.ranges})
            entrypoint([(r["partition"], r["offset"]) for r in df.to_pylist()])

        settings = settings_of(group_spec("g"), revision=revision)
        context = worker_context(settings, clock=self.clock)
        self.runner = runner_of(connected(), process, context=worker_context(settings))
        self.reading = InlineReading(limit=10_000, max_wait=0.0, max_seconds=60.0, clock=self.clock)
        self.flow = Pipeline(
            context,
            consumer=Consumer(broker),
            reading=self.reading,
            runner=self.runner,
            state=self.state,
            post=self._posted.put,
            poisoned=lambda tp, at, error, _: self.marks.update({tp.partition: (at, error)}),
            backing_off=BackingOff(patience=patience, may_wait=lambda: may_wait, clock=self.clock),
        )
        for partition in broker.ends:
            self.flow.start_partition(self._start(partition), reads=True)

    @property
    def condemned(self) -> dict[int, tuple[int, str]]:
        """Partition → offset and error that stopped it; the error without where it was raised."""
        return {each: (at, error.partition(" (")[0]) for each, (at, error) in self.marks.items()}

    def _start(self, partition: int) -> Start:
        offset, metadata = self.broker.committed.get(partition, (0, ""))
        return Start(
            tp=TopicPartition("t", partition),
            topic_id="T",
            position=offset,
            committed=offset,
            planned=decode_plan(metadata, offset),
        )

    def read(self) -> None:
        """Everything that the logs hold."""
        for partition, end in self.broker.ends.items():
            tp = TopicPartition("t", partition)
            at = self.reading.positions().get(tp)
            if at is not None and tp not in self.flow.quarantined:
                self.reading.add(tp, [Message(tp, n, value=b"x") for n in range(at, end)])
                self.reading.end_at(tp, end)

    def turn(self, *, dead: Callable[[], bool] = lambda: False) -> bool:
        """One look at everything, to the end of the batch that it begins; False: nothing to do.

        dead: whether the process was killed in the batch, so that nobody hears of its end.
        """
        self.read()
        self.flow.step()
        if not self.flow.busy:
            return False
        arrived = self._posted.get(timeout=20)
        if dead():
            return False
        arrived()
        self.flow.settle()
        return True

    def run(self, *, turns: int = 200) -> None:
        """Until there is nothing to do."""
        while self.turn():
            turns -= 1
            assert turns, "it goes on for ever"

    def lift(self, partition: int) -> None:
        """Its mark is taken back, as `Losses.lift` hears of it."""
        tp = TopicPartition("t", partition)
        del self.marks[partition]
        self.flow.quarantined.discard(tp)
        self.flow.rewind([tp])

    def end(self) -> None:
        """Let the batch thread go."""
        self.runner.stop()
