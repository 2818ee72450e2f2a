"""What a Spark task writes: a second attempt doubles nothing, and what is not here is missed."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.clock import SystemClock
from fleet.history.digest import RETURNED, Task
from fleet.history.memory import JobMemory
from fleet.history.pipeline import Batch
from fleet.history.retention import clear_old_days
from fleet.history.tables import Tables
from fleet.kafka_source.pieces import OffsetRange
from fleet.log.record_columns import LED
from tests.history.test_exactly_once import TOPIC, fill, scan
from tests.history.test_tables import opened
from tests.support.offsets_topic import offsets_partitions

pytestmark = [pytest.mark.broker]


def everything(bootstrap):
    """The whole topic as ranges."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "looks"})
    found = []
    for number in range(offsets_partitions(bootstrap)):
        first, end = consumer.get_watermark_offsets(KafkaPartition(TOPIC, number), timeout=10)
        if first < end:
            found.append(OffsetRange(TOPIC, number, first, end))
    consumer.close()
    return found


def test_a_second_attempt_doubles_no_row(broker, unique, tmp_path: Path):
    """As Spark runs a task again whose executor died: the first attempt's files are nobody's."""
    bootstrap = broker.bootstrap_servers
    fill(bootstrap, unique, generations=2, commits=50)
    ranges, path = everything(bootstrap), tmp_path / "it's a history"
    writer = opened(path, SystemClock(), cluster="it's main", retention=10**9)
    task = Task(
        [ranges],
        options={"bootstrap.servers": bootstrap, "leaderEpochs": json.dumps({})},
        digest={"interval": 1000},
        place=writer.place.url,
        cluster="it's main",
    )
    first, second = (
        Batch(
            pa.Table.from_pylist(list(task.done(ranges)), schema=RETURNED),
            JobMemory(),
            state=writer.state,
            names=lambda _: {},
        )
        for _ in range(2)
    )
    assert not {f.name for f in first.files} & {f.name for f in second.files}
    assert writer.place.missing(first.files + second.files) == 0
    files = list(second.files)
    for events in second.replayed(waiting={}):
        files += writer.place.write("events", events)
    writer.commit("batch", files=files)
    clear_old_days(writer, hours=0)
    assert writer.place.missing(files) == 0
    assert writer.place.missing(first.files) == sum(file.rows for file in first.files)
    tables = Tables(path)
    commits, _, events = scan(bootstrap)
    held = tables.read("commits").to_pylist()
    assert {row["cluster"] for row in held} == {"it's main"}
    for group in (f"{name}-{unique}" for name in "abc"):
        mine = sum(row["commits"] for row in held if row["group_id"] == group)
        assert mine == sum(n for key, n in commits.items() if key[0] == group) == 100
    assert second.commits == sum(row["commits"] for row in held)
    ends = {each.partition: each.end for each in ranges}
    told = [row for row in tables.read("events").to_pylist() if row["type"] != LED]
    places = sorted((row["log_partition"], row["log_offset"]) for row in told)
    assert places == [(p, offset) for p, offset in events if offset < ends.get(p, 0)]
    Path(writer.place.full(f"commits/{files[0].name}")).write_bytes(b"cut")
    assert writer.place.missing(files) == files[0].rows
