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
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.ground import Sandbox
from fleet.act.local.local_runtime import find_orphans
from fleet.clock import SystemClock
from fleet.demo.coverage import JournalEntry, TopicRecords, coverage, read, read_topics
from fleet.demo.measure import require_done
from fleet.manager.cycle import Fleet
from fleet.model import TopicPartition
from fleet.slots import Change, Phase
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


class Workshop(Sandbox):
    """One declared group in a home; a home may have several."""

    copies = 1
    """Of each partition that it makes."""

    def __init__(self, home: Path, bootstrap: str, group: str, **worker: Any) -> None:
        module = "job_" + "".join(c if c.isalnum() else "_" for c in group)
        super().__init__(home, module=module, config=f"{group}.yaml")
        self.bootstrap = bootstrap
        self.group = group
        self.topic = f"{group}-topic"
        self.journal = self.journal_of(group)
        self.said: list[str] = []
        self.partitions = 0
        self.numbers = itertools.count()
        """The next record's: one number, one record, over all streams and topics."""
        self._worker: dict[str, Any] = {"protocol": "classic", "batch": {"max_wait": "1200ms"}}
        self._keys: dict[str, Any] = {}
        self.write_code(JOB)
        self.declare(worker={**self.job(group), **worker})

    def edit_job(self, old: str, new: str) -> None:
        """A real code change: the next plan is a roll."""
        text = self.code.read_text()
        assert old in text
        self.write_code(text.replace(old, new))

    def declare(self, *, worker: Mapping[str, Any] | None = None, **keys: Any) -> None:
        """Write fleet.yaml; keys add to or replace the group's own, as was declared before."""
        self._keys.update(keys)
        self._worker.update(worker or {})
        group = {
            "group": self.group,
            "topics": [self.topic],
            "worker": self._worker,
            "replicas": {"min": 1, "max": 8, "standby": 1},
            "scaling": {"policy": "fixed", "workers": 2},
            "rollout": {"canary_batches": 1, "bake": "2s", "warm_timeout": "5m"},
            "storm": {"rebalances": 1000},
            "runtime": {"kind": "local", "lease": "5s"},
            **self._keys,
        }
        self.write_spec({"name": "test", "bootstrap_servers": self.bootstrap}, group)

    def create_topic(self, partitions: int) -> None:
        """Make the group's topic."""
        admin = self._created(self.topic, partitions)

        def known() -> bool:
            topic = admin.list_topics(self.topic, timeout=10).topics[self.topic]
            return topic.error is None and len(topic.partitions) == partitions

        waiting.until(known, f"topic {self.topic} to be known with its {partitions} partitions")
        self.partitions = partitions

    def create_another(self, name: str, partitions: int) -> str:
        """Make a further topic; its name."""
        topic = f"{self.group}-{name}"
        self._created(topic, partitions)
        return topic

    def _created(self, topic: str, partitions: int) -> AdminClient:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(topic, partitions, self.copies)])[topic].result(120)
        return admin

    def produce_to(self, topic: str, count: int) -> None:
        """So many records, dealt by their keys."""
        producer = self.producer()
        for number in itertools.islice(self.numbers, count):
            producer.produce(topic, str(number).encode(), key=str(number).encode())
        producer.flush(120)

    # --- the fleet --------------------------------------------------------------------------

    @contextmanager
    def fleet(self) -> Iterator[Fleet]:
        with Fleet.open(self.config, home=self.home, clock=SystemClock()) as fleet:
            yield fleet

    def apply(self, wanted: int | None = None, *, roll: bool = False) -> Change:
        """Make it so, or so many slots; a change that does not end well raises."""
        with self.fleet() as fleet:
            how = {"wanted": wanted, "roll": roll, "actor": "test", "progress": self.say}
            return require_done(fleet.apply(self.group, **how))

    def all_active(self, count: int) -> bool:
        """So many slots are open, and each is held by a worker that is ready and alive."""
        with self.fleet() as fleet:
            running = {w.name for w in fleet.workers(self.group) if w.running}
            slots = [
                s for s in fleet.slots(self.group) if s.number in fleet.targets(self.group).open
            ]
        owners = [s.owner for s in slots if s.phase is Phase.ACTIVE and s.owner in running]
        return len(slots) == len(owners) == count

    def down(self) -> None:
        """End it; nothing of its home runs then, unless another group's does."""
        with self.fleet() as fleet:
            fleet.down()

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

    # --- the stream and its account ---------------------------------------------------------

    def stream(self, rate: int = 200) -> AbstractContextManager[None]:
        """Numbered records at a steady rate, over the partitions there are now in turn."""
        return waiting.meanwhile(partial(self._produce, rate))

    def client(self) -> dict[str, Any]:
        """How a client of the test's own reaches the broker."""
        return {"bootstrap.servers": self.bootstrap}

    def producer(self) -> Producer:
        """One that writes no record twice, whatever happens to the broker."""
        return Producer({**self.client(), "enable.idempotence": True})

    def _produce(self, rate: int, stop: threading.Event) -> None:
        producer, partitions = self.producer(), self.partitions
        while not stop.wait(0.2):
            for number in itertools.islice(self.numbers, max(1, rate // 5)):
                producer.produce(self.topic, str(number).encode(), partition=number % partitions)
            producer.poll(0)
        producer.flush(120)

    def entries(self) -> list[JournalEntry]:
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

    def lost_and_duplicates(self) -> tuple[int, int]:
        """(records never processed, processed more than once), by the rows of calls, once all
        that was written is committed.
        """
        self.await_drained()
        due = {tp: (0, end) for tp, end in self.ends().items() if tp.topic == self.topic}
        entries = self.entries()
        held = self.held({self.topic, *(e.tp.topic for e in entries)})
        return coverage(entries, group=self.group, due=due, topic_records=held).lost_and_duplicates

    def account(self, group: str | None = None) -> tuple[int, int]:
        """(lost, twice) of all that a group has committed of the topic, whether it works or not."""
        name = group or self.group
        with self.fleet() as fleet:
            seen = fleet.snapshot([name]).groups[name]
        due = {p.tp: (0, p.committed or 0) for p in seen.partitions}
        assert all(end for _, end in due.values()), "every partition was read"
        entries = self.entries()
        found = coverage(entries, group=name, due=due, topic_records=self.held([self.topic]))
        for slip in (*found.lost, *found.duplicates):
            print(slip)
            near = [e for e in entries if e.group == name and e.tp == slip.tp]
            for entry in near:
                if entry.first <= slip.end and entry.last >= slip.first - 1:
                    print(f"  {entry}")
        return found.lost_and_duplicates

    def held(self, topics: Iterable[str]) -> TopicRecords:
        """What topics hold, read from outside."""
        return read_topics(self.client(), sorted(topics))


@contextmanager
def ending(*shops: Workshop) -> Iterator[list[Workshop]]:
    """These, and what is added, are taken down at the end: nothing of their homes runs then."""
    made = list(shops)
    try:
        yield made
    finally:
        for shop in made:
            shop.down()
        assert not [each for shop in made for each in find_orphans(shop.home)]


def until(what: Callable[[], bool], timeout: float, name: str) -> None:
    """As tests of Kubernetes ask: at least so many seconds."""
    waiting.until(what, name, still=max(timeout, waiting.UNSEEN))


def kill(pid: int) -> None:
    """End it at once, kill -9."""
    os.kill(pid, signal.SIGKILL)
