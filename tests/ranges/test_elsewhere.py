"""Ranges on one JVM per worker, on a standalone cluster without Fleet, and of a compacted topic."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.act import spark_server
from fleet.clock import SystemClock
from fleet.kafka_source.failures import TRUNCATED, failure_in
from fleet.kafka_source.source import frame_of_ranges
from fleet.worker.batch.spark_link import SparkLink
from tests.conftest import RunningBroker
from tests.ranges.conftest import Topic
from tests.ranges.test_reading import SMALL, read, rows, ways
from tests.support.spark_cluster import standalone
from tests.support.waiting import until
from tests.worker.conftest import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_one_jvm_per_worker(group: Group, tmp_path: Path):
    """`spark: local[2]`: the same ways, the same records, no server, whatever its starter used."""
    table = tmp_path / "table"
    group.produce(2000)
    env = {"PARQUET": str(table), "SPARK_CONNECT_MODE_ENABLED": "1"}
    group.start("w1", env=env, batch=SMALL, spark="local[2]")
    group.warm("w1")
    group.open(0)
    group.drained()
    group.until(lambda: ways(group)[-1:] == ["inline"], "the way back inline")
    assert ways(group)[0] == "ranges"
    assert rows(table) == sorted((p, at) for p, n in group.produced.items() for at in range(n))
    assert group.end() == {"w1": 0}


@pytest.mark.long
def test_gaps_of_compaction(spark: Any, topic: Topic):
    """A range whose last records were compacted away is done at its end."""
    topic.create(
        **{
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.001",
            "min.compaction.lag.ms": "0",
        }
    )
    producer = topic.producer()

    def write(key: str, count: int) -> None:
        for number in range(count):
            producer.produce(topic.name, str(number), key=key)
        producer.flush(120)

    write("a", 100)
    write("b", 100)

    def compacted() -> bool:
        SystemClock().sleep(1.0)
        write("last", 1)  # rolls a segment, so that what is before it may be cleaned
        return len(read(spark, topic, topic.range(0, 200))) < 200

    until(compacted, "the cleaner")
    left = [offset for offset, _ in read(spark, topic, topic.range(0, 200))]
    assert set(left) <= {99, 199}
    assert read(spark, topic, topic.range(100, 150)) == [], "nothing is left in the middle"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A standalone master and two workers of one core, where `fleet` cannot be imported."""
    with standalone(tmp_path / "cluster", nodes=2) as made:
        yield made.url


@pytest.mark.long
def test_standalone_cluster(
    cluster: str, broker: RunningBroker, unique: str, topic: Topic, tmp_path: Path
):
    """Two executors that have no `fleet` read a batch's ranges, each its share."""
    home = tmp_path / "home"
    home.mkdir()
    spark_server.start(home, environ={**os.environ, "FLEET_SPARK_MASTER": cluster})
    group = None
    link = SparkLink(
        where=lambda: spark_server.connect_url(home),
        token=lambda: spark_server.token(home),
        clock=SystemClock(),
        app="t",
    )
    try:
        spark_server.wait_ready(home, timeout=300.0, clock=SystemClock())
        session = link.connect(timeout=300.0, given_up=lambda: False)
        assert _executors(session, topic) == (2, [False], 40_000)
        topic.truncate(100)
        with pytest.raises(Exception, match=TRUNCATED) as gone:
            read(session, topic, topic.range(50, 200))
        assert failure_in(gone.value) is not None, "also where Spark tries a task four times"
        group = Group(home, broker.bootstrap_servers, f"cluster-{unique}", tmp_path)
        table = tmp_path / "table"
        group.produce(3000)
        group.start("w1", env={"PARQUET": str(table)}, batch=SMALL)
        group.warm("w1")
        group.open(0)
        group.drained()
        assert "ranges" in ways(group)
        assert rows(table) == sorted((p, at) for p, n in group.produced.items() for at in range(n))
    finally:
        if group is not None:
            group.end()
        link.close()
        spark_server.stop(home)
        shutil.rmtree(home, ignore_errors=True)


def _executors(session: Any, topic: Topic) -> tuple[int, list[bool], int]:
    """(executors that read, whether they could import fleet, records)."""
    topic.create()
    producer = topic.producer(**{"linger.ms": "50"})
    for number in range(40_000):
        producer.produce(topic.name, str(number))
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush(120)

    def where(batches: Any) -> Any:
        import importlib.util
        import os

        import pyarrow as pa

        try:
            found = importlib.util.find_spec("fleet") is not None
        except ModuleNotFoundError:
            found = False
        for batch in batches:
            columns = [[os.environ["SPARK_EXECUTOR_DIRS"]], [found], [batch.num_rows]]
            yield pa.RecordBatch.from_arrays(
                [pa.array(each) for each in columns], names=["at", "fleet", "n"]
            )

    login = {"bootstrap.servers": {"value": topic.bootstrap}}
    until(  # executors register one after the other
        lambda: session.range(0, 1000).selectExpr("spark_partition_id() p").distinct().count() == 2,
        "two executors",
    )
    frame = frame_of_ranges(session, [topic.range(0, 40_000)], login=login)
    seen = frame.mapInArrow(where, "at STRING, fleet BOOLEAN, n LONG").collect()
    return (len({r.at for r in seen}), sorted({r.fleet for r in seen}), sum(r.n for r in seen))
