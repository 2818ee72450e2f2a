"""What a Spark task writes: a second attempt doubles nothing, and what is not here is missed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.clock import ManualClock, SystemClock
from fleet.history.rollup_tasks import Task
from fleet.history.tables import Tables
from fleet.history.tables.table_folder import TableFolder
from fleet.history.tables.table_manifests import DataFile
from fleet.history.tables.writing import KEPT_SECONDS, Writer
from fleet.kafka_source.pieces import OffsetRange
from fleet.log.record_columns import LED
from tests.history.test_exactly_once import TOPIC, fill, scan
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
    ranges, place = everything(bootstrap), TableFolder(tmp_path / "it's a history")
    clock = ManualClock(SystemClock().now())
    with Writer(place, cluster="main", clock=clock, retention=10**9) as writer:
        task = Task(
            [ranges],
            options={"bootstrap.servers": bootstrap, "leaderEpochs": json.dumps({})},
            digest={"interval": 1000},
            place=str(place),
            attempt=writer.attempt(),
            cluster="it's main",
        )
        first, second = ([DataFile(**f) for f in task.files(ranges)] for _ in range(2))
        assert {f.table for f in second} == {"commits", "events"}
        assert not {f.name for f in first} & {f.name for f in second}
        assert writer.found(first + second) == first + second
        writer.commit(replace(writer.manifest, files=tuple(second)))
        clock.sleep(KEPT_SECONDS + 60)
        assert writer.clear_away() == len(first)
        assert writer.found(first + second) == second
        tables = Tables(tmp_path / "it's a history")
        commits, _, events = scan(bootstrap)
        held = tables.read("commits").to_pylist()
        assert {row["cluster"] for row in held} == {"it's main"}
        for group in (f"{name}-{unique}" for name in "abc"):
            mine = sum(row["commits"] for row in held if row["group_id"] == group)
            assert mine == sum(n for key, n in commits.items() if key[0] == group) == 100
        ends = {each.partition: each.end for each in ranges}
        told = [row for row in tables.read("events").to_pylist() if row["type"] != LED]
        places = sorted((row["log_partition"], row["log_offset"]) for row in told)
        assert places == [(p, offset) for p, offset in events if offset < ends.get(p, 0)]
        Path(place.full(second[0].name)).write_bytes(b"cut")
        assert writer.found(second) == second[1:]
