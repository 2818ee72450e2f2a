"""A workshop whose workers are pods: its journal is a topic, since a pod's files go with it."""

import json
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.demo.coverage import JournalEntry
from fleet.slots.codec import from_json
from tests.support.workshop import Workshop, until

JOB = '''"""A test's entrypoint: journal first (a topic, acks=all), then a little Spark."""
import json, os, time
from confluent_kafka import Producer

VERSION = 1
PRODUCER = Producer({"bootstrap.servers": os.environ["JOURNAL_BOOTSTRAP"], "acks": "all",
                     "linger.ms": 0})


def write_journal(df, context):
    got = {}  # the numbers in the rows of each partition, as they are: pods may be of any release
    rows = df.selectExpr("topic", "partition", "cast(value AS STRING) AS seq").toArrow()
    for topic, partition, seq in zip(*(column.to_pylist() for column in rows.columns)):
        got.setdefault((topic, partition), []).append([int(seq), 1, 1])
    if context.warm:
        return
    told = {(r.topic, r.partition): (r.start, r.end - 1) for r in context.ranges}
    for place in {**told, **got}:
        first, last = told.get(place, (0, -1))
        PRODUCER.produce(os.environ["JOURNAL_TOPIC"], json.dumps({
            "group": context.group, "tp": {"topic": place[0], "partition": place[1]},
            "first": first, "last": last, "rows": got.get(place, []), "worker": context.worker,
            "attempt": context.attempt, "revision": context.revision, "at": time.time()}))
    assert PRODUCER.flush(120) == 0


def process(df, context):
    write_journal(df, context)
    df.selectExpr("count(*) AS n").collect()
'''


class PodShop(Workshop):
    """One fleet in a namespace of its own."""

    def __init__(
        self, home: Path, bootstrap: str, group: str, *, runtime: dict[str, Any], **worker: Any
    ) -> None:
        self.runtime = {"kind": "kubernetes", **runtime}
        self.journal_topic = f"{group}-journal"
        super().__init__(home, bootstrap, group, **worker)
        self.write_code(JOB)
        document: dict[str, Any] = {
            "env": {"JOURNAL_BOOTSTRAP": bootstrap, "JOURNAL_TOPIC": self.journal_topic},
            "batch": {"max_wait": "2400ms"},
        }
        if worker.get("protocol") != "consumer":  # whose heartbeat is the broker's
            document["heartbeat_interval"] = "1s"
        self.declare(worker=document, runtime=self.runtime)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(self.journal_topic, 1, 1)])[self.journal_topic].result(120)

    @property
    def namespace(self) -> str:
        """Where its pods are."""
        return str(self.runtime["namespace"])

    def entries(self) -> list[JournalEntry]:
        """The journal, whole, in the order in which it was written."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "journal-reader"})
        place = TopicPartition(self.journal_topic, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=10)
        consumer.assign([TopicPartition(self.journal_topic, 0, 0)])
        found: list[JournalEntry] = []
        try:
            while len(found) < end:
                for message in consumer.consume(1000, timeout=10.0):
                    assert message.error() is None, message.error()
                    found.append(from_json(JournalEntry, json.loads(message.value())))
        finally:
            consumer.close()
        return found

    def spec(self) -> dict[str, Any]:
        """What fleet.yaml says of the group."""
        return dict(yaml.safe_load(self.config.read_text())["fleets"][0])

    def rest(self, pods: int) -> None:
        """Wait until so many pods run, and none is on its way out."""
        with self.fleet() as fleet:
            until(
                lambda: (
                    len(found := fleet.workers(self.group)) == pods
                    and all(w.wanted and w.running for w in found)
                ),
                60,
                f"{pods} pods to run",
            )
