"""`fleet history sync --follow` follows, beside a second job too, and ends cleanly; polling."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.act import spark_server
from fleet.history.tables import Tables
from fleet.model.rebalances import Cause, TimeSource
from tests.support.json_contract import documented
from tests.support.waiting import until

pytestmark = [pytest.mark.broker]
ROOT = Path(__file__).parents[2]


class Scene:
    """A home with a fleet.yaml, and one group that may have a member."""

    def __init__(self, home, bootstrap, unique):
        self.home = home
        self.bootstrap = bootstrap
        self.group = f"tailed-{unique}"
        self.topic = f"topic-{unique}"
        (home / "fleet.yaml").write_text(
            f'cluster: {{name: main, bootstrap_servers: "{bootstrap}"}}\n'
            f"history: {{batch_interval: 1s, groups: {{allow: [{self.group}]}}}}\n"
        )
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(self.topic, 1, 1)])[self.topic].result(120)
        self.producer = Producer({"bootstrap.servers": bootstrap})
        self.write()

    def write(self):
        """One more record."""
        self.producer.produce(self.topic, b"x")
        self.producer.flush(120)

    @property
    def tables(self):
        """What is recorded."""
        return Tables(self.home / "home" / "history")

    def command(self, *arguments):
        """`fleet history …` as a process."""
        return subprocess.Popen(
            [sys.executable, "-m", "fleet", "history", *arguments],
            env={
                **os.environ,
                "FLEET_CONFIG": str(self.home / "fleet.yaml"),
                "FLEET_HOME": str(self.home / "home"),
                "PYTHONPATH": str(ROOT),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def told(self, *arguments):
        """Its JSON."""
        out, err = self.command(*arguments, "-o", "json").communicate(timeout=300)
        assert out, err
        return json.loads(out)

    def rebalances(self):
        """Members after each of its group's; the broker has other groups, of other tests."""
        return [each.members for each in self.tables.rebalances(group=self.group)]

    def lag(self):
        """Rows of the group, in order of time."""
        found = self.tables.read("lag", ds.field("group_id") == self.group)
        return found.sort_by("sampled_at").to_pylist()

    def member(self):
        """A consumer that has committed a record; close it."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([self.topic])

        def committed():
            message = consumer.poll(0.5)
            if message is None or message.error() is not None:
                return False
            consumer.commit(message=message, asynchronous=False)
            return True

        until(committed, "a record")
        return consumer


@pytest.fixture
def scene(broker, tmp_path, unique):
    """One of its own."""
    return Scene(tmp_path, broker.bootstrap_servers, unique)


@pytest.mark.spark
def test_a_tail_follows_and_ends_cleanly(scene, spark_home, monkeypatch):
    """Rows appear by themselves; a second job doubles none; SIGTERM is exit 0."""
    monkeypatch.setenv(spark_server.TOKEN_ENV, spark_server.token(spark_home))
    url = spark_server.connect_url(spark_home)
    scene.member().close()
    tail = scene.command("sync", "--follow", "--spark", url)
    try:
        until(lambda: scene.rebalances() == [1, 0], "both rebalances")
        scene.write()
        consumer = scene.member()
        second = scene.command("sync", "--spark", url)
        _, said = second.communicate(timeout=300)
        # It committed between two batches of the tail, or found that the tail had.
        assert second.returncode == 0 or f"(process {tail.pid} on" in said, said
        until(lambda: scene.rebalances() == [1, 0, 1], "the third rebalance")
        until(lambda: scene.lag()[-1]["committed"] == 2, "lag")
        consumer.close()
        tail.send_signal(signal.SIGTERM)
        _, said = tail.communicate(timeout=300)
        assert tail.returncode == 0, said
        assert "the tables hold everything up to the last batch" in said
    finally:
        tail.kill()
    assert scene.told("status").keys() == documented("fleet history status -o json").keys()
    *_, row = scene.lag()
    assert (row["committed"], row["records"], row["known"]) == (2, 0, "commits")
    commits = scene.tables.read("commits").to_pylist()
    assert sum(row["commits"] for row in commits if row["group_id"] == scene.group) == 2


def test_polling_records_what_two_looks_differ_in(scene):
    """Without Spark and without the offsets topic; marked so."""
    first = scene.told("sync", "--polled")
    assert (first["source"], first["positions"]) == ("polling", [])
    consumer = scene.member()
    scene.told("sync", "--polled")
    consumer.close()
    again = scene.told("sync", "--polled")
    assert again.keys() == documented("fleet history sync -o json").keys()
    found = scene.tables.rebalances(group=scene.group)
    assert [(r.cause, r.end_source, r.number) for r in found][-1:] == [
        (Cause.REMOVAL, TimeSource.POLLED, -1)
    ]
    assert [row["known"] for row in scene.lag()][:1] == ["polled"]
