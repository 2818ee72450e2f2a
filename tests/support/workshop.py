"""A fleet for tests: its own home, its own group and topic on a real broker, a steady stream.

The entrypoint is a real file that a test can edit (a new revision) and that keeps the demo's
journal. Every record is a number that is there once, so that lost and twice come from the rows
that calls got, beside what the topic holds.
"""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.clock import SystemClock
from fleet.demo.coverage import coverage
from fleet.demo.held import Held, read_topics
from fleet.demo.journal import JournalEntry, read
from fleet.manager.cycle import Fleet
from fleet.model import TopicPartition
from fleet.slots.sqlite import SqliteStore
from tests.support import waiting
from tests.support.waiting import Answer, sizes, stored

JOB = '''"""A test's entrypoint: its rows into the journal, by one question to Spark."""
import os, time
from fleet.demo.orders import write_journal

VERSION = 1
SEQ = "try_cast(cast(value AS STRING) AS LONG) AS seq"


def process(df, context):
    write_journal(context, df.selectExpr("topic", "partition", SEQ).toArrow())
    time.sleep(float(os.environ.get("JOB_SECONDS", "0")))
'''


class Workshop:
    """One home with one declared group."""

    def __init__(self, home: Path, bootstrap: str, group: str, **worker: Any) -> None:
        self.home = home
        self.bootstrap = bootstrap
        self.group = group
        self.topic = f"{group}-topic"
        self.code = home / "code" / group
        self.module = "job_" + "".join(c if c.isalnum() else "_" for c in group)
        self.config = home / f"{group}.yaml"
        self.journal = home / "journal" / group
        self.said: list[str] = []
        self.partitions = 0
        self.numbers = itertools.count()
        """The next record's: one number, one record, over all streams and topics."""
        self._extra: dict[str, Any] = {}
        self.code.mkdir(parents=True, exist_ok=True)
        self.write_job(JOB)
        self.declare(worker=worker)

    def write_job(self, text: str) -> None:
        """Replace the entrypoint's source."""
        (self.code / f"{self.module}.py").write_text(text)

    def edit_job(self, old: str, new: str) -> None:
        """A real code change: the next plan is a roll."""
        path = self.code / f"{self.module}.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def declare(self, *, worker: Mapping[str, Any] | None = None, **keys: Any) -> None:
        """Write fleet.yaml; keys add to or replace the group's own."""
        self._extra = {**self._extra, **keys}
        mine = {
            "entrypoint": f"{self.module}:process",
            "python_path": [str(self.code)],
            "protocol": "classic",
            "batch": {"max_wait": "1200ms"},
            "env": {"FLEET_JOURNAL": str(self.journal)},
            **(self._extra.pop("_worker", {})),
            **(worker or {}),
        }
        self._extra["_worker"] = mine
        # A group counts as settled a heartbeat and 2 s after it was last seen to move [25].
        soon = {"heartbeat_interval": "1s"} if mine["protocol"] == "classic" else {}
        group = {
            "group": self.group,
            "topics": [self.topic],
            "worker": {**soon, **mine},
            "replicas": {"min": 1, "max": 8, "standby": 1},
            "scaling": {"policy": "fixed", "workers": 2},
            "rollout": {"canary_batches": 1, "bake": "2s", "warm_timeout": "5m"},
            "storm": {"rebalances": 1000},
            "runtime": {"kind": "local", "lease": "5s"},
            **{k: v for k, v in self._extra.items() if k != "_worker"},
        }
        spec = {
            "cluster": {"name": "test", "bootstrap_servers": self.bootstrap},
            "mode": "act",
            "fleets": [group],
        }
        self.config.write_text(yaml.safe_dump(spec))

    def create_topic(self, partitions: int) -> None:
        """Make the group's topic."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        made = admin.create_topics([NewTopic(self.topic, partitions, 1)])
        made[self.topic].result(20)

        def known() -> bool:
            told = admin.list_topics(self.topic, timeout=10).topics[self.topic]
            return told.error is None and len(told.partitions) == partitions

        waiting.until(known, f"topic {self.topic} to be known with its {partitions} partitions")
        self.partitions = partitions

    def create_another(self, name: str, partitions: int) -> str:
        """Make a further topic; its name."""
        topic = f"{self.group}-{name}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(20)
        return topic

    def produce_to(self, topic: str, count: int) -> None:
        """So many records, dealt by their keys."""
        producer = self.producer()
        for number in itertools.islice(self.numbers, count):
            producer.produce(topic, str(number).encode(), key=str(number).encode())
        producer.flush(20)

    @contextmanager
    def fleet(self) -> Iterator[Fleet]:
        """Open the fleet."""
        with Fleet.open(self.config, home=self.home, clock=SystemClock()) as fleet:
            yield fleet

    def moving(self) -> Hashable:
        """What moves while anything of this fleet makes progress."""
        logs = ("supervisor/log", "spark/log", "workers/*.log", "manager*")
        files = [file for pattern in logs for file in self.home.glob(pattern)]
        seen = sizes([*files, *self.journal.glob("*.jsonl")])
        path = self.home / "fleet.db"
        if not path.exists():
            return seen
        with closing(SqliteStore(path, cluster="test", clock=SystemClock())) as store:
            return seen, stored(store, self.group)

    def until(self, condition: Callable[[], Answer], what: str) -> Answer:
        """Wait as long as anything of this fleet moves; the condition's first true answer."""
        return waiting.until(condition, what, progress=self.moving)

    def say(self, sentence: str) -> None:
        """Progress, kept for a failing test's output."""
        self.said.append(sentence)
        print(f"{time.strftime('%H:%M:%S')} {sentence}", flush=True)

    @contextmanager
    def stream(self, rate: int = 200) -> Iterator[None]:
        """Numbered records at a steady rate, over all partitions in turn."""
        stop = threading.Event()
        thread = threading.Thread(target=self._produce, args=(stop, rate))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def client(self) -> dict[str, Any]:
        """How a client of the test's own reaches the broker."""
        return {"bootstrap.servers": self.bootstrap}

    def producer(self) -> Producer:
        """One that writes no record twice, whatever happens to the broker."""
        return Producer({**self.client(), "enable.idempotence": True})

    def _produce(self, stop: threading.Event, rate: int) -> None:
        producer = self.producer()
        while not stop.wait(0.2):
            for number in itertools.islice(self.numbers, max(1, rate // 5)):
                producer.produce(
                    self.topic, str(number).encode(), partition=number % self.partitions
                )
            producer.poll(0)
        producer.flush(20)

    def entries(self) -> list[JournalEntry]:
        """The journal."""
        return list(read(self.journal))

    def ends(self) -> dict[TopicPartition, int]:
        """Log end offsets of the topic."""
        with self.fleet() as fleet:
            seen = fleet.snapshot([self.group]).groups[self.group]
        return {p.tp: p.log_end for p in seen.partitions if p.log_end is not None}

    def await_drained(self) -> None:
        """Wait until every partition's committed offset is its end."""
        with self.fleet() as fleet:
            self.until(lambda: self._lag(fleet) == 0, f"lag 0 of {self.group}")

    def _lag(self, fleet: Fleet) -> int:
        seen = fleet.snapshot([self.group]).groups[self.group]
        return sum(
            (p.log_end or 0) - (p.committed if p.committed is not None else p.log_start or 0)
            for p in seen.partitions
        )

    def lost_and_twice(self) -> tuple[int, int]:
        """(records never processed, records processed more than once), from the rows of calls."""
        due = {tp: (0, end) for tp, end in self.ends().items() if tp.topic == self.topic}
        entries = self.entries()
        held = self.held({self.topic, *(e.tp.topic for e in entries)})
        return coverage(entries, group=self.group, due=due, held=held).lost_and_twice

    def held(self, topics: Iterable[str]) -> Held:
        """What topics hold, read from outside."""
        return read_topics(self.client(), sorted(topics))


def until(what: Callable[[], bool], timeout: float, name: str) -> None:
    """As tests of Kubernetes ask: at least so many seconds."""
    waiting.until(what, name, still=max(timeout, waiting.UNSEEN))


def kill(pid: int) -> None:
    """End it at once, kill -9."""
    os.kill(pid, signal.SIGKILL)
