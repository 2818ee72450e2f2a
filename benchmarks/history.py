"""`make bench-history`: the decoder alone, bare Python consumers, and the history end to end.

Problem: records per second through Spark say nothing without what the same cores can read at all.
Choice: two processes, each a bare `Consumer.consume()` loop over half of the partitions, first as
anybody writes it, then with the fetch options of our source; and the vectorised decoder on
batches in memory, by CPU time on one core. Cost: two million commits are written first.
"""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from confluent_kafka import Consumer, TopicPartition

from benchmarks.command import number_option, running, tell
from benchmarks.figures import BenchmarkResult, CpuUsage, Goal, Pids, below, peak
from benchmarks.ground import homes, owned_by_benchmark
from benchmarks.offset_commits import GROUPS, arrays, write
from fleet.act import spark_server
from fleet.broker import Broker
from fleet.clock import Clock, SystemClock
from fleet.errors import FleetError
from fleet.history.pipeline import Recorder
from fleet.history.tables import Tables
from fleet.log.record_columns import columns
from fleet.log.records import TOPIC
from fleet.manager.cycle import Fleet
from fleet.manager.history_session import open_recorder
from fleet.system.home import fleet_home

Say = Callable[[str], None]
BURROW: Final = 45_000.0
"""Commits per second of Burrow, on the machine on which the goals were set."""
GOAL_RATE: Final = 3 * BURROW
GOAL_RATIO: Final = 0.8
"""Of what two bare consumers read in the same run."""
_WARM: Final = 50_000
_RESTART: Final = 20_000


@dataclass(slots=True, kw_only=True)
class RecordingResult:
    """What was measured; seconds are wall time, sizes MB."""

    commits: int
    """Recorded while the clock ran."""
    seconds: float
    rows: int
    """Of `commits`, for these."""
    missing: int
    """Commits written less commits that the tables stand for, over everything."""
    again_seconds: float = 0.0
    """A new process catches up with 20,000 commits, from its first look to the last commit."""
    process_seconds: float = 0.0
    """The same with the process' own start."""
    nothing_seconds: float = 0.0
    memory: dict[str, float] = field(default_factory=dict)
    """Peak of resident memory: the job's process, Spark's server, its Python workers together."""
    cpu: dict[str, float] = field(default_factory=dict)
    """CPU seconds while the clock ran, of these and of the broker."""

    @property
    def rate(self) -> float:
        """Commits per second into tables."""
        return self.commits / self.seconds


def record(
    home: Path,
    bootstrap: str,
    *,
    written: int,
    groups: int,
    every: bool,
    clock: Clock,
    say: Say,
    broker: Pids,
) -> RecordingResult:
    """Record a topic that holds `written` commits of so many groups; ends the Spark it starts.

    every: a row for each commit, not the last of 10 s with their number. broker: its processes.
    """
    config = home / "fleet.yaml"
    config.write_text(
        f'cluster: {{name: bench, bootstrap_servers: "{bootstrap}"}}\n'
        f"history: {{commit_interval: {0 if every else 10}s}}\n",
        encoding="utf-8",
    )
    spark_server.start(home)
    try:
        found = _measured(home, config, written=written, clock=clock, say=say, broker=broker)
        say(f"another process catches up with {_RESTART:,}, then with nothing")
        write(bootstrap, _RESTART, groups=groups, clock=clock, say=lambda _: None)
        began = clock.monotonic()
        found.again_seconds = _command(home, config)
        found.process_seconds = clock.monotonic() - began
        found.nothing_seconds = _command(home, config)
        return found
    finally:
        spark_server.stop(home)


def _measured(
    home: Path, config: Path, *, written: int, clock: Clock, say: Say, broker: Pids
) -> RecordingResult:
    with (
        Fleet.open(config, home=home, clock=clock) as fleet,
        open_recorder(fleet, spark="shared", polled=False, say=lambda _: None) as recorder,
    ):
        assert isinstance(recorder, Recorder)
        say("Spark starts, and a small first batch warms it")
        usual, recorder.batch = recorder.batch, _WARM
        looks = iter((False, True, True, True))
        warm = recorder.catch_up(stopped=lambda: next(looks))
        recorder.batch = usual
        say("the history records the rest")
        server = spark_server.process(home)
        jvm = [server.pid] if server is not None else []
        spent = CpuUsage(
            {
                "job": lambda: [os.getpid()],
                "Spark": lambda: jvm,
                "Spark's Python": lambda: [child for pid in jvm for child in below(pid)],
                "broker": broker,
            }
        )
        began = clock.monotonic()
        done = recorder.catch_up()
        seconds = clock.monotonic() - began
        cpu = spent.seconds()
        memory = _memory(home)
    import pyarrow.compute as pc  # noqa: PLC0415 - a command that only prints loads none

    held = Tables(home / "history").read("commits", columns=["group_id", "commits"])
    mine = held.filter(pc.starts_with(held["group_id"], "group-"))
    return RecordingResult(
        commits=done.commits,
        seconds=seconds,
        rows=done.rows["commits"],
        missing=written - int(pc.sum(mine["commits"]).as_py() or 0) if warm.batches else written,
        memory=memory,
        cpu=cpu,
    )


def _command(home: Path, config: Path) -> float:
    """Seconds that `fleet history sync` took by its own account."""
    done = subprocess.run(
        [sys.executable, "-m", "fleet", "history", "sync", "-o", "json"],
        env={**os.environ, "FLEET_CONFIG": str(config), "FLEET_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FleetError(f"`fleet history sync` failed: {done.stderr.strip()[-300:]}")
    return float(json.loads(done.stdout)["seconds"])


def _memory(home: Path) -> dict[str, float]:
    server = spark_server.process(home)
    found = {"job": peak(os.getpid())}
    if server is not None:
        found["Spark"] = peak(server.pid)
        found["Spark's Python"] = sum(peak(pid) for pid in below(server.pid))
    return found


GOAL_DECODER: Final = 2_000_000
AS_THEY_COME: Final = "as they come"
_CHUNK: Final = 10_000
_DECODED: Final = 2_000_000
"""Records that each figure of the decoder is made from."""
_READERS: Final = 2
_READ_SECONDS: Final = 300.0
_MIXES: Final[Mapping[str, tuple[int, Sequence[int | None]]]] = {
    "OffsetCommit v4": (1, (4,)),
    "OffsetCommit v0-v3": (1, (0, 1, 2, 3)),
    "LegacyOffsetCommit": (0, (0,)),
    "tombstones of commits": (1, (None,)),
    "commits, one in ten a tombstone": (1, (*(4,) * 9, None)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """How much is measured."""

    commits: int = 2_000_000
    groups: int = GROUPS
    every: bool = False
    """A row of `commits` for each commit."""


@dataclass(kw_only=True)
class HistoryResult(BenchmarkResult):
    """Records per second: of the decoder on one core by mix, of two bare consumers by way."""

    options: HistoryOptions
    decoder: dict[str, float] = field(default_factory=dict)
    bare: dict[str, float] = field(default_factory=dict)
    bare_cpu: dict[str, dict[str, float]] = field(default_factory=dict)
    """CPU seconds of the two consumers and of the broker meanwhile, by way."""
    recorded: RecordingResult | None = None

    @property
    def ratio(self) -> float | None:
        """The history's records per second, of what bare consumers read as they come."""
        if self.recorded is None or AS_THEY_COME not in self.bare:
            return None
        return self.recorded.rate / self.bare[AS_THEY_COME]

    def goals(self) -> tuple[Goal, ...]:
        """What is held against the figures."""
        found = self.recorded
        return (
            Goal(
                "commits/s of the decoder on one core",
                GOAL_DECODER,
                min(self.decoder.values(), default=None),
                at_least=True,
            ),
            Goal(
                "commits/s into tables",
                GOAL_RATE,
                None if found is None else found.rate,
                at_least=True,
            ),
            Goal(
                "part of what two bare consumers read in the same run",
                GOAL_RATIO,
                self.ratio,
                at_least=True,
            ),
            Goal("commits lost or duplicated", 0, None if found is None else abs(found.missing)),
        )

    def figures(self) -> dict[str, Any]:
        """With the rates that the goals are about."""
        found = self.recorded
        return {
            **super().figures(),
            "into_tables": None if found is None else found.rate,
            "to_bare_consumers": self.ratio,
        }


def run(
    options: HistoryOptions,
    *,
    home: Path,
    clock: Clock,
    say: Callable[[str], None],
    ending: Callable[[], None],
) -> HistoryResult:
    """Measure; the home is made and deleted, `ending` is called before everything is ended.

    FleetError where something does not come up.
    """
    result = HistoryResult(options=options)
    say("the decoder alone")
    result.decoder = decoder()
    home.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        stack.enter_context(owned_by_benchmark(home))
        broker = Broker(home)
        stack.callback(broker.purge)
        stack.callback(ending)
        bootstrap = broker.start().bootstrap_servers

        def pids() -> list[int]:
            return [node.pid for node in broker.status().nodes if node.pid is not None]

        partitions = write(bootstrap, options.commits, groups=options.groups, clock=clock, say=say)
        for way, client in ways(bootstrap).items():
            say(f"two bare consumers, {way}")
            spent = CpuUsage({"broker": pids})
            result.bare[way], consumers = bare(client, partitions, options.commits)
            result.bare_cpu[way] = {"consumers": consumers, **spent.seconds()}
        result.recorded = record(
            home,
            bootstrap,
            written=options.commits,
            groups=options.groups,
            every=options.every,
            clock=clock,
            say=say,
            broker=pids,
        )
    return result


def decoder(count: int = _DECODED) -> dict[str, float]:
    """Records per CPU second of the vectorised decoder, by what it is given."""
    found = {}
    for name, (kind, versions) in _MIXES.items():
        keys, values = arrays(_CHUNK, versions=versions, kind=kind)
        place = ([0] * _CHUNK, range(_CHUNK), [0] * _CHUNK)
        columns(*place, keys, values)
        begun = time.process_time()
        for _ in range(count // _CHUNK):
            columns(*place, keys, values)
        found[name] = count / (time.process_time() - begun)
    return found


def ways(bootstrap: str) -> dict[str, dict[str, Any]]:
    """Options of a bare consumer: as anybody writes it, and with the settings that read fastest."""
    plain = {
        "bootstrap.servers": bootstrap,
        "group.id": "bare",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    # librdkafka waits a whole second after its queue was full.
    tuned = {"fetch.wait.max.ms": 5, "fetch.queue.backoff.ms": 5, "queued.min.messages": _CHUNK}
    return {AS_THEY_COME: plain, "with our fetch options": plain | tuned}


def bare(options: Mapping[str, Any], partitions: int, wanted: int) -> tuple[float, float]:
    """Two processes read the whole topic, each half of it: records per second, and CPU seconds.

    From the moment when both are connected until the last has read its half. FleetError where
    they do not get there.
    """
    context = multiprocessing.get_context("spawn")
    ready, told = context.Barrier(_READERS), context.Queue()
    readers = [
        context.Process(
            target=_read,
            args=(dict(options), list(range(number, partitions, _READERS)), ready, told),
            daemon=True,
        )
        for number in range(_READERS)
    ]
    for reader in readers:
        reader.start()
    try:
        answers: list[tuple[int, float, float, float]] = [
            told.get(timeout=_READ_SECONDS) for _ in readers
        ]
    except Exception as error:
        raise FleetError(f"bare consumers did not end within {_READ_SECONDS:g} s") from error
    finally:
        for reader in readers:
            reader.kill()
            reader.join()
    records = sum(count for count, *_ in answers)
    if records < wanted:
        raise FleetError(f"bare consumers read {records:,} of {wanted:,} commits")
    seconds: float = max(end for _, _, end, _ in answers) - min(begun for _, begun, *_ in answers)
    return records / seconds, sum(spent for *_, spent in answers)


def _read(options: dict[str, Any], partitions: list[int], ready: Any, told: Any) -> None:
    """One process: (records, when it began and ended on the machine's monotonic clock, CPU)."""
    consumer = Consumer(options)
    left = {}
    for number in partitions:
        _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=10.0)
        if end:
            left[number] = end
    ready.wait(60)
    begun, spent, count = time.monotonic(), time.process_time(), 0
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in left])
    while left:
        for message in consumer.consume(_CHUNK, 0.1):
            if message.error() is not None:
                continue
            message.key()
            message.value()
            count += 1
            partition: Any = message.partition()
            position: Any = message.offset()
            if position + 1 >= left.get(partition, 0):
                left.pop(partition, None)
    told.put((count, begun, time.monotonic(), time.process_time() - spent))
    consumer.close()


@click.command(epilog="Example:  make bench-history ARGS='--commits 500000'")
@number_option(
    "--commits", 2_000_000, "Number of offset commits on the topic.", 10_000, 100_000_000
)
@click.option("--every", is_flag=True, help="Record every commit, not only the last of 10 s.")
def history(**wanted: Any) -> None:
    """Record offset commits, beside what bare consumers read.

    Commits of 2,000 groups are written to a broker of the benchmark's own. Goal: the vectorised
    decoder alone takes 2,000,000 commits/s or more on one core, of every version. Two bare Python
    consumers read the topic, as they come and with our fetch options; then `fleet history` records
    it as a tail does. Goals: 135,000 commits/s or more into tables, the broker included (three
    times Burrow's 45,000), and 0.8 times the bare consumers or more; no loss, no duplicates. Beside
    it what catching up after a restart takes, and the peak of memory. About two minutes.
    """
    clock = SystemClock()
    home = homes(fleet_home()) / f"history-{int(clock.now())}"
    with running("history") as (say, ending):
        result = run(HistoryOptions(**wanted), home=home, clock=clock, say=say, ending=ending)
    tell("history", [result])
