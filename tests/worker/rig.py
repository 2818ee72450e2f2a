"""One rig: a worker on a cluster in memory, whole or in part, with a Spark that hands tables.

`Driven` is a membership at work, on its own threads; `Process` its pipeline, turned by hand;
`Parts` what a worker has in its hands when it takes a slot. Real but for confluent-kafka's clients
(tests/support/memory_kafka.py) and PySpark's session (spark_stand_in.py).
"""

import json
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.clock import Clock, ManualClock, SystemClock
from fleet.kafka_source import source
from fleet.kafka_source.columns import SCHEMA
from fleet.model import Member, TopicPartition
from fleet.model.batch_context import BatchContext
from fleet.slots import Slot, SlotTargets
from fleet.slots.sqlite import SqliteStore
from fleet.worker.batch.batches import InlineReading
from fleet.worker.batch.executor import RETRY_PAUSES
from fleet.worker.batch.poison_search import DeadLetters
from fleet.worker.batch.spark_link import SparkLink
from fleet.worker.member import membership
from fleet.worker.member.assigning import Start
from fleet.worker.member.commit_metadata import decode_plan
from fleet.worker.member.losses import StoppedPartitionsView
from fleet.worker.member.member_state import EntrypointBackoff, MemberState
from fleet.worker.member.pipeline import Pipeline
from fleet.worker.slot.leave_completion import Failover, LeaveCompleter
from fleet.worker.slot.reporting import Reporter
from fleet.worker.slot.slot_lease import SlotWatcher
from fleet.worker.slot.slot_life import Life
from fleet.worker.slot.slot_owner import SlotOwner
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
        marks = StoppedPartitionsView(self.store, context)
        marks.committed_topics = self.begun  # type: ignore[method-assign,assignment]
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

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What it told of one kind, in order."""
        told = self.events_at.read_text().splitlines() if self.events_at.exists() else []
        return [each for each in map(json.loads, told) if each["event"] == kind]

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


# --- a pipeline by hand ----------------------------------------------------------------------

REVISION = "r1"


def logs(*ends: int) -> MemoryKafka:
    """Topic `t` with so many records in each partition."""
    kafka = MemoryKafka()
    kafka.make("t", len(ends))
    for number, end in enumerate(ends):
        grow(kafka, number, end)
    return kafka


def grow(kafka: MemoryKafka, number: int, end: int) -> None:
    """Records up to this end."""
    tp = TopicPartition("t", number)
    kafka.produce(tp, *[b"x"] * (end - kafka.parts[tp].high))


def reached(kafka: MemoryKafka) -> dict[int, int]:
    """Partition → what is committed."""
    return {tp.partition: offset for tp, (offset, _) in kafka.commits.items()}


class Process:
    """A pipeline and its batch thread by hand, of a process that was assigned everything."""

    def __init__(
        self,
        kafka: MemoryKafka,
        entrypoint: Callable[[list[tuple[int, int]]], None],
        *,
        clock: ManualClock | None = None,
        may_wait: bool = True,
        grace: float = 600.0,
        revision: str = REVISION,
    ) -> None:
        self.kafka = kafka
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
        consumer = kafka.consumer({})
        consumer.assign([KafkaPartition("t", tp.partition, 0) for tp in kafka.parts])
        self.flow = Pipeline(
            context,
            consumer=consumer,
            reading=self.reading,
            runner=self.runner,
            state=self.state,
            post=self._posted.put,
            record_poison=lambda tp, at, error, _: self.marks.update({tp.partition: (at, error)}),
            backoff=EntrypointBackoff(grace=grace, may_wait=lambda: may_wait, clock=self.clock),
        )
        for tp in kafka.parts:
            self.flow.start_partition(self._start(tp), reads=True)

    @property
    def poison(self) -> dict[int, tuple[int, str]]:
        """Partition → offset and error that stopped it; the error without where it was raised."""
        return {each: (at, error.partition(" (")[0]) for each, (at, error) in self.marks.items()}

    def _start(self, tp: TopicPartition) -> Start:
        offset, metadata = self.kafka.commits.get(tp, (0, ""))
        planned = decode_plan(metadata, offset)
        return Start(tp=tp, topic_id="T", position=offset, committed=offset, planned=planned)

    def read(self) -> None:
        """Everything that the logs hold."""
        for tp, at in self.reading.positions().items():
            if tp not in self.flow.stopped_partitions:
                self.reading.add(tp, self.kafka.parts[tp].messages[at:])
                self.reading.end_at(tp, self.kafka.parts[tp].high)

    def turn(self, *, dead: Callable[[], bool] = lambda: False) -> bool:
        """One look at everything, to the end of the batch that it begins; False: nothing to do."""
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
        self.flow.stopped_partitions.discard(tp)
        self.flow.rewind([tp])

    def end(self) -> None:
        """Let the batch thread go."""
        self.runner.stop()


# --- who takes a slot ----------------------------------------------------------------------

GROUP = "g"
CLASSIC = {"protocol": "classic", "session_timeout": 180}
CONSUMER = {"protocol": "consumer"}


class Parts:
    """Of worker `w`, revision `r`. The slot targets has slot 0 open; nobody holds it."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock,
        link: SparkLink,
        worker: Mapping[str, Any] = CLASSIC,
        bootstrap: str = "127.0.0.1:1",
        lease: float = 10.0,
    ) -> None:
        self.folder = folder
        self.clock = clock
        self.link = link
        self.store = SqliteStore(folder / "fleet.db", cluster="main", clock=clock)
        self.store.write_targets(SlotTargets(group=GROUP, open=frozenset({0})))
        self.left: list[tuple[str | None, str]] = []
        self.refusal: str | None = None
        self.member: Member | None = None
        """Who has the instance id, as the coordinator tells."""
        self.owner: SlotOwner | None = None
        """Whose slot the batch thread renews."""
        runtime = {"kind": "local", "lease": lease}
        group = group_spec(GROUP, worker=worker, topics=["t"], runtime=runtime)
        settings = settings_of(group, revision="r", bootstrap=bootstrap)
        self.context = worker_context(settings, clock=clock)
        self.stop, self.events = self.context.stop, self.context.events
        self.runner = runner_of(
            link,
            context=self.context,
            slot=None,
            pauses=RETRY_PAUSES,
            renew=lambda: self.owner is None or self.owner.renew(),
        )
        self.watcher = SlotWatcher(self.store, group=GROUP, lease=lease, clock=clock)
        self.reporter = Reporter(self.context)

    def tenure(self, seen: Slot) -> SlotOwner:
        """Of a slot that is not taken yet."""
        return SlotOwner(
            self.context,
            seen,
            watcher=self.watcher,
            completer=LeaveCompleter(self.context, self.store, leave=self.leave),
            failover=Failover(self.context, leave=self.leave, owner_of=lambda _: self.member),
            runner=self.runner,
            reporter=self.reporter,
        )  # fmt: skip

    def taken(self, seen: Slot) -> SlotOwner:
        """What took it."""
        owner = self.tenure(seen)
        assert owner.take()
        return owner

    def leave(self, group: str, members: Sequence[tuple[str | None, str]]) -> str | None:
        """What a new owner sends."""
        self.left += members
        return self.refusal

    def slot(self) -> Slot:
        return self.store.slots(GROUP)[0]
