"""`fleet bench worker`: one worker beside Structured Streaming's Kafka source, in one run.

Problem: a rate says nothing without the same job on the same topic and cores, and the first
seconds of a JVM say nothing at all. Choice: one broker and one topic; each side first works off
a warm-up, then a backlog, then a steady stream, alone on the machine; both run `streaming.py`'s
job, a batch's age is counted from its oldest record to the job's end. Cost: five minutes.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fleet.act import spark_server
from fleet.act.store import SqliteStore
from fleet.bench import streaming, structured
from fleet.broker import Broker
from fleet.clock import Clock
from fleet.demo.producer import Pace, order
from fleet.errors import FleetError
from fleet.settings import WorkerSettings
from fleet.slots import Phase
from fleet.spec import Cluster, GroupSpec

TOPIC: Final = "bench"
GROUP: Final = "bench-worker"
PARTITIONS: Final = 12
PER_TRIGGER: Final = 500_000
"""maxOffsetsPerTrigger of the backlog: without it Spark takes all in one batch, slower here."""
GOAL_RATIO: Final = 1.5
GOAL_AGE: Final = 0.4
GOAL_AGE_PART: Final = 1 / 3
_SETTLE: Final = 5.0
"""Seconds of the steady stream before its batches count."""
_DISTINCT: Final = 5000
Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How much is measured."""

    backlog: int = 2_000_000
    warm_up: int = 1_000_000
    rate: int = 2_000
    seconds: float = 30.0
    """Of the steady stream, each."""
    alone: bool = False
    """Without Structured Streaming."""


@dataclass(slots=True, kw_only=True)
class Result:
    """Records per second on the backlog, and the p50 age in seconds under the stream."""

    wish: Wish
    rate: dict[str, float] = field(default_factory=dict)
    age: dict[str, float] = field(default_factory=dict)

    def goals(self) -> tuple[tuple[str, float | None, bool], ...]:
        """(goal, measured, met)."""
        ours, theirs = self.rate.get("fleet"), self.rate.get("as it comes")
        ratio = ours / theirs if ours and theirs else None
        age, their_age = self.age.get("fleet"), self.age.get("as it comes")
        part = age / their_age if age and their_age else None
        goals: list[tuple[str, float | None, bool]] = [
            (f"age p50 ≤ {GOAL_AGE:g} s", age, age is not None and age <= GOAL_AGE),
        ]
        if not self.wish.alone:
            goals += [
                (
                    f"records/s ≥ {GOAL_RATIO:g} x Structured Streaming's",
                    ratio,
                    ratio is not None and ratio >= GOAL_RATIO,
                ),
                (
                    "age p50 below a third of Structured Streaming's",
                    part,
                    part is not None and part < GOAL_AGE_PART,
                ),
            ]
        return tuple(goals)

    @property
    def met(self) -> bool:
        """Every goal is met."""
        return all(met for _, _, met in self.goals())


def run(
    wish: Wish,
    *,
    home: Path,
    cache: Path,
    clock: Clock,
    say: Callable[[str], None],
    ending: Callable[[], None],
) -> Result:
    """Measure both; the home is made and deleted, `ending` is called before everything is ended.

    FleetError where something does not come up.
    """
    result = Result(wish=wish)
    python = None if wish.alone else structured.environment(cache, say)
    home.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        broker = Broker(home)
        stack.callback(broker.purge)
        stack.callback(ending)
        bootstrap = broker.start().bootstrap_servers
        ground = _Ground(bootstrap=bootstrap, clock=clock)
        _ours(ground, wish, home, result, say)
        if python is not None:
            _theirs(
                ground,
                wish=wish,
                home=home,
                cache=cache,
                python=python,
                result=result,
                say=say,
            )
    return result


class _Ground:
    """The topic, and what writes to it."""

    def __init__(self, *, bootstrap: str, clock: Clock) -> None:
        self.bootstrap = bootstrap
        self.clock = clock
        self._values = [order(n, clock.now()) for n in range(_DISTINCT)]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 5,
                "queue.buffering.max.messages": 500_000,
            }
        )
        self.written = 0

    def write(self, count: int) -> None:
        """So many orders, over all partitions in turn; per partition as many as in another."""
        for number in range(self.written, self.written + count):
            value, partition = self._values[number % _DISTINCT], number % PARTITIONS
            while True:
                try:
                    self._producer.produce(TOPIC, value, partition=partition)
                    break
                except BufferError:
                    self._producer.poll(0.1)
        self.written += count
        self._producer.poll(0)

    def flush(self) -> None:
        """Until all is acknowledged."""
        if self._producer.flush(120):
            raise FleetError("the benchmark's records were not acknowledged within 120 s")

    @contextmanager
    def stream(self, rate: int) -> Iterator[None]:
        """A steady stream beside what runs inside."""
        stop = threading.Event()

        def produce() -> None:
            pace = Pace(rate=float(rate))
            while not stop.wait(0.01):
                self.write(pace.due(self.clock.monotonic()))

        thread = threading.Thread(target=produce, name="stream")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.flush()


# --- Fleet ---------------------------------------------------------------------------------


class _Worker:
    """One real worker process on a shared Spark server, held by its gate."""

    def __init__(self, ground: _Ground, home: Path) -> None:
        self._ground = ground
        self._home = home
        self._journal = home / "batches"
        self._events = home / "events"
        self._store = SqliteStore(home / "fleet.db", cluster="bench", clock=ground.clock)
        self.log = home / "worker.log"
        spec = GroupSpec.model_validate(
            {
                "group": GROUP,
                "topics": [TOPIC],
                "worker": {
                    "protocol": "classic",
                    "entrypoint": "fleet.bench.streaming:process",
                    "env": {
                        streaming.JOURNAL: str(self._journal),
                        "FLEET_EVENTS": str(self._events),
                    },
                },
            }
        )
        self.defaults = spec.worker
        settings = WorkerSettings(
            cluster=Cluster(name="bench", bootstrap_servers=ground.bootstrap),
            bootstrap_servers=ground.bootstrap,
            group=spec,
            revision="bench",
        )
        path = home / "worker.json"
        path.write_text(settings.model_dump_json(), encoding="utf-8")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fleet.worker", "--settings", str(path), "--name", "w1"],
                env={**os.environ, "FLEET_HOME": str(home)},
                stdout=log,
                stderr=log,
            )

    def batches(self) -> list[dict[str, Any]]:
        """What the job wrote."""
        return _json_lines(self._journal)

    def last(self, event: str) -> float:
        """When the worker last told of it; 0 where it never did."""
        return max((e["at"] for e in _json_lines(self._events) if e["event"] == event), default=0.0)

    def await_standby(self) -> None:
        """Warm, without a slot."""
        self.until(
            lambda: any(r.phase == "standby" for r in self._store.reports(GROUP)), "a warm worker"
        )

    def gate(self, *numbers: int) -> None:
        """Open just these slots."""
        while True:
            now = self._store.gate(GROUP)
            wanted = replace(now, open=frozenset(numbers), open_at=self._ground.clock.now())
            if self._store.write_gate(wanted) is not None:
                return

    def closed(self) -> bool:
        """The slot was given up."""
        return all(slot.phase is Phase.FREE for slot in self._store.slots(GROUP))

    def until(self, what: Callable[[], bool], name: str, *, timeout: float = 300.0) -> None:
        """Poll; FleetError after `timeout` or once the worker has ended."""
        deadline = self._ground.clock.monotonic() + timeout
        while not what():
            if self.process.poll() is not None or self._ground.clock.monotonic() > deadline:
                last = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
                raise FleetError(f"waited for {name}; the worker's last line: {''.join(last)}")
            self._ground.clock.sleep(0.05)

    def read(self, records: int) -> None:
        """Wait until the job had so many in all, and the last batch is committed."""
        self.until(lambda: sum(b["records"] for b in self.batches()) >= records, "the backlog")
        self.until(lambda: self.last("committed") >= self.batches()[-1]["done"], "the last commit")

    def end(self) -> None:
        """SIGTERM, and wait."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)


def _ours(
    ground: _Ground, wish: Wish, home: Path, result: Result, say: Callable[[str], None]
) -> None:
    with ExitStack() as stack:
        spark_server.start(home)
        stack.callback(spark_server.stop, home)
        spark_server.wait_ready(home, timeout=90.0, clock=ground.clock)
        worker = _Worker(ground, home)
        stack.callback(worker.end)
        say(f"the worker's settings: {worker.defaults}")
        worker.await_standby()
        say(f"warming the worker with {wish.warm_up} records")
        ground.write(wish.warm_up)
        ground.flush()
        worker.gate(0)
        worker.read(wish.warm_up)
        worker.gate()
        worker.until(worker.closed, "the slot to be given up")
        say(f"the worker: a backlog of {wish.backlog}")
        ground.write(wish.backlog)
        ground.flush()
        worker.gate(0)
        worker.read(ground.written)
        took = worker.last("committed") - worker.last("assigned")
        result.rate["fleet"] = wish.backlog / took
        say(f"the worker: {wish.rate} records/s for {wish.seconds:g} s")
        before = len(worker.batches())
        with ground.stream(wish.rate):
            ground.clock.sleep(wish.seconds)
        worker.read(ground.written)
        result.age["fleet"] = _age(worker.batches()[before:])


# --- Structured Streaming ------------------------------------------------------------------


def _theirs(
    ground: _Ground,
    *,
    wish: Wish,
    home: Path,
    cache: Path,
    python: Path,
    result: Result,
    say: Callable[[str], None],
) -> None:
    at = {str(n): wish.warm_up // PARTITIONS for n in range(PARTITIONS)}
    variants: dict[str, dict[str, str]] = {
        "as it comes": {},
        "fetch.max.wait.ms=5": {"kafka.fetch.max.wait.ms": "5"},
    }
    bound = {"maxOffsetsPerTrigger": str(PER_TRIGGER)}
    wanted: list[dict[str, Any]] = [
        _query(home, "warm-up", {"startingOffsets": "earliest", **bound}, wish.warm_up)
    ]
    for name, options in variants.items():
        start = {"startingOffsets": json.dumps({TOPIC: at})}
        wanted.append(_query(home, f"backlog {name}", {**start, **bound, **options}, wish.backlog))
    for name, options in variants.items():
        stream = {"startingOffsets": "latest", **options}
        wanted.append(_query(home, f"stream {name}", stream, 0, seconds=wish.seconds))
    with (
        ExitStack() as stack,
        structured.queries(
            python,
            cache=cache,
            bootstrap=ground.bootstrap,
            topic=TOPIC,
            wanted=wanted,
            log=home / "structured.log",
        ) as told,
    ):
        streaming_now = False
        for line in told:
            if "begin" in line:
                say(f"Structured Streaming: {line['begin']}")
                if line["begin"].startswith("stream") and not streaming_now:
                    stack.enter_context(ground.stream(wish.rate))
                    streaming_now = True
                continue
            kind, _, name = line["end"].partition(" ")
            if kind == "backlog":
                result.rate[name] = _rate(line["batches"], wish.backlog)
            elif kind == "stream":
                result.age[name] = _age(line["batches"])


def _query(
    home: Path, name: str, options: Mapping[str, str], records: int, *, seconds: float = 300.0
) -> dict[str, Any]:
    checkpoint = str(home / "checkpoints" / name.replace(" ", "-"))
    return {
        "name": name,
        "options": dict(options),
        "records": records,
        "seconds": seconds,
        "checkpoint": checkpoint,
    }


def _rate(batches: Sequence[Line], records: int) -> float:
    """Of whole batches, from the first one's call to the last one's end.

    The call comes after the batch was planned, so what its first ListOffsets took is left out, in
    Structured Streaming's favour.
    """
    read = sum(line["records"] for line in batches)
    if read < records:
        raise FleetError(f"Structured Streaming read {read} of {records} records in 300 s")
    return float(read / (batches[-1]["done"] - batches[0]["began"]))


def _age(batches: Sequence[Line]) -> float:
    """Median over batches of done - oldest record, once the stream has settled."""
    if not batches:
        raise FleetError("no batch under the steady stream")
    since = batches[0]["done"] + _SETTLE
    ages = [line["done"] - line["oldest"] for line in batches if line["done"] >= since]
    return float(statistics.median(ages or [line["done"] - line["oldest"] for line in batches]))


def _json_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]
