"""Named ranges read by Spark's tasks from a real broker: gaps, truncation, and real workers."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fleet.kafka_source.failures import TRUNCATED, UNREAD, failure_in
from fleet.kafka_source.pieces import OffsetRange
from fleet.kafka_source.source import frame_of_ranges
from fleet.model import TopicPartition
from tests.ranges.conftest import Topic
from tests.worker.conftest import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

SMALL = {"inline": 100, "ranges": 2000, "max_wait": "100ms"}
"""Ranges from 300 waiting records on."""


def read(spark: Any, topic: Topic, *ranges: OffsetRange, **options: Any) -> list[tuple[int, bytes]]:
    """(offset, value) of every record read."""
    login = {"bootstrap.servers": {"value": topic.bootstrap}}
    frame = frame_of_ranges(spark, ranges, login=login, **options)
    return sorted((row.offset, bytes(row.value)) for row in frame.collect())


def test_transactions(spark: Any, topic: Topic):
    """Committed records only, up to the last stable offset; markers and open ones end no task."""
    topic.create()
    finished = topic.producer(**{"transactional.id": f"{topic.name}-a"})
    finished.init_transactions(20)
    for what, count in ((b"committed", 10), (b"aborted", 5), (b"committed", 10)):
        finished.begin_transaction()
        for _ in range(count):
            finished.produce(topic.name, what, headers=[("kind", what)])
        if what == b"aborted":
            finished.flush(120)
            finished.abort_transaction(20)
        else:
            finished.commit_transaction(20)
    assert topic.decided() == 28
    opened = topic.producer(**{"transactional.id": f"{topic.name}-b"})
    opened.init_transactions(20)
    opened.begin_transaction()
    opened.produce(topic.name, b"open")
    opened.flush(120)

    stable, all_of_it = topic.look("read_committed"), topic.look("read_uncommitted")
    assert (stable.stable, stable.end) == (28, 29), "25 records and 3 markers are decided"
    assert all_of_it.stable == 29
    rows = read(spark, topic, topic.range(0, stable.stable))
    assert [value for _, value in rows] == [b"committed"] * 20
    dirty = read(spark, topic, topic.range(0, 29), isolation="read_uncommitted")
    assert [value for _, value in dirty].count(b"open") == 1
    assert len(dirty) == 26
    with pytest.raises(Exception, match=UNREAD) as stalled:
        read(spark, topic, topic.range(0, 29), read_timeout=1.0)
    told = failure_in(stalled.value)
    assert told is not None
    assert "no progress within 1 s at offset 28" in told[1]
    opened.abort_transaction(20)
    rows = read(spark, topic, topic.range(20, topic.decided()))
    assert len(rows) == 7, "a range that ends in markers alone is done at its end"


def test_columns_and_tasks(spark: Any, topic: Topic):
    """Spark's own columns; a hot partition is read by as many tasks as there are cores."""
    topic.create()
    producer = topic.producer(**{"linger.ms": "50"})
    for number in range(40_000):
        producer.produce(topic.name, str(number), key=b"k", headers=[("h", b"v"), ("none", None)])
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush(120)
    login = {"bootstrap.servers": {"value": topic.bootstrap}}
    frame = frame_of_ranges(spark, [topic.range(5, 40_000)], login=login)
    assert frame.columns == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
    ]
    counted = (
        frame.selectExpr("offset", "value", "spark_partition_id() AS task")
        .selectExpr("count(*)", "min(offset)", "count(DISTINCT value)", "count(DISTINCT task)")
        .collect()[0]
    )
    cores = spark.range(0, 10_000).selectExpr("spark_partition_id() p").distinct().count()
    assert tuple(counted) == (39_995, 5, 39_995, min(cores, 4))
    row = frame.orderBy("offset").first()
    assert (row.offset, bytes(row.value), bytes(row.key)) == (5, b"5", b"k")
    assert (row.topic, row.partition, row.timestampType) == (topic.name, 0, 0)
    assert [(h.key, h.value) for h in row.headers] == [("h", b"v"), ("none", None)]
    assert frame_of_ranges(spark, [], login=login).count() == 0


def test_records_that_are_gone_are_named(spark: Any, topic: Topic):
    """A start below the log's is an error with its offsets, never a jump over unread data [7]."""
    topic.create()
    producer = topic.producer()
    for number in range(100):
        producer.produce(topic.name, str(number))
    producer.flush(120)
    topic.truncate(60)
    with pytest.raises(Exception, match=TRUNCATED) as gone:
        read(spark, topic, topic.range(50, 100))
    assert failure_in(gone.value) == (
        TRUNCATED,
        f"{topic.name}-0: offset 50 was wanted, the log holds 60 to 99",
    )
    assert len(read(spark, topic, topic.range(60, 100))) == 40


def test_backlog_killed_holder_and_inline_again(group: Group, tmp_path: Path):
    """A backlog goes by ranges, what follows inline; kill -9 in between repeats one batch [4]."""
    table = tmp_path / "table"
    env = {"PARQUET": str(table), "SECONDS_EACH": "1"}
    group.produce(3000)
    for name in ("w1", "w2"):
        group.start(name, env=env, batch=SMALL)
    group.warm("w1", "w2")
    group.open(0)
    done = len(group.journal())  # of which one is committed: the slot is active
    group.until(
        lambda: any(size(line) > 250 for line in group.journal()[done:]), "a batch by ranges"
    )
    owner = group.journal()[-1]["worker"]
    group.processes[owner].kill()
    group.processes[owner].wait()
    last = [line for line in group.journal() if line["worker"] == owner][-1]["ranges"]
    group.until(lambda: ways(group)[-1:] == ["inline"], "the way back inline")
    group.produce(60)
    group.drained()
    group.produce(900)
    group.drained()
    group.until(lambda: ways(group)[-2:] == ["ranges", "inline"], "there and back once more")
    group.produce(20)
    group.drained()
    repeated = next(line for line in group.journal() if line["worker"] != owner)
    assert size(repeated) > 250
    assert repeated["ranges"] == last, "the successor's first batch is its predecessor's last"
    again = {(p, at) for _, p, start, end, _ in last for at in range(start, end)}
    called = group.times_called()
    assert {where for where, times in called.items() if times > 1} == again
    assert sum(called.values()) == 3980 + len(again)
    assert rows(table) == sorted((p, at) for p, n in group.produced.items() for at in range(n))


@pytest.mark.long
@pytest.mark.parametrize("on_truncated", ["stop", "skip"])
def test_truncated_under_a_worker(group: Group, on_truncated: str):
    """Records that vanish before their batch is run are a named loss; stop or skip [7]."""
    gone = TopicPartition(group.topic, 0)
    settings = {"batch": SMALL, "reading": "ranges", "on_truncated": on_truncated}
    group.start("w1", env={"SECONDS_EACH": "4"}, **settings)
    group.warm("w1")
    group.open(0)
    group.produce(100, partition=0)
    group.until(lambda: len(group.journal()) == 1, "the first batch")
    group.produce(100, partition=0)
    Topic(group.topic, group.bootstrap).truncate(150)
    group.until(lambda: bool(group.events("lost_records")), "the loss to be named")
    (loss,) = group.events("lost_records")
    first = loss["first"]
    assert (loss["partition"], loss["after"]) == (str(gone), 150)
    assert first in {0, 100}, "the first batch may not have read its records yet"
    if on_truncated == "stop":
        (mark,) = group.store.stopped_partitions(group.name)
        assert (mark.tp, mark.offset) == (gone, first)
        assert f"records {first} to 149" in mark.error
        return
    group.drained()
    assert [(r[2], r[3]) for r in group.journal()[-1]["ranges"]] == [(150, 200)]
    assert not group.store.stopped_partitions(group.name)


def ways(group: Group) -> list[str]:
    """The switches, in order."""
    return [event["way"] for event in group.events("reading")]


def size(line: dict[str, Any]) -> int:
    """Offsets of one call."""
    return sum(end - start for _, _, start, end, _ in line["ranges"])


def rows(table: Path) -> list[tuple[int, int]]:
    """(partition, offset) of every row written, repetitions included."""
    found = []
    for file in table.rglob("*.parquet"):
        read = pq.ParquetFile(file).read(columns=["partition", "offset"])
        found += zip(*(read[each].to_pylist() for each in read.column_names), strict=True)
    return sorted(found)
