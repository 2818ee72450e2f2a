"""A real membership, from its settings on, over a cluster in memory and a Spark that hands tables.

Doubles: confluent-kafka's clients (tests/support/memory_kafka.py) and PySpark's session.
"""

import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fleet.clock import SystemClock
from fleet.kafka_source import source
from fleet.kafka_source.columns import SCHEMA
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchContext
from fleet.slots import Slot
from fleet.slots.sqlite import SqliteStore
from fleet.worker.batch.poison_search import DeadLetters
from fleet.worker.member import membership
from fleet.worker.member.losses import QuarantinedPartitions
from fleet.worker.slot.slot_life import Life
from tests.support import spark_stand_in
from tests.support.batch_parts import connected, events_of, runner_of, worker_context
from tests.support.declared import group_spec, settings_of
from tests.support.memory_kafka import MemoryKafka
from tests.support.spark_stand_in import Link

CLOCK = SystemClock()
QUICK = {"max_wait": "10ms"}
_STANDS_STILL = 120.0
"""Seconds without anything new after which a test waits in vain."""


class Session(spark_stand_in.Session):
    """Reads ranges as well, as our data source's tasks do."""

    def __init__(self) -> None:
        super().__init__()
        setattr(self, source._REGISTERED, 2)
        self.read = self

    def format(self, name: str) -> "Session":
        assert name == source.FORMAT
        return self

    def options(self, **options: str) -> "Session":
        self._options = options
        return self

    def load(self) -> Any:
        """What the tasks read, here and now."""
        reader = source.FleetKafka(self._options).reader(None)
        shares = [reader.read(share) for share in reader.partitions()]
        batches = [batch for share in shares for batch in share]
        return pa.Table.from_batches(batches, schema=SCHEMA)


class Driven:
    """One member at work; its job notes rows, and waits where it is told to."""

    begun: Callable[[], Collection[str]] = staticmethod(frozenset)
    """Topics that its group has committed offsets of, by the store."""

    def __init__(
        self,
        kafka: MemoryKafka,
        folder: Path,
        patch: pytest.MonkeyPatch,
        letters: DeadLetters | None = None,
        **worker: Any,
    ) -> None:
        self.kafka = kafka
        self.rows: list[tuple[TopicPartition, int, bytes]] = []
        """(partition, offset, value) of every row that the job got."""
        self.contexts: list[BatchContext] = []
        self.error: Exception | None = None
        self.sink: Callable[[pa.Table, BatchContext], Any] = lambda *_: None
        """Gets the same columns as `rows`."""
        self.ours = True
        """Whether its slot is its own yet."""
        self.confirmed: bool | None = True
        """What the store answers directly before a join."""
        self.joining = False
        """Whether others of its group join."""
        self.may_end = threading.Event()
        self.may_end.set()
        patch.setattr(membership, "Consumer", kafka.consumer)
        patch.setattr(membership, "AdminClient", kafka.admin)
        patch.setattr(source, "reading", kafka.reading)
        terms = {"batch": QUICK, **worker}
        group = group_spec("g", worker=terms, topics=["t"], rollout={"drain_timeout": "9s"})
        settings = settings_of(group, bootstrap="memory:1")
        self.events_at = folder / "events"
        events = events_of("w1", FLEET_EVENTS=str(self.events_at))
        link = connected(Link(Session))
        self.store = SqliteStore(folder / "fleet.db", cluster="main", clock=CLOCK)
        context = worker_context(settings, name="w1", clock=CLOCK, events=events)
        self.runner = runner_of(link, self._process, context=context, pauses=(), letters=letters)
        marks = QuarantinedPartitions(self.store, context)
        marks.begun = self.begun  # type: ignore[method-assign,assignment]
        self.member = membership.Membership(
            context,
            Slot(group="g", number=0),
            open_at=0.0,
            runner=self.runner,
            marks=marks,
            may_join=lambda: self.confirmed,
            ours=lambda: self.ours,
            joining=lambda: self.joining,
        )

    def _process(self, df: Any, context: BatchContext) -> None:
        self.contexts.append(context)
        table = df.select(["topic", "partition", "offset", "value"])
        rows = table.to_pylist()
        assert self.may_end.wait(120), "the test never let the batch end"
        if self.error is not None:
            raise self.error
        self.sink(table, context)
        self.rows += [
            (TopicPartition(r["topic"], r["partition"]), r["offset"], r["value"]) for r in rows
        ]

    def values(self) -> list[bytes]:
        """Of all rows, in order."""
        return [value for _, _, value in self.rows]

    def values_of(self, tp: TopicPartition) -> list[bytes]:
        """Of one partition's rows, in order."""
        return [value for at, _, value in self.rows if at == tp]

    def began(self) -> bool:
        """Whether a batch is in the job's hands."""
        return bool(self.contexts)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, for as long as something happens; whoever ended says why."""
        happened, deadline = -1, 0.0
        while not condition():
            now = len(self.kafka.done) + len(self.rows) + len(self.contexts)
            if now != happened:
                happened, deadline = now, time.monotonic() + _STANDS_STILL
            assert self.member.ended is None or what == "the end", self.member.ended
            assert time.monotonic() < deadline, f"waited for {what}: {self.kafka.done[-5:]}"
            time.sleep(0.002)

    def turns(self, count: int = 5) -> None:
        """Let the consumer thread look at everything so many times."""
        for _ in range(count):
            passed: list[int] = []
            self.member._commands.put(lambda passed=passed: passed.append(1))
            self.until(lambda passed=passed: bool(passed), "a turn")

    def drain(self) -> None:
        """As a handover does, without waiting."""
        self.member.become(Life.CLOSING)

    def end(self) -> None:
        self.may_end.set()
        self.member.become(Life.LOST)
        if self.member._thread.ident is not None:
            assert self.member.join(20)
        self.runner.stop()


Drive = Callable[..., Driven]
"""drive(*partitions, **worker): a member at work on these, its `worker` section as said."""
