"""Real workers on a real broker and one real Spark Connect server, driven through the store."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.clock import SystemClock
from fleet.config.spec import ClusterSpec
from fleet.demo.coverage import read_topics
from fleet.model import TopicPartition
from fleet.slots import Handover, Phase, Slot, SlotTargets
from fleet.slots.sqlite import SqliteStore
from fleet.slots.store import Store
from tests.conftest import RunningBroker
from tests.support.declared import group_spec, settings_of
from tests.support.memory_kafka import MemoryKafka
from tests.support.waiting import sizes, stored, until

if TYPE_CHECKING:
    from tests.worker.rig import Drive

LEASE = 3.0
SESSION = 30.0
"""Seconds: a KIP-848 group has more."""
JOB = """
import json, os, time


def write_journal(df, context):
    got = df.select("key", "value").toArrow()
    rows = [int(key) for key in got["key"].to_pylist() if key is not None]
    ranges = [(r.topic, r.partition, r.start, r.end, r.id) for r in context.ranges]
    line = {"at": time.time(), "worker": context.worker, "attempt": context.attempt,
            "ranges": ranges, "rows": rows}
    handle = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, (json.dumps(line) + "\\n").encode())  # whole, whoever else writes
    os.close(handle)
    return got["value"].to_pylist()


def process(df, context):
    if context.warm:
        return
    if b"poison" in write_journal(df, context):
        raise ValueError("poison")
    time.sleep(float(os.environ.get("SECONDS_EACH", "0")))
    if os.environ.get("PARQUET"):
        from fleet.sinks import write_parquet
        write_parquet(df.select("topic", "partition", "offset"), os.environ["PARQUET"], context)
"""
"""A test's own job may write the same journal: `from worker_job import write_journal`."""


class Group:
    """One group with its topic, its store, and worker processes that a test starts and ends.

    `cluster`: as fleet.yaml declares it to the workers; `client`: how the test itself gets in.
    """

    def __init__(
        self,
        home: Path,
        bootstrap: str,
        name: str,
        folder: Path,
        *,
        cluster: ClusterSpec | None = None,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.topic = f"{name}-topic"
        self.partitions = 4
        self.folder = folder
        self.store: Store = SqliteStore(home / "fleet.db", cluster="main", clock=SystemClock())
        self.cluster = cluster or ClusterSpec(bootstrap_servers=bootstrap)
        self.client = dict(client or {"bootstrap.servers": bootstrap})
        self.admin = AdminClient(self.client)
        self.produced: Counter[int] = Counter()
        self._numbers = itertools.count()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.home = home
        self.bootstrap = bootstrap
        self._producer = Producer({**self.client, "linger.ms": 5, "enable.idempotence": True})
        made = self.admin.create_topics([NewTopic(self.topic, self.partitions, 1)])
        made[self.topic].result(120)
        (folder / "worker_job.py").write_text(JOB)

    def start(
        self,
        name: str,
        *,
        revision: str = "r1",
        env: dict[str, str] | None = None,
        lease: float = LEASE,
        topics: Sequence[str] = (),
        **settings_of_worker: Any,
    ) -> None:
        """Start a worker process; keys of its `worker` section replace the ones here."""
        worker: dict[str, Any] = {
            "entrypoint": "worker_job:process",
            "python_path": [str(self.folder)],
            "session_timeout": f"{SESSION:g}s",
            "env": {
                "JOURNAL": str(self.folder / "journal"),
                "FLEET_EVENTS": str(self.folder / "events"),
                **(env or {}),
            },
            **settings_of_worker,
        }
        if worker.get("protocol") == "consumer":
            del worker["session_timeout"]  # the group's own, under KIP-848
        spec = group_spec(
            self.name,
            worker=worker,
            topics=list(topics) or [self.topic],
            rollout={"drain_timeout": "9s"},
            **self.place(lease),
        )
        settings = settings_of(
            spec, revision=revision, bootstrap=self.bootstrap, cluster=self.cluster
        )
        path = self.folder / f"{name}.json"
        path.write_text(settings.model_dump_json())
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "fleet.worker", "--settings", path, "--name", name],
                env={**os.environ, **self.environment(name)},
                stdout=log,
                stderr=log,
            )

    def place(self, lease: float) -> dict[str, Any]:
        """Where workers run and keep their slots, as fleet.yaml says it of the group."""
        return {"runtime": {"kind": "local", "lease": lease}}

    def environment(self, name: str) -> dict[str, str]:
        """What a worker's environment has beside ours."""
        del name
        return {"FLEET_HOME": str(self.home)}

    def standbys(self, *names: str, **how: Any) -> None:
        """Start these, all alike, and wait until they are warm."""
        for name in names:
            self.start(name, **how)
        self.warm(*names)

    def warm(self, *names: str) -> None:
        """Wait until these are standbys."""
        self.until(
            lambda: (
                {r.worker for r in self.store.reports(self.name) if r.phase == "standby"}
                >= set(names)
            ),
            f"{names} to be warm",
        )

    def make(self, topic: str, partitions: int) -> None:
        """Create a topic; one of that name that is being deleted is waited for."""

        def made() -> bool:
            try:
                self.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(120)
            except KafkaException as error:
                if error.args[0].code() != 36:  # it exists
                    raise
                return False
            return True

        self.until(made, f"topic {topic} to be made")

    def produce(self, count: int, value: bytes = b"x", partition: int | None = None) -> None:
        """Records over all partitions in turn, or to one; a record's key is its number."""
        for place, number in enumerate(itertools.islice(self._numbers, count)):
            to = place % self.partitions if partition is None else partition
            self._producer.produce(self.topic, value, key=str(number).encode(), partition=to)
            self.produced[to] += 1
        self._producer.flush(120)

    def journal(self) -> list[dict[str, Any]]:
        """What the entrypoint was called with, in order."""
        return _lines(self.folder / "journal")

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What workers told of one kind, in order."""
        return [e for e in _lines(self.folder / "events") if e["event"] == kind]

    def times_called(self) -> Counter[tuple[int, int]]:
        """(partition, offset) → how often the entrypoint got the record's row.

        By the numbers in the rows and an outside reader of the topic; a row whose record is no
        more is (-1, its number).
        """
        got = Counter(number for line in self.journal() for number in line["rows"])
        held = {number: (tp.partition, at) for number, (tp, at) in self.held().items()}
        return Counter({held.get(number, (-1, number)): n for number, n in got.items()})

    def held(self) -> dict[int, tuple[TopicPartition, int]]:
        """Number → place of each record that the topic holds."""
        held = read_topics(self.client, [self.topic], number=_in_key)
        return {
            number: (held.partitions[held.place[at]], int(held.offset[at]))
            for number, at in zip(held.numbers.tolist(), held.order.tolist(), strict=True)
        }

    def all_committed(self) -> bool:
        """Whether every record produced is committed."""
        latest: dict[str, int] = {}
        for event in self.events("committed"):
            latest.update(event["offsets"])
        return all(latest.get(f"{self.topic}-{p}") == n for p, n in self.produced.items())

    def drained(self) -> None:
        """Wait until every record produced is committed."""
        self.until(self.all_committed, "all records to be committed")

    def slot(self, number: int) -> Slot:
        """A slot as stored."""
        return self.store.slots(self.name)[number]

    def change_targets(self, change: Callable[[SlotTargets], SlotTargets]) -> None:
        """Compare-and-set until it is written."""
        while self.store.write_targets(change(self.store.targets(self.name))) is None:
            pass

    def open(self, *numbers: int, phase: Phase = Phase.ACTIVE) -> None:
        """Open slots together and wait until all are active: after a commit or an empty poll."""
        self.change_targets(
            lambda targets: replace(
                targets, open=targets.open | set(numbers), open_at=time.time() + 1.5
            )
        )
        self.until(lambda: all(self.slot(n).phase is phase for n in numbers), f"slots {numbers}")

    def hand_over(self, number: int, revision: str) -> None:
        """Ask for a handover and wait until it is done."""
        pin = Handover(token=self.slot(number).token, revision=revision)
        self.change_targets(lambda targets: replace(targets, handover={number: pin}))
        self.until(
            lambda: (
                self.slot(number).revision == revision and self.slot(number).phase is Phase.ACTIVE
            ),
            f"slot {number} to run {revision}",
        )
        self.change_targets(lambda targets: replace(targets, handover={}))

    def moving(self) -> Hashable:
        """What moves while anything of this group makes progress."""
        written = [self.folder / "journal", self.folder / "events", *self.folder.glob("*.log")]
        return stored(self.store, self.name), sizes(written)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait while anything moves; a failure shows what the workers said."""
        until(condition, what, progress=self.moving, every=0.05, picture=self.logs)

    def logs(self) -> str:
        """The end of every worker's log."""
        return "\n".join(
            f"--- {name}\n{(self.folder / f'{name}.log').read_text()[-1500:]}"
            for name in self.processes
        )

    def end(self, names: Sequence[str] = ()) -> dict[str, int]:
        """SIGTERM to these (or all) and their exit codes."""
        chosen = {n: p for n, p in self.processes.items() if not names or n in names}
        for process in chosen.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        codes = {}
        for name, process in chosen.items():
            try:
                codes[name] = process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = process.wait(10)
        return codes


def _in_key(message: Message) -> int | None:
    key = message.key()
    return None if key is None else int(key)


def _lines(path: Path) -> list[dict[str, Any]]:
    """Whole ones: the last may be in the writing."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")]  # fmt: skip


@pytest.fixture
def kafka() -> MemoryKafka:
    """A cluster in memory: a topic of two partitions with three records in each."""
    made = MemoryKafka()
    made.make("t", 2)
    for number in range(2):
        made.produce(TopicPartition("t", number), b"a", b"b", b"c")
    return made


@pytest.fixture
def drive(kafka: MemoryKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Iterator[Drive]":
    """Starts members of one worker section each, with partitions; ends them."""
    from tests.worker.rig import Driven

    made: list[Driven] = []

    def new(*tps: TopicPartition, joins: bool = True, **worker: Any) -> Driven:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Driven(kafka, folder, monkeypatch, **worker))
        if joins:
            made[-1].member.start()
            kafka.assign(*tps)
        return made[-1]

    yield new
    for each in made:
        each.end()


@pytest.fixture(scope="session")
def mock_broker() -> Iterator[str]:
    """Librdkafka's own mock cluster of one broker: its address; it lives as long as its client."""
    client = AdminClient({"test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = client.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"
    del client


@pytest.fixture
def group(spark_home: Path, broker: RunningBroker, unique: str, tmp_path: Path) -> Iterator[Group]:
    """A group of its own."""
    made = Group(spark_home, broker.bootstrap_servers, f"worker-{unique}", tmp_path)
    try:
        yield made
    finally:
        made.end()
