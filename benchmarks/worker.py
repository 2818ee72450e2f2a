"""`make bench-worker`: one worker beside Structured Streaming's Kafka source, in one run.

Problem: a rate says nothing without the same job on the same topic and cores, and the first
seconds of a JVM say nothing at all. Choice: one broker and one topic; each side first works off
a warm-up, then a backlog, then a steady stream, alone on the machine; both run `streaming.py`'s
job, a batch's age is counted from its oldest record to the job's end. Beside Structured Streaming
with no setting at all stand two that people who know it would make, each in a JVM of its own: one
that had read the others' records too would be the warmest. Where others share the machine the CPU
of a record says more than the rate: of every process, the broker's too. With executors both read
through a standalone cluster's, where a worker reads by ranges. Cost: seven minutes.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from confluent_kafka import Producer

from benchmarks import streaming, structured
from benchmarks.command import number_option, running, tell
from benchmarks.figures import BenchmarkResult, CpuUsage, Goal, Spread, below, spread
from benchmarks.ground import TOPIC, Ground
from benchmarks.standalone import Standalone, standalone
from fleet.act import spark_server
from fleet.clock import Clock, SystemClock
from fleet.demo.coverage import whole_lines
from fleet.demo.producer import order
from fleet.errors import FleetError
from fleet.extras import need
from fleet.slots import Phase
from fleet.system import spark_python
from fleet.system.home import cache_home, fleet_home

GROUP: Final = "bench-worker"
PARTITIONS: Final = 12
PER_TRIGGER: Final = 500_000
"""maxOffsetsPerTrigger of the backlog: without it Spark takes all in one batch, slower here."""
RATE: Final = 2_000
"""Records per second of the stream."""
OURS: Final = "fleet"
THEIRS: Final = "as it comes"
VARIANTS: Final[Mapping[str, structured.Settings]] = {
    THEIRS: structured.Settings(),
    "fetch.max.wait.ms=5": structured.Settings(options={"kafka.fetch.max.wait.ms": "5"}),
    "and shuffle.partitions=4": structured.Settings(
        options={"kafka.fetch.max.wait.ms": "5"}, conf={"spark.sql.shuffle.partitions": "4"}
    ),
}
GOAL_RATIO: Final = 2.0
GOAL_TUNED: Final = 1.25
GOAL_TUNED_EXECUTORS: Final = 1.1
GOAL_AGE: Final = 0.15
GOAL_AGE_P95: Final = 0.4
GOAL_AGE_PART: Final = 1 / 3
SETTLE: Final = 20.0
"""Seconds of the steady stream before its batches count: some hundred small batches warm a JVM."""
_DISTINCT: Final = 5000
_GRACE: Final = 10.0
_TIMEOUT: Final = 300.0
Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How much is measured."""

    backlog: int = 2_000_000
    warm_up: int = 3_000_000
    seconds: float = 40.0
    """Of the steady stream, each."""
    alone: bool = False
    """Without Structured Streaming."""
    executors: int = 0
    """Of a standalone cluster, a core each; 0: Spark's own threads do the work."""


@dataclass(frozen=True, kw_only=True)
class WorkerResult(BenchmarkResult):
    """Of the backlog records per second and CPU, of the stream the ages of its batches."""

    options: WorkerOptions
    rate: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    """Microseconds a record, of all processes and the broker."""
    age: dict[str, Spread] = field(default_factory=dict)
    """Seconds from a batch's oldest record to its end."""

    def goals(self) -> tuple[Goal, ...]:
        """What is held against the figures."""
        tuned = Goal(
            "records/s, times the best tuned one's",
            GOAL_TUNED_EXECUTORS if self.options.executors else GOAL_TUNED,
            self._times_tuned(),
            at_least=True,
        )
        if self.options.executors:
            return (tuned,)
        ours = self.age.get(OURS)
        age = (
            Goal("age p50, seconds", GOAL_AGE, ours.p50 if ours else None),
            Goal("age p95, seconds", GOAL_AGE_P95, ours.p95 if ours else None),
        )
        if self.options.alone:
            return age
        times = _part(self.rate)
        part = _part({name: each.p50 for name, each in self.age.items()})
        return (
            *age,
            Goal("records/s, times Structured Streaming's", GOAL_RATIO, times, at_least=True),
            tuned,
            Goal("age p50, part of Structured Streaming's", GOAL_AGE_PART, part),
        )

    def _times_tuned(self) -> float | None:
        """Ours to the quickest of them; None where one was not measured."""
        ours, theirs = self.rate.get(OURS), [self.rate.get(name) for name in VARIANTS]
        known = [rate for rate in theirs if rate]
        return ours / max(known) if ours and len(known) == len(theirs) else None


def _part(figures: Mapping[str, float]) -> float | None:
    """Ours to theirs, as it comes."""
    ours, theirs = figures.get(OURS), figures.get(THEIRS)
    return ours / theirs if ours and theirs else None


def run(
    options: WorkerOptions,
    *,
    parent: Path,
    cache: Path,
    clock: Clock,
    say: Callable[[str], None],
    ending: Callable[[], None],
) -> WorkerResult:
    """Measure both; `ending` is called before everything is ended and deleted.

    FleetError where something does not come up.
    """
    result = WorkerResult(options=options)
    need("pyspark", "pyarrow")
    python = None if options.alone else structured.environment(cache, say)
    with Ground(
        parent=parent, partitions=PARTITIONS, rate=0, clock=clock, say=say, ending=ending
    ) as ground:
        backlog = _Backlog(ground)
        with _our_cluster(ground, options.executors) as cluster:
            _ours(ground, backlog, cluster, options, result)
            ground.runtime.down(grace=_GRACE)  # nothing of ours runs beside theirs
        if python is not None:
            _theirs(ground, options=options, cache=cache, python=python, result=result)
    return result


class _Backlog:
    """What writes a backlog: as fast as one process can, where a stream keeps a pace."""

    def __init__(self, ground: Ground) -> None:
        self._values = [order(n, ground.clock.now()) for n in range(_DISTINCT)]
        self._options = {
            "bootstrap.servers": ground.fleet.bootstrap,
            "linger.ms": 5,
            "queue.buffering.max.messages": 500_000,
        }
        self.written = 0

    def write(self, count: int) -> None:
        """So many orders, over all partitions in turn, acknowledged; FleetError where not."""
        producer = Producer(self._options)  # one for each backlog: none outlives the broker
        for number in range(self.written, self.written + count):
            value, partition = self._values[number % _DISTINCT], number % PARTITIONS
            while True:
                try:
                    producer.produce(TOPIC, value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
        self.written += count
        if producer.flush(120):
            raise FleetError("the benchmark's records were not acknowledged within 120 s")


# --- Fleet ---------------------------------------------------------------------------------


def _cluster(
    ground: Ground, name: str, spark: Path, python: str, executors: int
) -> AbstractContextManager[Standalone]:
    ground.say(f"a master and {executors} nodes of one core, {name}")
    return standalone(
        ground.home / "clusters" / name,
        spark=spark,
        environ={**os.environ, spark_python.CHOSEN: python},
        clock=ground.clock,
        nodes=executors,
    )


@contextmanager
def _our_cluster(ground: Ground, executors: int) -> Iterator[Standalone | None]:
    """Executors that do the shared server's work meanwhile; None where its own threads do."""
    if not executors:
        yield None
        return
    before = os.environ.get(spark_server.MASTER_ENV)
    with _cluster(ground, "ours", spark_server.pyspark_folder(), sys.executable, executors) as made:
        os.environ[spark_server.MASTER_ENV] = made.url  # as the supervisor's server reads it
        try:
            yield made
        finally:
            os.environ.pop(spark_server.MASTER_ENV)
            if before is not None:
                os.environ[spark_server.MASTER_ENV] = before


def _ours(
    ground: Ground,
    backlog: _Backlog,
    cluster: Standalone | None,
    options: WorkerOptions,
    result: WorkerResult,
) -> None:
    """One real worker process on a shared Spark server, held by its synchronized joins
    meanwhile.
    """
    journal = ground.home / "batches"
    environment = {**ground.environment(GROUP), streaming.JOURNAL: str(journal)}
    ground.declare(
        GROUP,
        protocol="cooperative-sticky",
        slots=1,
        worker={
            "entrypoint": "benchmarks.streaming:process",
            "python_path": [str(Path(__file__).parents[1])],
            "batch": {},
            "env": environment,
        },
    )
    ground.start_group(GROUP)
    ground.apply(GROUP)
    settings = ground.fleet.spec.fleet(GROUP)
    ground.say(f"the worker's settings: {settings.worker if settings else None}")

    spent: list[dict[str, float]] = []

    def work_off(count: int) -> float:
        """Write records, open the slot; seconds from its assignment to the last commit."""
        _hold(ground)
        backlog.write(count)
        meter = CpuUsage(
            {
                "broker": ground.broker_pids,
                "worker": lambda: _family(ground.worker_pids(GROUP)),
                "Spark": lambda: _family((*_spark_pids(ground), *_pids(cluster))),
            }
        )
        opened = ground.clock.now()
        ground.open_only(GROUP, {0})
        wanted = backlog.written
        ground.wait(lambda: read_of(batches(journal)) >= wanted, _TIMEOUT, "the backlog")
        done = batches(journal)[-1]["done"]
        ground.wait(lambda: _last(ground, "committed") >= done, _TIMEOUT, "the last commit")
        spent.append(meter.seconds())
        (assigned, *_) = (
            at for _, e, at in ground.events(GROUP) if e == "assigned" and at > opened
        )
        return _last(ground, "committed") - assigned

    ground.say(f"warming the worker with {options.warm_up} records")
    work_off(options.warm_up)
    ground.say(f"the worker: a backlog of {options.backlog}")
    result.rate[OURS] = options.backlog / work_off(options.backlog)
    result.cpu[OURS] = _told(ground, spent[-1], options.backlog)
    ground.say(f"the worker: {RATE} records/s for {options.seconds:g} s")
    before = len(batches(journal))
    with ground.streaming(RATE):
        ground.clock.sleep(options.seconds)
    result.age[OURS] = age_of(batches(journal)[before:])
    ground.dismiss(GROUP)


def _hold(ground: Ground) -> None:
    """The worker gives its slot up, and stays warm."""
    ground.open_only(GROUP, ())
    slots = ground.fleet.store.slots
    ground.wait(
        lambda: all(slot.phase is Phase.FREE for slot in slots(GROUP)), _TIMEOUT, "a free slot"
    )


def _family(pids: Iterable[int]) -> list[int]:
    """The processes and all their descendants."""
    return [each for pid in pids for each in (pid, *below(pid))]


def _spark_pids(ground: Ground) -> list[int]:
    server = spark_server.process(ground.home)
    return [] if server is None else [server.pid]


def _pids(cluster: Standalone | None) -> tuple[int, ...]:
    return () if cluster is None else cluster.pids


def _told(ground: Ground, spent: Mapping[str, float], records: int) -> float:
    """Microseconds of CPU a record, in all; said by process."""
    each = {name: 1e6 * seconds / records for name, seconds in spent.items()}
    parts = ", ".join(f"{name} {micros:.2f}" for name, micros in each.items())
    ground.say(f"CPU of a record in µs: {parts}; {sum(each.values()):.2f} in all")
    return sum(each.values())


def _last(ground: Ground, event: str) -> float:
    """When the worker last told of it; 0 where it never did."""
    return max((at for _, told, at in ground.events(GROUP) if told == event), default=0.0)


# --- Structured Streaming ------------------------------------------------------------------


def _theirs(
    ground: Ground, *, options: WorkerOptions, cache: Path, python: Path, result: WorkerResult
) -> None:
    """Each variant in JVMs of its own: none shall be warmer than those that the worker has."""
    at = {str(n): options.warm_up // PARTITIONS for n in range(PARTITIONS)}
    bound = {"maxOffsetsPerTrigger": str(PER_TRIGGER)}
    warm = {"startingOffsets": "earliest", **bound}
    start = {"startingOffsets": json.dumps({TOPIC: at}), **bound}
    for number, (name, settings) in enumerate(VARIANTS.items()):
        home = ground.home / "structured" / str(number)
        home.mkdir(parents=True)
        with _their_cluster(ground, number, python, options.executors) as cluster:
            queries = structured.Queries(
                home=home,
                bootstrap=ground.fleet.bootstrap,
                topic=TOPIC,
                master="local[*]" if cluster is None else cluster.url,
            )
            queries.add("warm-up", warm, settings, records=options.warm_up)
            queries.add("backlog", start, settings, records=options.backlog)
            queries.add("stream", {"startingOffsets": "latest"}, settings, seconds=options.seconds)
            with structured.running(python, queries, cache=cache) as lines:
                _variant(ground, name, lines, cluster=cluster, options=options, result=result)


def _their_cluster(
    ground: Ground, number: int, python: Path, executors: int
) -> AbstractContextManager[Standalone | None]:
    if not executors:
        return nullcontext()
    spark = structured.spark_folder(python)
    return _cluster(ground, f"theirs-{number}", spark, str(python), executors)


def _variant(
    ground: Ground,
    name: str,
    lines: Iterable[Line],
    *,
    cluster: Standalone | None,
    options: WorkerOptions,
    result: WorkerResult,
) -> None:
    """What one variant tells of its queries; its stream is written while that one runs."""
    meter = None
    with ExitStack() as stack:
        for line in lines:
            if "begin" in line:
                ground.say(f"Structured Streaming, {name}: {line['begin']}")
                if line["begin"] == "stream":
                    stack.enter_context(ground.streaming(RATE))
                family = partial(_family, (line["pid"], *_pids(cluster)))
                meter = CpuUsage({"broker": ground.broker_pids, "Spark": family})
            elif line["end"] == "backlog":
                result.rate[name] = rate_of(line["batches"], options.backlog)
                assert meter is not None
                result.cpu[name] = _told(ground, meter.seconds(), read_of(line["batches"]))
            elif line["end"] == "stream":
                result.age[name] = age_of(line["batches"])


# --- what the batches come to: pure ---------------------------------------------------------


def read_of(lines: Sequence[Line]) -> int:
    """Records of all batches."""
    return sum(line["records"] for line in lines)


def rate_of(lines: Sequence[Line], records: int) -> float:
    """Of whole batches, from the first one's call to the last one's end.

    The call comes after the batch was planned, so what its first ListOffsets took is left out, in
    Structured Streaming's favour. FleetError where fewer than `records` were read.
    """
    read = read_of(lines)
    if read < records:
        raise FleetError(f"Structured Streaming read {read} of {records} records in time")
    return float(read / (lines[-1]["done"] - lines[0]["began"]))


def age_of(lines: Sequence[Line]) -> Spread:
    """Over batches: done - oldest record, once the stream has settled; seconds."""
    if not lines:
        raise FleetError("no batch under the steady stream")
    since = lines[0]["done"] + SETTLE
    ages = [line["done"] - line["oldest"] for line in lines if line["done"] >= since]
    found = spread(ages or [line["done"] - line["oldest"] for line in lines])
    assert found is not None
    return found


def batches(journal: Path) -> list[dict[str, Any]]:
    """What the job wrote; a line in the making is left for later."""
    return [json.loads(line) for line in whole_lines(journal)]


@click.command(epilog="Example:  make bench-worker ARGS=--alone")
@click.option("--alone", is_flag=True, help="Do without Structured Streaming, and install nothing.")
@click.option(
    "--executors",
    type=click.IntRange(0, 64),
    default=0,
    metavar="N",
    help="Number of executors of a standalone cluster, a core each, that do both sides' work; "
    "0: threads of Spark's driver.",
)
@number_option("--backlog", 2_000_000, "Number of records that wait.", 10_000, 100_000_000)
@number_option(
    "--seconds",
    40.0,
    "Length of the steady stream of 2,000 records/s; the first 20 s do not count.",
    10,
    3600,
)
def worker(**wanted: Any) -> None:
    """Read a backlog and a stream, beside Structured Streaming.

    One worker with default settings and Spark's own Kafka source run the same job on the same
    topic and cores, one after the other, both warm. Goals: a backlog of JSON records at twice its
    records per second or more, and at 1.25 times those of the best tuned one beside it; under
    2,000 records/s the age of the oldest record when its batch is done at most 0.15 s at p50, 0.4 s
    at p95, and below a third of its. With executors the goal is 1.1 times the records per second
    of the best tuned one. CPU of a record is that of all processes, the broker's too.
    Spark 4.2.0, the last with a connector, is installed under ~/.cache/fleet the first time
    (450 MB). About seven minutes.
    """
    options = WorkerOptions(**wanted)
    if options.alone and options.executors:
        raise click.UsageError("--executors N compares with Structured Streaming: omit --alone")
    with running("worker") as (say, ending):
        result = run(
            options,
            parent=fleet_home(),
            cache=cache_home(),
            clock=SystemClock(),
            say=say,
            ending=ending,
        )
    tell("worker", [result])
