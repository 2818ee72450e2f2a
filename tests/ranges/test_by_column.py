"""Records by column, on a real broker and a real Spark: equal to the other ways, and cleaned up."""

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition

from fleet.kafka_source.columns import batch_of, table_of_pieces, to_stderr
from fleet.kafka_source.source import frame_of_ranges
from fleet.kafka_source.tasks import read_tables
from fleet.worker.batch.columnar import Gathering, find_obstacle, frame_of_files
from fleet.worker.batch.spark_link import frame_of
from tests.ranges.conftest import Topic
from tests.ranges.test_reading import SMALL, rows, size
from tests.support.live_folders import files_below
from tests.support.waiting import until
from tests.worker.conftest import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

CALLS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


def written(topic: Topic) -> int:
    """Records of every kind, an aborted transaction among them; the end to read to."""
    odd = topic.producer(**{"compression.type": "zstd"})
    for number in range(300):
        odd.produce(
            topic.name,
            None if number % 7 == 0 else f"värde {number}".encode(),
            key=None if number % 3 == 0 else bytes([number % 256]),
            timestamp=1_700_000_000_123 + number if number % 2 else 5,
            headers=[("a", b"1"), ("a", None), ("ö", b"")] if number % 5 == 0 else None,
        )
    odd.flush(120)
    spoilt = topic.producer(**{"transactional.id": topic.name})
    spoilt.init_transactions(20)
    for ends in (spoilt.abort_transaction, spoilt.commit_transaction):
        spoilt.begin_transaction()
        for number in range(20):
            spoilt.produce(topic.name, f"{ends.__name__} {number}")
        spoilt.flush(120)
        ends(20)
    return topic.decided()


@pytest.mark.parametrize(
    ("config", "isolation"),
    [
        ({}, "read_committed"),
        ({"message.timestamp.type": "LogAppendTime"}, "read_uncommitted"),
    ],
)
def test_row_for_row_as_the_other_ways(
    spark: Any, topic: Topic, tmp_path: Path, config: dict[str, str], isolation: str
):
    """All columns of all records, their types too: in memory, by Spark's tasks, inline in as many
    tasks as there are cores or in one.
    """
    topic.create(**config)
    wanted = topic.range(3, written(topic))
    gathering = Gathering(tmp_path / "1", most=1 << 20, files=2)
    gathering.run(
        lambda check: read_tables(
            {"bootstrap.servers": topic.bootstrap},
            [wanted],
            isolation=isolation,
            make=partial(table_of_pieces, tell=to_stderr()),
            check=check,
        )
    )
    assert gathering.error is None
    login = {"bootstrap.servers": {"value": topic.bootstrap}}
    columnar = frame_of_files(spark, gathering.path)
    named = frame_of_ranges(spark, [wanted], login=login, isolation=isolation)
    table = consumed(topic, isolation, wanted.start, wanted.end)
    inline, one_task = frame_of(spark, table), frame_of(spark, table, one_task=True)
    assert columnar.columns == CALLS
    assert columnar.schema == named.schema == inline.schema
    found = [frame.orderBy("offset").collect() for frame in (columnar, named, inline)]
    assert len(found[0]) == {"read_committed": 317, "read_uncommitted": 337}[isolation]
    assert found[0] == found[1]
    assert found[0] == found[2]
    assert one_task.schema == columnar.schema
    assert one_task.collect() == found[0], "in the order of their offsets"
    partitions = one_task.selectExpr("spark_partition_id() AS number").distinct().collect()
    assert [row.number for row in partitions] == [0]


def consumed(topic: Topic, isolation: str, start: int, end: int) -> pa.Table:
    """As the member reads inline."""
    consumer = Consumer(
        {
            "bootstrap.servers": topic.bootstrap,
            "group.id": topic.name,
            "isolation.level": isolation,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic.name, 0, start)])
    found: list[Any] = []

    def all_read() -> bool:
        found.extend(m for m in consumer.consume(500, 0.5) if m.error() is None)
        return consumer.position([TopicPartition(topic.name, 0)])[0].offset >= end

    until(all_read, "the records inline")
    consumer.close()
    return pa.Table.from_batches([batch_of(topic.name, 0, found, to_stderr())])


def test_spark_shows_that_it_sees_this_memory(spark: Any, tmp_path: Path):
    """The shared server on this machine does; a file that is not there is no proof."""
    proof = tmp_path / "word.parquet"
    pq.write_table(pa.table({"word": ["w"]}), proof)
    assert find_obstacle(spark, proof, "w") is None
    told = find_obstacle(spark, proof, "w")
    assert told is not None
    assert told.startswith("Spark does not see")


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    """A place for files in memory of this test's workers alone."""
    place = tmp_path / "memory"
    place.mkdir()
    return place


def files(memory: Path) -> list[Path]:
    """Of batches: a proof's name is no number."""
    return [
        each for each in files_below(memory) if each.suffix == ".parquet" and each.stem.isdecimal()
    ]


def test_a_backlog_by_column_with_a_killed_holder(group: Group, tmp_path: Path, memory: Path):
    """One batch is repeated with the same ranges, and what the dead one left is removed."""
    table = tmp_path / "table"
    env = {"PARQUET": str(table), "SECONDS_EACH": "1", "FLEET_SHM": str(memory)}
    group.produce(3000)
    for name in ("w1", "w2"):
        group.start(name, env=env, batch=SMALL)
    group.warm("w1", "w2")
    group.open(0)
    group.until(lambda: any(e["on"] for e in group.events("columnar")), "Spark's answer")
    called_before = len(group.journal())
    group.until(
        lambda: any(size(line) > 250 for line in group.journal()[called_before:]),
        "a batch by column",
    )
    owner = group.journal()[-1]["worker"]
    group.processes[owner].kill()
    group.processes[owner].wait()
    assert files(memory), "nobody cleans up after a kill -9 by itself"
    last = [line for line in group.journal() if line["worker"] == owner][-1]["ranges"]
    group.drained()
    repeated = next(line for line in group.journal() if line["worker"] != owner)
    assert repeated["ranges"] == last, "the successor's first batch is its predecessor's last"
    group.until(lambda: not files(memory), "every file to be gone")
    again = {(p, at) for _, p, start, end, _ in last for at in range(start, end)}
    times = group.times_called()
    assert {where for where, called in times.items() if called > 1} == again
    assert rows(table) == sorted((p, at) for p, n in group.produced.items() for at in range(n))
    assert any(size(line) > 250 for line in group.journal() if line["worker"] != owner)
