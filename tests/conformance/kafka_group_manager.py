"""Kafka's own group coordinator, played scenarios on simulated time.

Problem: what a coordinator does is exactly what Kafka's `GroupMetadataManager` and
`OffsetMetadataManager` do, and no document says all of it. Choice: those classes run in one JVM,
from the jars of the embedded broker (4.3.1) and no others: `kafka/*.java` builds the
`GroupCoordinatorShard` that a broker has per partition of `__consumer_offsets`, gives it a clock
that stands, timers that go off when told to, a log to write to and load from, and member ids made
from a seed. Janino, which is among PySpark's jars, compiles it. Cost: 1 s of CPU to compile once
per version of these sources, 1.5 s to start a JVM; Janino wants casts where javac does not.

Not in it: the broker's service in front of the shard, which refuses an empty group id and a
session timeout out of bounds, and its runtime, which writes records asynchronously (an event's
`append` stands for that).

    with KafkaGroupManager() as kafka:
        (steps,) = kafka.play([Scenario(seed=1, events=(request(JoinGroupRequest("g")),
                                                        advance(3_000)))])
        steps[0].answers[0].body["memberId"]

Every step tells what one event did: answers by the number of the event that asked (a JoinGroup is
answered when others have joined), timers that went off, records in the order written, and what
every group and timer looks like then.
"""

import hashlib
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fleet.broker.jars import Kafka, find_kafka
from fleet.sim.coordinator.requests import Client, GroupRecord
from fleet.system.home import cache_home, locked
from tests.conformance.kafka_json import api_of, as_json
from tests.support import janino

SOURCES = Path(__file__).parent / "kafka"
_MAIN = "org.apache.kafka.coordinator.group.Harness"
_AHEAD = 64
"""Scenarios that the JVM is given before their results are taken."""

Event = Mapping[str, Any]


def request(
    message: Any, *, client: Client | None = None, append: str = "ok", body: Any = None
) -> Event:
    """A request of `fleet.sim.coordinator.requests`, or with `body` Kafka's JSON of one.

    `append`: what becomes of the records that it writes. "ok": durable at once; "later": not
    before the event `append`; a name of Kafka's errors (NOT_ENOUGH_REPLICAS): the write fails.
    """
    name = message if isinstance(message, str) else api_of(message)
    event: dict[str, Any] = {"op": name, "body": as_json(message) if body is None else body}
    if not isinstance(message, str) and "version" in message._fields:
        event["version"] = message.version
    if client is not None:
        event |= {"client": client.client_id, "host": client.host}
    return event | ({"append": append} if append != "ok" else {})


def advance(milliseconds: int) -> Event:
    """Time goes on; every timer goes off at its own moment."""
    return {"op": "advance", "ms": milliseconds}


def append(error: str = "") -> Event:
    """The records that have been waiting longest are durable, or their write has failed."""
    return {"op": "append", "error": error}


def failover(*, kept: bool = False) -> Event:
    """Another broker loads the log; `kept`: with the records that were not durable yet."""
    return {"op": "failover", "kept": kept}


def topics(all_topics: Mapping[str, tuple[str, int]]) -> Event:
    """The cluster's topics from now on: name → (id, partitions)."""
    return {"op": "topics", "topics": {n: list(t) for n, t in all_topics.items()}}


NO_CLEANUP = {"offsets.retention.check.interval.ms": 10**12}
"""No offset and no empty group expires: the model has none of it."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Events from an empty log on."""

    seed: int
    """Of the member ids that the coordinator makes, see `member_uuids`."""
    events: tuple[Event, ...]
    config: Mapping[str, object] = field(default_factory=dict)
    """Kafka's settings by their names; the others have Kafka's defaults."""
    topics: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    start: int = 0
    """Milliseconds."""


@dataclass(frozen=True)
class Answered:
    """An answer, as Kafka's JSON of it."""

    api: str
    body: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Played:
    """What one event did."""

    at: int
    """The time after it."""
    answers: dict[int, Answered]
    """By the number of the event that asked."""
    fired: tuple[tuple[str, int], ...]
    """Timers that went off, and when."""
    records: tuple[GroupRecord, ...]
    groups: dict[str, dict[str, Any]]
    """All groups as they are then; GroupPicture.java has the words."""
    timers: dict[str, int]
    """Key → deadline of all that are set, in the order in which they were."""
    error: str | None = None
    """The class of an exception that Kafka has no error code for."""


def member_uuids(seed: int) -> Iterator[str]:
    """The UUIDs that the harness makes for a seed, in order; a member id ends with one."""
    return (str(uuid.UUID(bytes=sixteen, version=4)) for sixteen in _sixteens(seed))


def _sixteens(seed: int) -> Iterator[bytes]:
    """SplitMix64, as FixedRandom.java has it."""
    mask = (1 << 64) - 1
    state = seed & mask
    while True:
        made = b""
        for _ in range(2):
            state = (state + 0x9E3779B97F4A7C15) & mask
            z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
            made += (z ^ (z >> 31)).to_bytes(8, "big")
        yield made


class KafkaGroupManager:
    """The JVM; one scenario after the other, each from nothing."""

    def __init__(self) -> None:
        kafka = find_kafka()
        options = ["-XX:+UseSerialGC", "-Xms64m", "-Xmx512m", "-Dlog4j2.level=OFF"]
        classes = _classes(kafka)
        self._process = subprocess.Popen(
            [str(kafka.java), *options, "-cp", f"{classes}{os.pathsep}{kafka.classpath}", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the JVM."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()

    def play(self, scenarios: Iterable[Scenario]) -> Iterator[list[Played]]:
        """The steps of each scenario, in order; some scenarios ahead are played meanwhile.

        Raises RuntimeError where the harness itself is wrong, with Java's stack trace.
        """
        coming = iter(scenarios)
        under_way = 0
        while True:
            for scenario in islice(coming, _AHEAD - under_way):
                self._process.stdin.write(_line(scenario))
                under_way += 1
            self._process.stdin.flush()
            if under_way == 0:
                return
            under_way -= 1
            line = self._lines.get()
            if not line:
                raise RuntimeError("the JVM with Kafka's coordinator has ended")
            yield list(_steps(json.loads(line)))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


def _line(scenario: Scenario) -> str:
    words = {
        "seed": scenario.seed,
        "start": scenario.start,
        "config": dict(scenario.config),
        "topics": {name: list(topic) for name, topic in scenario.topics.items()},
        "events": scenario.events,
    }
    return json.dumps(words, separators=(",", ":")) + "\n"


def _steps(found: list[dict[str, Any]]) -> Iterator[Played]:
    groups: dict[str, dict[str, Any]] = {}
    timers: dict[str, int] = {}
    for step in found:
        if "broken" in step:
            raise RuntimeError(step["broken"])
        if "groups" in step:
            groups = {k: v for k, v in (groups | step["groups"]).items() if v is not None}
        timers = step.get("timers", timers)
        yield Played(
            at=step["at"],
            answers={n: Answered(api, body) for n, api, body in step.get("answers", ())},
            fired=tuple((key, at) for key, at in step.get("fired", ())),
            records=tuple(
                GroupRecord(bytes.fromhex(key), None if value is None else bytes.fromhex(value))
                for key, value in step.get("records", ())
            ),
            groups=groups,
            timers=timers,
            error=step.get("error"),
        )


def _classes(kafka: Kafka) -> Path:
    """The folder with the harness, compiled once per version of its sources."""
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = cache_home() / "coordinator-harness" / digest
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / ".lock"):
        if not folder.exists():
            made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".made-"))
            try:
                _compile(kafka, sources, made)
                made.rename(folder)
            finally:
                shutil.rmtree(made, ignore_errors=True)
    return folder


def _compile(kafka: Kafka, sources: list[Path], into: Path) -> None:
    compiler = next(path for path in sources if path.stem == "CompileHarness")
    others = [str(path) for path in sources if path != compiler]
    run = ["-cp", janino.class_path(kafka.classpath), janino.MAIN]
    done = subprocess.run(
        [str(kafka.java), *run, str(compiler), compiler.stem, str(into), *others],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"Janino refuses the harness:\n{done.stderr}")
