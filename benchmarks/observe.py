"""`make bench-observe`: a refresh of all groups beside other ways, on the same broker.

Problem: tools that ask per group are quick with ten groups; what counts is a thousand, and then
five. Choice: groups with a commit in every partition are made through the admin API, some with
real members that commit all the time; other ways are measured first (describe all, then offsets
one group at a time; this project's own snapshot, which asks the coordinators about many groups in
each request), then a real `fleet exporter` process: its refreshes, a scrape every half second over
HTTP, and its highest memory; then one that refreshes every 5 s: its CPU per refresh, at first
and when every group has stood still for a minute, which is how abandoned groups are. What it
tells is compared with what was made. Cost: about two minutes and a half.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import yaml
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.command import number_option, running, tell
from benchmarks.figures import BenchmarkResult, CpuUsage, Goal, Spread, all_met, peak, ratio, spread
from benchmarks.ground import homes, owned_by_benchmark
from fleet.broker import Broker
from fleet.clock import Clock, SystemClock
from fleet.errors import FleetError
from fleet.observe.admin import Observer
from fleet.system.home import fleet_home, write_whole

LOOK: Final = 0.5
SCRAPE: Final = 0.2
PER: Final = 1_000
"""Groups that the goals are stated for; more groups may take in proportion."""
MEGABYTES_EMPTY: Final = 50.0
"""Of an exporter without groups."""
MEGABYTES: Final = 40.0
"""Beyond that."""
_TOPICS: Final = 10
_RECORDS: Final = 20
"""In every partition; half of them are committed."""
_IN_FLIGHT: Final = 50
_DESCRIBED: Final = 1_000
_SCRAPE_EVERY: Final = 0.5
_REFRESHES: Final = 4  # refreshes, 5 s apart, over which the exporter's CPU is counted
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveOptions:
    """How much is measured."""

    groups: tuple[int, ...] = (1_000,)
    partitions: int = 48
    members: int = 20
    """Groups with a member."""
    seconds: float = 15.0
    """Of scraping, for each number of groups."""


@dataclass(slots=True, kw_only=True)
class Size:
    """What was measured with one number of groups."""

    groups: int
    one_by_one: float | None = None
    in_flight: float | None = None
    refreshes: Spread | None = None
    scrapes: Spread | None = None
    megabytes: float | None = None
    bytes: int = 0
    """Of one answer of /metrics."""
    age: Spread | None = None
    """Seconds since everything in the offsets topic had been read, at the scrapes."""
    caught_up: float | None = None
    """Seconds from the exporter's start to its first complete refresh by the log."""
    cpu: float | None = None
    """CPU seconds of an exporter for each refresh, every 5 s."""
    cpu_stuck: float | None = None
    """The same, where it has something to say against every group."""
    right: bool = False
    """The groups and the sum of their lag are those that were made."""

    def goals(self) -> tuple[Goal, ...]:
        """Returns the goals of the benchmark."""
        times = max(1.0, self.groups / PER)
        many = f"{self.groups:,} groups: "
        return (
            Goal(
                many + "one refresh of state, offsets and lag, p95, s",
                LOOK * times,
                self.refreshes.p95 if self.refreshes and self.right else None,
            ),
            Goal(
                many + "/metrics, the longest scrape, s",
                SCRAPE * times,
                self.scrapes.max if self.scrapes else None,
            ),
            Goal(
                many + "highest memory of the exporter, MB",
                MEGABYTES_EMPTY + MEGABYTES * times,
                self.megabytes,
            ),
        )

    def times(self) -> dict[str, float | None]:
        """How many times a median refresh the other ways take."""
        refresh = self.refreshes.p50 if self.refreshes else None
        return {
            "one_by_one": ratio(self.one_by_one, refresh),
            "in_flight": ratio(self.in_flight, refresh),
        }


@dataclass(kw_only=True)
class ObserveResult(BenchmarkResult):
    """What the run found."""

    options: ObserveOptions
    sizes: list[Size] = field(default_factory=list)

    def goals(self) -> tuple[Goal, ...]:
        """Returns the goals of the benchmark."""
        return tuple(goal for size in self.sizes for goal in size.goals())

    @property
    def met(self) -> bool:
        """Every goal of every size is met."""
        return len(self.sizes) == len(self.options.groups) and all_met(self.goals())

    def figures(self) -> dict[str, Any]:
        """With the ratios of each size."""
        return {**super().figures(), "times": [size.times() for size in self.sizes]}


def run(
    options: ObserveOptions, *, home: Path, clock: Clock, say: Say, ending: Callable[[], None]
) -> ObserveResult:
    """Measure in a home of its own; `ending` is called before all of it is ended and deleted."""
    result = ObserveResult(options=options)
    broker, stack = Broker(home), ExitStack()
    try:
        stack.enter_context(owned_by_benchmark(home))
        bootstrap = broker.start(say=say).bootstrap_servers
        config: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}
        admin = AdminClient(config)
        create_topics(config, admin, options)
        with members(config, options):
            made = 0
            for groups in options.groups:
                say(f"{groups:,} groups with {options.partitions} partitions each")
                commit_offsets(admin, options, range(made, groups))
                made = groups
                size = Size(groups=groups)
                result.sizes.append(size)
                _baseline(config, admin, size, clock)
                say(f"{groups:,} groups: the exporter")
                _ours(home, bootstrap, options, size, clock)
                _refreshes(home, bootstrap, size, clock)
    finally:
        ending()
        broker.purge()
        stack.close()
        shutil.rmtree(home, ignore_errors=True)
    return result


# --- what is looked at ----------------------------------------------------------------------


def name_of(number: int) -> str:
    """A group; the first ones have members."""
    return f"group-{number:05d}"


def topic_of(number: int) -> str:
    """The topic that a group reads."""
    return f"topic-{number % _TOPICS}"


def create_topics(config: Mapping[str, Any], admin: AdminClient, options: ObserveOptions) -> None:
    """Ten topics with records in every partition."""
    names = [topic_of(number) for number in range(_TOPICS)]
    for future in admin.create_topics([NewTopic(n, options.partitions, 1) for n in names]).values():
        future.result(60)
    producer = Producer(dict(config))
    for name in names:
        for number in range(_RECORDS * options.partitions):
            producer.produce(name, b"x", partition=number % options.partitions)
        producer.poll(0)
    if producer.flush(300):
        raise FleetError("the benchmark's records could not be written within 300 s")


def commit_offsets(admin: AdminClient, options: ObserveOptions, numbers: range) -> None:
    """Half of the records, in every partition of every group that has no member."""
    wanted = [number for number in numbers if number >= options.members]
    for first in range(0, len(wanted), _IN_FLIGHT):
        left = wanted[first : first + _IN_FLIGHT]
        for attempt in range(50):
            left = _altered(admin, options, left)
            if not left:
                break
            time.sleep(0.1 * (attempt + 1))  # the first coordinator ever is being made
        else:
            raise FleetError(f"offsets of {len(left)} groups could not be committed")


def _altered(admin: AdminClient, options: ObserveOptions, numbers: list[int]) -> list[int]:
    """Those that have to be tried again."""
    half = _RECORDS // 2
    futures = {}
    for number in numbers:
        tps = [KafkaPartition(topic_of(number), p, half) for p in range(options.partitions)]
        asked = ConsumerGroupTopicPartitions(name_of(number), tps)
        futures[number] = admin.alter_consumer_group_offsets([asked])[name_of(number)]
    failed = []
    for number, future in futures.items():
        try:
            told = future.result(30)
            if any(tp.error for tp in told.topic_partitions):
                failed.append(number)
        except (KafkaException, FutureTimeout):
            failed.append(number)
    return failed


@contextmanager
def members(config: Mapping[str, Any], options: ObserveOptions) -> Iterator[None]:
    """Groups with one member each, which own every partition and commit half of each again and
    again, so that the log goes on growing and the lag stays what it is.
    """
    ending = threading.Event()
    ready = threading.Semaphore(0)
    half = _RECORDS // 2

    def live(number: int) -> None:
        group = {"group.id": name_of(number), "enable.auto.commit": False}
        client = Consumer({**config, **group})
        client.subscribe([topic_of(number)])
        told = False
        while not ending.is_set():
            client.poll(0.2)
            held = client.assignment()
            if not held:
                continue
            client.pause(held)  # what is read is no business of this benchmark
            tps = [KafkaPartition(tp.topic, tp.partition, half) for tp in held]
            client.commit(offsets=tps, asynchronous=False)
            if not told:
                told = True
                ready.release()
            ending.wait(1.0)
        client.close()

    threads = [
        threading.Thread(target=live, args=(n,), daemon=True) for n in range(options.members)
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            if not ready.acquire(timeout=60):
                raise FleetError("the benchmark's members were not in their groups within 60 s")
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join(timeout=10)


# --- the baselines ----------------------------------------------------------------------


def _baseline(config: Mapping[str, Any], admin: AdminClient, size: Size, clock: Clock) -> None:
    began = clock.monotonic()
    groups = [g.group_id for g in admin.list_consumer_groups().result(60).valid]
    for first in range(0, len(groups), _DESCRIBED):  # no answer ever to one call for 5,000
        for future in admin.describe_consumer_groups(groups[first : first + _DESCRIBED]).values():
            future.result(60)
    for group in groups:
        asked = [ConsumerGroupTopicPartitions(group)]
        admin.list_consumer_group_offsets(asked)[group].result(60)
    size.one_by_one = clock.monotonic() - began
    observer = Observer(cluster="bench", config=config, clock=clock, timeout=60.0)
    observer.snapshot()  # connections are made, and the old listing is remembered
    size.in_flight = min(observer.snapshot().took for _ in range(3))
    observer.close()


# --- ours -----------------------------------------------------------------------------------


def _ours(home: Path, bootstrap: str, options: ObserveOptions, size: Size, clock: Clock) -> None:
    with _exporter(home, bootstrap, every="1s") as (process, url):
        began = clock.monotonic()
        durations: dict[float, float] = {}
        scrapes, ages = [], []
        text = _awaited(process, url, lambda text: _by_log(text, size.groups), clock)
        size.caught_up = clock.monotonic() - began
        first = _refresh_count(text)
        until = clock.monotonic() + options.seconds
        while clock.monotonic() < until:
            text, took = _scraped(url, clock)
            scrapes.append(took)
            durations[_refresh_count(text)] = _value(
                text, "fleet_exporter_refresh_duration_seconds"
            )
            ages.append(_value(text, "fleet_offsets_topic_age_seconds"))
            clock.sleep(_SCRAPE_EVERY)
        durations.pop(first, None)  # it waited for the log: `caught_up`
        size.refreshes, size.scrapes = spread(durations.values()), spread(scrapes)
        size.age, size.bytes = spread(ages), len(text)
        size.megabytes = peak(process.pid) or None  # unknown where this system does not tell
        told = re.findall(r"^fleet_group_lag_records\{.*\} (\S+)$", text, re.MULTILINE)
        lag = sum(map(float, told))
        size.right = lag == size.groups * options.partitions * (_RECORDS - _RECORDS // 2)


def _refreshes(home: Path, bootstrap: str, size: Size, clock: Clock) -> None:
    """Measures the CPU of a refresh: reads, requests, rendering and some scrapes."""
    with _exporter(home, bootstrap, every="5s") as (process, url):
        _awaited(process, url, lambda text: _by_log(text, size.groups), clock)
        size.cpu = _refreshing(process, url, clock)
        _awaited(process, url, lambda text: text.count('level="ERR"') >= size.groups, clock)
        size.cpu_stuck = _refreshing(process, url, clock)


def _refreshing(process: "subprocess.Popen[str]", url: str, clock: Clock) -> float:
    """Measures the CPU seconds of a refresh."""
    text, _ = _scraped(url, clock)
    for passed in range(_REFRESHES + 1):
        text = _awaited(process, url, _after(_refresh_count(text)), clock)
        if not passed:
            spent = CpuUsage({"exporter": lambda: (process.pid,)})
    return spent.seconds()["exporter"] / _REFRESHES


def _after(refreshes: float) -> Callable[[str], bool]:
    return lambda text: _refresh_count(text) > refreshes


def _refresh_count(text: str) -> float:
    return _value(text, "fleet_exporter_refreshes_total", 'result="complete"')


def _awaited(
    process: "subprocess.Popen[str]", url: str, there: Callable[[str], bool], clock: Clock
) -> str:
    """The metrics, once they are as wanted."""
    began = clock.monotonic()
    while not there(text := _scraped(url, clock)[0]):
        if clock.monotonic() - began > 120 or process.poll() is not None:
            raise FleetError(f"the exporter at {url} does not have all groups from the log")
        clock.sleep(_SCRAPE_EVERY)
    return text


@contextmanager
def _exporter(
    home: Path, bootstrap: str, *, every: str
) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    config = home / "fleet.yaml"
    spec = {
        "cluster": {"name": "bench", "bootstrap_servers": bootstrap},
        "exporter": {"interval": every, "listen": "127.0.0.1:0"},
    }
    write_whole(config, yaml.safe_dump(spec))
    process = subprocess.Popen(
        [sys.executable, "-m", "fleet", "--config", str(config), "exporter"],
        env={**os.environ, "FLEET_HOME": str(home)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline())
        if found is None:
            raise FleetError(f"the exporter did not start: {process.stderr.read()}")
        yield process, found[0]
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()


def _scraped(url: str, clock: Clock) -> tuple[str, float]:
    asked = urllib.request.Request(url)  # noqa: S310 - our own address
    began = clock.monotonic()
    with urllib.request.urlopen(asked, timeout=30) as answer:  # noqa: S310
        text = answer.read()
    return text.decode(), clock.monotonic() - began


def _by_log(text: str, groups: int) -> bool:
    return (
        _value(text, "fleet_exporter_reads_offsets_topic") == 1.0
        and _value(text, "fleet_exporter_groups") == groups
    )


def _value(text: str, name: str, label: str = "") -> float:
    """The value of the first sample of that name with that label; -1 where there is none."""
    found = re.search(rf"^{name}\{{[^}}]*{label}[^}}]*\}} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else -1.0


@click.command(epilog="Example:  make bench-observe ARGS='--groups 1000'")
@click.option(
    "--groups",
    type=click.IntRange(10, 100_000),
    multiple=True,
    default=(1_000,),
    show_default=True,
    metavar="N",
    help="Number of groups; repeatable.",
)
@number_option("--partitions", 48, "Number of partitions with a commit, in each group.", 1, 1_000)
@number_option("--seconds", 15.0, "Seconds of scraping for each number of groups.", 2, 3600)
def observe(*, groups: tuple[int, ...], partitions: int, seconds: float) -> None:
    """Look at thousands of groups, beside the AdminClient's ways.

    A real `fleet exporter` refreshes every second groups with 48 committed partitions each, 20 of
    them with a member, and is scraped twice a second. Goals for 1,000 groups, and in proportion
    for more: state, offsets and lag of all at most 0.5 s (p95 of its refreshes), /metrics at most
    0.2 s (the longest scrape); its memory at most 90 MB, and 40 MB more for each further thousand.
    Beside it: describe all, then offsets one group at a time; and the same with all calls in
    flight. About two and a half minutes.
    """
    clock = SystemClock()
    home = homes(fleet_home()) / f"observe-{int(clock.now())}"
    options = ObserveOptions(
        groups=tuple(sorted(set(groups))), partitions=partitions, seconds=seconds
    )
    with running("observe") as (say, ending):
        result = run(options, home=home, clock=clock, say=say, ending=ending)
    tell("observe", [result])
