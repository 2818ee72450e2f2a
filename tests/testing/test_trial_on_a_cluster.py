"""`fleet test` on records of a real broker: it sees them, and the cluster does not see it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.act import spark_server
from fleet.worker.pod_environment import SPARK_TOKEN
from tests.support.brokers import RunningBroker, running_broker
from tests.support.command import process
from tests.support.commits import commit_groups
from tests.support.kafka_tools import consumer_group_command, dump_records
from tests.support.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.spark]

JOB = """
def process(df, context):
    assert context.trial
    return df.selectExpr("partition", "offset", "cast(value AS STRING) AS value")
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """Its own: on the session's, other tests make groups and delete them meanwhile."""
    with running_broker(tmp_path / "kafka") as made:
        yield made


def test_it_reads_without_joining_or_committing(broker, spark_home, unique, tmp_path: Path):
    """The last records, and those named; groups and `__consumer_offsets` are as they were."""
    known, unknown, topic = f"known-{unique}", f"unknown-{unique}", f"trial-{unique}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(120)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(20):
        producer.produce(topic, f"v{number}".encode(), partition=number % 2)
    assert producer.flush(120) == 0
    commit_groups(admin, [known], [TopicPartition(topic, 0, 3)])
    until(lambda: _recorded(broker, known), "the commit")
    (tmp_path / "trial_job.py").write_text(JOB)
    worker = {
        "entrypoint": "trial_job:process",
        "python_path": [str(tmp_path)],
        "spark": spark_server.connect_url(spark_home),
    }
    spec = {
        "cluster": {"name": "main", "bootstrap_servers": broker.bootstrap_servers},
        "fleets": [{"group": g, "topics": [topic], "worker": worker} for g in (known, unknown)],
    }
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(spec))
    before = (_recorded(broker, known, unknown), _groups(broker))

    def tried(*arguments: str) -> dict[str, Any]:
        """What `fleet test` answers."""
        login = {SPARK_TOKEN: spark_server.token(spark_home) or ""}
        config = ("--config", str(tmp_path / "fleet.yaml"), "-o", "json")
        done = process("test", *arguments, *config, home=tmp_path / "home", **login)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    named = tried(known, "--offsets", f"{topic}:0:2-4")
    assert named["ok"]
    assert [row["offset"] for row in named["rows"]] == [2, 3, 4]
    assert [row["value"] for row in named["rows"]] == ["v4", "v6", "v8"]
    last = tried(unknown, "--sample", "4")
    assert sorted((row["partition"], row["offset"]) for row in last["rows"]) == [
        *((0, 8), (0, 9)),
        *((1, 8), (1, 9)),
    ]
    assert (_recorded(broker, known, unknown), _groups(broker)) == before
    assert unknown not in before[1]


def _recorded(broker, *groups: str) -> list[str]:
    """By DumpLogSegments [33]: each record about these groups."""
    return [str(record) for record in dump_records(broker.broker, groups)]


def _groups(broker) -> set[str]:
    """By Kafka's own tool."""
    return {row["GROUP"] for row in consumer_group_command(broker.broker, "--list")}
