"""kill -9 at any moment of the job loses and doubles no row, against a scan of the topic itself."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.act import spark_server
from fleet.history.tables import TABLES, Tables
from fleet.log.record_columns import LED
from fleet.log.records import OffsetCommit, Tombstone, decode, partition_for
from tests.history.records_made import group_metadata, offset_commit
from tests.history.test_published import endpoint, lake, published, recorded
from tests.support.brokers import running_broker
from tests.support.json_contract import documented, shape
from tests.support.offsets_topic import offsets_partitions
from tests.support.transactions import Transactions, beside

__all__ = ["endpoint", "lake"]
pytestmark = [pytest.mark.broker, pytest.mark.spark]

TOPIC = "__consumer_offsets"
ROOT = Path(__file__).parents[2]

# `fleet history sync` in batches of BATCH offsets, which kills itself where it is told to.
CHILD = """
import functools, os, signal, sys, threading
from fleet import cli
from fleet.manager import history_session as recording
from fleet.history import pipeline, retention, tables

at, times = sys.argv[1], int(sys.argv[2])
recording.Recorder = functools.partial(pipeline.Recorder, batch=int(os.environ["BATCH"]))
calls = 0


def deadly(owner, name, *, before):
    real = getattr(owner, name)

    def wrapped(*args, **kwargs):
        global calls
        calls += 1
        if before and calls == times:
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(*args, **kwargs)
        if not before and calls == times:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(owner, name, wrapped)


if at == "in Spark's job":
    real_digest = recording.ClusterLog.digest

    def digest(*args, **named):
        threading.Timer(0.15, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        return real_digest(*args, **named)

    recording.ClusterLog.digest = digest
elif at == "data written":
    deadly(tables.TablePlace, "missing", before=False)
elif at == "between tables":
    deadly(tables.Writer, "change", before=True)
elif at == "before the state":
    deadly(tables.Writer, "_save", before=True)
elif at == "after the state":
    deadly(tables.Writer, "_save", before=False)
elif at == "taking back":
    deadly(tables.Writer, "_take_back", before=False)
elif at == "clearing away":
    deadly(retention, "cleared", before=True)
sys.exit(cli.run(["history", *sys.argv[3:]]))
"""
KILLS: Final = (
    ("between tables", 4),  # one is the state of new tables
    ("before the state", 2),
)
MORE: Final = (
    ("in Spark's job", 1),
    ("between tables", 2),
    ("taking back", 3),
    ("data written", 1),
    ("before the state", 1),
    ("after the state", 3),
    ("clearing away", 1),
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker of its own: groups of other tests expire while tables and topic are compared."""
    with running_broker(tmp_path_factory.mktemp("broker")) as made:
        yield made


@pytest.fixture
def home(broker, tmp_path, spark_home, monkeypatch):
    """A fleet.yaml of that broker; Spark is the session's shared server, named by its address."""
    monkeypatch.setenv(spark_server.TOKEN_ENV, spark_server.token(spark_home))
    (tmp_path / "fleet.yaml").write_text(
        f'cluster: {{name: main, bootstrap_servers: "{broker.bootstrap_servers}"}}\n'
        "history: {commit_interval: 1s}\n"
    )
    return tmp_path


def run(home, url, at="nowhere", times=0, *, batch=4_000, path=None, arguments=("sync",)):
    """The command in a process of its own; its exit code and output."""
    config = home / "fleet.yaml"
    if path is not None:
        text = config.read_text()
        config = home / "other.yaml"
        config.write_text(text.replace("history: {", f"history: {{path: {path}, "))
    return subprocess.run(
        [sys.executable, "-c", CHILD, at, str(times), *arguments, "--spark", url, "-o", "json"],
        env={
            **os.environ,
            "FLEET_CONFIG": str(config),
            "FLEET_HOME": str(home / "home"),
            "BATCH": str(batch),
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def fill(bootstrap, unique, *, generations, commits):
    """Records as a coordinator writes them: three groups, one rebalance after the other."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "__admin_client"})
    count = offsets_partitions(bootstrap)
    at = int(time.time() * 1000) - 600_000
    for generation in range(1, generations + 1):
        for name in ("a", "b", "c"):
            group = f"{name}-{unique}"
            members = [f"{group}-{n}" for n in range(1 + generation % 3)]
            key, value = group_metadata(group, generation, members, at)
            where = partition_for(group, count)
            producer.produce(TOPIC, value, key, partition=where, timestamp=at)
            for number in range(commits):
                at += 7
                key, value = offset_commit(group, number % 4, generation * commits + number, at)
                producer.produce(TOPIC, value, key, partition=where, timestamp=at)
            producer.flush(120)


def scan(bootstrap, isolation="read_committed"):
    """Every record of the topic, by a plain consumer: commits by partition, the others' places."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "scan",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    partitions = consumer.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
    consumer.assign([TopicPartition(TOPIC, p, OFFSET_BEGINNING) for p in partitions])
    commits, last, events, left = Counter(), {}, [], set(partitions)
    while left:
        for message in consumer.consume(5000, 1.0):
            if message.error() is not None:
                left.discard(message.partition())
                continue
            made = decode(message.key(), message.value(), offset=message.offset(), timestamp=0)
            if isinstance(made, OffsetCommit):
                key = (made.group, made.tp.topic, made.tp.partition)
                commits[key] += 1
                last[key] = made.committed
            elif isinstance(made, Tombstone) and made.type <= 1:
                key = (made.group, *made.key)
                commits[key] += 1
                last[key] = None
            else:
                events.append((message.partition(), message.offset()))
    consumer.close()
    return commits, last, sorted(events)


def held(tables):
    """The same, by the tables."""
    commits, last = Counter(), {}
    for row in tables.read("commits").sort_by("log_offset").to_pylist():
        key = (row["group_id"], row["topic"], row["topic_partition"])
        commits[key] += row["commits"]
        last[key] = row["committed"]
    events = tables.read("events", columns=["log_partition", "log_offset", "type"]).to_pylist()
    records = [row for row in events if row["type"] != LED]
    return commits, last, sorted((row["log_partition"], row["log_offset"]) for row in records)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(KILLS, id="where most is at stake"),
        pytest.param(KILLS + MORE, id="everywhere", marks=pytest.mark.long),
    ],
)
def test_killed_at_any_step_no_row_is_lost_or_twice(broker, home, unique, spark_home, kills):
    """Records come in between; in the end tables equal the topic, and one quiet run's."""
    config = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(config)
    admin.create_topics([NewTopic(unique, 3, 1)])[unique].result(120)
    open_ = [Transactions(config, beside(f"{name}-{unique}")) for name in "ab"]
    for each in open_:
        each.begin([TopicPartition(unique, number, 5) for number in range(3)])
    fill(broker.bootstrap_servers, unique, generations=6, commits=200)
    url = spark_server.connect_url(spark_home)
    for number, (at, times) in enumerate(kills):
        done = run(home, url, at, times, batch=1_000)  # so that some is left for the next
        assert done.returncode == -9, (at, done.returncode, done.stderr)
        tables = Tables(home / "home" / "history")
        commits, _, events = held(tables)
        real, _, every = scan(broker.bootstrap_servers, "read_uncommitted")
        assert all(commits[key] <= real[key] for key in commits), f"twice after {at}"
        assert len(set(events)) == len(events)
        assert set(events) <= set(every)
        if number % 3 == 1:
            fill(broker.bootstrap_servers, f"{unique}-{number}", generations=3, commits=100)
            while open_:
                open_.pop().end(committed=not open_)
    quiet, answers = home / "quiet", []
    for _ in range(5):  # a coordinator that loaded these records removes their members meanwhile
        done = run(home, url)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        done = run(home, url, batch=1_000_000, path=quiet)
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
        whole = scan(broker.bootstrap_servers)
        if answers[-1]["positions"] == found["positions"] and held(tables) == whole:
            break
    assert held(tables) == whole
    assert held(Tables(quiet)) == held(tables)
    assert Tables(quiet).rebalances() == tables.rebalances()
    mine = f"a-{unique}"
    # A coordinator that loaded these records removes the members later: a seventh.
    assert [r.number for r in tables.rebalances(group=mine)][:6] == [1, 2, 3, 4, 5, 6]
    assert Tables(quiet).memberships(group=mine) == tables.memberships(group=mine)
    assert answers[-1]["positions"] == found["positions"]
    assert shape(answers[0]) == shape(documented("fleet history sync -o json"))
    again = json.loads(run(home, url).stdout)
    assert (again["batches"], again["offsets"]) == (0, 0)
    kept = held(tables), tables.rebalances()
    compacted = subprocess.run(
        [sys.executable, "-m", "fleet", "history", "compact"],
        env={
            **os.environ,
            "FLEET_CONFIG": str(home / "fleet.yaml"),
            "FLEET_HOME": str(home / "home"),
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert compacted.returncode == 0, compacted.stderr
    assert (held(tables), tables.rebalances()) == kept
    path = home / "home" / "history"
    for name in TABLES:
        assert published(path, name) == recorded(path, name), name
        by_day = Counter(file.day for file in tables.files(tables.state(), name))
        assert set(by_day.values()) <= {1}


def test_killed_in_an_object_store_no_row_is_lost_or_twice(broker, home, unique, lake):
    """Spark's tasks write there, too."""
    fill(broker.bootstrap_servers, unique, generations=3, commits=200)
    for at, times in KILLS:
        done = run(home, "local[2]", at, times, batch=1_000, path=lake)
        assert done.returncode == -9, (at, done.returncode, done.stderr)
    for _ in range(5):  # a coordinator that loaded these records removes their members meanwhile
        done = run(home, "local[2]", path=lake)
        assert done.returncode == 0, done.stderr
        if held(Tables(lake)) == scan(broker.bootstrap_servers):
            break
    assert held(Tables(lake)) == scan(broker.bootstrap_servers)
    for name in TABLES:
        assert published(lake, name) == recorded(lake, name), name
