"""`fleet bench history`: the decoder alone, bare Python consumers, and the history end to end.

Problem: records per second through Spark say nothing without what the same cores can read at all.
Choice: two processes, each a bare `Consumer.consume()` loop over half of the partitions, first as
anybody writes it, then with the fetch options of our source; and the vectorised decoder on
batches in memory, by CPU time on one core. Cost: two million commits are written first.
"""

import multiprocessing
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from fleet.bench.offset_commits import GROUPS, arrays, write
from fleet.bench.owned_home import owned
from fleet.bench.recording_bench import GOAL_RATE, GOAL_RATIO, RecordingResult, record
from fleet.bench.spent import Spent
from fleet.broker import Broker
from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.log.readers.offsets_topic import TOPIC
from fleet.log.record_columns import columns

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


@dataclass(slots=True, kw_only=True)
class HistoryResult:
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

    def goals(self) -> tuple[tuple[str, float | None, bool], ...]:
        """(goal, measured, met)."""
        slowest = min(self.decoder.values(), default=None)
        met = slowest is not None and slowest >= GOAL_DECODER
        rate = None if self.recorded is None else self.recorded.rate
        missing = None if self.recorded is None else float(self.recorded.missing)
        return (
            (f"commits/s of the decoder on one core ≥ {GOAL_DECODER:,}", slowest, met),
            (f"commits/s into tables ≥ {GOAL_RATE:,.0f}", rate, (rate or 0.0) >= GOAL_RATE),
            (
                f"of two bare consumers in the same run ≥ {GOAL_RATIO:g}",
                self.ratio,
                (self.ratio or 0.0) >= GOAL_RATIO,
            ),
            ("commits lost or twice = 0", missing, missing == 0.0),
        )

    @property
    def met(self) -> bool:
        """Every goal is met."""
        return all(met for _, _, met in self.goals())


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
        stack.enter_context(owned(home))
        broker = Broker(home)
        stack.callback(broker.purge)
        stack.callback(ending)
        bootstrap = broker.start().bootstrap_servers

        def pids() -> list[int]:
            return [node.pid for node in broker.status().nodes if node.pid is not None]

        partitions = write(bootstrap, options.commits, groups=options.groups, clock=clock, say=say)
        for way, client in ways(bootstrap).items():
            say(f"two bare consumers, {way}")
            spent = Spent({"broker": pids})
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
