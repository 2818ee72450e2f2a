"""`consumer_offsets` on a real broker: the AdminClient's view, Spark, streaming, gone offsets."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.history import source
from fleet.history.read_options import read_options
from fleet.history.source import OffsetsReader, OffsetsStream, register
from fleet.kafka_source.bounds import log_bounds
from fleet.kafka_source.failures import TRUNCATED, RangeTruncated, RangeUnread
from fleet.log.record_columns import LED
from fleet.log.records import (
    ConsumerGroupMember,
    CurrentAssignment,
    GroupMetadata,
    Record,
    Tombstone,
    decode,
    record_key,
)
from tests.conftest import RunningBroker
from tests.history import making
from tests.support.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.slow]
Assigned = dict[str, set[tuple[str, int]]]


def read(bootstrap: str, **options: str) -> list[dict[str, Any]]:
    """Rows of a batch, read here as a task would."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    reader = OffsetsReader(read_options({"bootstrap.servers": bootstrap, **named}))
    return rows_of(reader, reader.partitions())


def rows_of(reader: Any, shares: Sequence[Any]) -> list[dict[str, Any]]:
    """Rows of all shares."""
    batches = [batch for share in shares for batch in reader.read(share)]
    return [row for batch in batches for row in batch.to_pylist()]


class Groups:
    """Two groups of two members each, classic and KIP-848, at rest on one topic."""

    def __init__(self, bootstrap: str, unique: str) -> None:
        self.bootstrap = bootstrap
        self.topic = f"history-{unique}"
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.admin.create_topics([NewTopic(self.topic, 6, 1)])[self.topic].result(120)
        self.names = {"classic": f"classic-{unique}", "consumer": f"consumer-{unique}"}
        self.members = [
            Consumer(
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": name,
                    "client.id": f"member-{number}",
                    "group.protocol": protocol,
                    "enable.auto.commit": False,
                }
            )
            for protocol, name in self.names.items()
            for number in range(2)
        ]
        for member in self.members:
            member.subscribe([self.topic])

    def settle(self) -> None:
        """Every member owns three partitions, and has committed each."""

        def settled() -> bool:
            for member in self.members:
                member.poll(0.05)
            return all(len(member.assignment()) == 3 for member in self.members)

        until(settled, "two groups to settle")
        for number, member in enumerate(self.members):
            owned = [
                KafkaPartition(tp.topic, tp.partition, 10 * tp.partition + number, "note")
                for tp in member.assignment()
            ]
            member.commit(offsets=owned, asynchronous=False)

    def committed(self, name: str) -> dict[int, tuple[int, str]]:
        """By the AdminClient: offset and metadata by partition."""
        asked = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])
        return {
            tp.partition: (tp.offset, tp.metadata)
            for tp in asked[name].result(120).topic_partitions
            if tp.offset >= 0
        }

    def assigned(self, name: str) -> Assigned:
        """By the AdminClient: what each member owns."""
        told = self.admin.describe_consumer_groups([name])[name].result(120)
        return {
            member.member_id: {
                (tp.topic, tp.partition) for tp in member.assignment.topic_partitions
            }
            for member in told.members
        }

    def close(self) -> None:
        """End the members."""
        for member in self.members:
            member.close()


@pytest.fixture(scope="module")
def groups(broker: RunningBroker) -> Iterator[Groups]:
    """At rest for the whole file."""
    made = Groups(broker.bootstrap_servers, f"{time.time_ns():x}")
    try:
        made.settle()
        yield made
    finally:
        made.close()


def last_commits(rows: Sequence[Mapping[str, Any]], name: str) -> dict[int, tuple[int, str]]:
    """Of one group, the last row of each partition."""
    found = {}
    for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
        if row["group"] == name and row["topic"] is not None:
            # confluent-kafka sends a C string with its closing zero, and cuts it off again.
            metadata = (row["metadata"] or "").removesuffix("\0")
            found[row["topic_partition"]] = (row["committed"], metadata)
    return {number: each for number, each in found.items() if each[0] is not None}


def last_assigned(rows: Sequence[Mapping[str, Any]], name: str, topic: str) -> Assigned:
    """Of one group, by its events, which the rows carry as bytes."""
    events = [
        decode(row["key"], row["value"], offset=row["offset"], timestamp=row["timestamp"])
        for row in sorted(rows, key=lambda row: row["offset"])
        if row["group"] == name and row["topic"] is None
    ]
    classic = [event for event in events if isinstance(event, GroupMetadata)]
    if classic:
        return {
            member.member_id: {(t, p) for t, numbers in member.assigned.items() for p in numbers}
            for member in classic[-1].members
        }
    return _consumer_assigned(events, topic)


def _consumer_assigned(events: Sequence[Record], topic: str) -> Assigned:
    found: Assigned = {}
    for event in events:
        if isinstance(event, ConsumerGroupMember):
            found.setdefault(event.member_id, set())
        elif isinstance(event, CurrentAssignment):
            assert len(event.assigned) <= 1, "one topic"
            found[event.member_id] = {(topic, p) for ps in event.assigned.values() for p in ps}
        elif isinstance(event, Tombstone) and event.type == 5:
            found.pop(str(event.key[0]))
    return found


def test_decoded_state_is_the_admin_clients_view(groups: Groups):
    """At rest: commits with metadata, members and their assignments, classic and KIP-848."""
    rows = read(groups.bootstrap)
    assert not [row for row in rows if row["problem"]]
    for name in groups.names.values():
        assert last_commits(rows, name) == groups.committed(name)
        assert len(groups.committed(name)) == 6
        assigned = groups.assigned(name)
        assert last_assigned(rows, name, groups.topic) == assigned
        assert sorted(len(each) for each in assigned.values()) == [3, 3]


def test_reading_leaves_no_trace(groups: Groups):
    """No record in the topic, no group on the cluster."""
    topic = "__consumer_offsets"
    options = {"bootstrap.servers": groups.bootstrap}
    ends, before = log_bounds(options, topic), listed(groups)
    assert sum(each.stable for each in ends.values()) == len(read(groups.bootstrap))
    assert log_bounds(options, topic) == ends
    assert listed(groups) == before


def listed(groups: Groups) -> set[str]:
    """All groups of the cluster."""
    return {each.group_id for each in groups.admin.list_consumer_groups().result(120).valid}


def test_positions_and_groups_choose_what_is_read(groups: Groups):
    """Offsets by partition, in Spark's own form too; names, a pattern, both."""
    everything = read(groups.bootstrap)
    busy = max(everything, key=lambda row: row["offset"])
    partition, end = busy["partition"], busy["offset"] + 1
    some = read(
        groups.bootstrap,
        startingOffsets=json.dumps({str(partition): end - 1}),
        endingOffsets=json.dumps({"__consumer_offsets": {str(partition): end}}),
    )
    assert some == [busy]
    name = groups.names["classic"]
    of_one = [row for row in everything if row["group"] == name]
    assert read(groups.bootstrap, groups=json.dumps([name])) == of_one
    assert read(groups.bootstrap, groupsPattern=f"{name}") == of_one
    either = read(groups.bootstrap, groups=json.dumps([name]), groupsPattern="consumer-.*")
    assert {row["group"].split("-")[0] for row in either} == {"classic", "consumer"}
    assert read(groups.bootstrap, startingOffsets="latest") == []
    assert read(groups.bootstrap, topic="there-is-no-such-topic") == []


def test_leader_epochs_are_told_where_they_are_new(groups: Groups):
    """A row before the first record of each partition that has any; none where it was known."""
    rows = read(groups.bootstrap, leaderEpochs="{}")
    led = [row for row in rows if row["type"] == LED]
    records = [row for row in rows if row["type"] != LED]
    assert records == read(groups.bootstrap)
    first = {row["partition"]: row["offset"] for row in reversed(records)}
    assert {row["partition"]: row["offset"] for row in led} == first
    known = {row["partition"]: row["leader_epoch"] for row in led}
    assert read(groups.bootstrap, leaderEpochs=json.dumps(known)) == records
    number = next(iter(known))
    older = {**known, number: known[number] - 1}
    again = read(groups.bootstrap, leaderEpochs=json.dumps(older))
    assert [row for row in again if row["type"] == LED] == [
        row for row in led if row["partition"] == number
    ]


def test_offsets_that_are_gone_are_named(broker: RunningBroker, unique: str):
    """A log that begins later: one row says so, and what is there is read."""
    bootstrap, topic = broker.bootstrap_servers, f"like-offsets-{unique}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(120)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(20):
        key, value = record_key(1, "g", "t", 0), making.commit(4, committed=number)
        producer.produce(topic, value, key=key, partition=0)
    producer.flush(120)
    [future] = admin.delete_records([KafkaPartition(topic, 0, 8)]).values()
    future.result(120)

    whole = read(bootstrap, topic=topic)
    assert [row["committed"] for row in whole] == list(range(8, 20)), "from the log's beginning"
    lost, *rows = read(bootstrap, topic=topic, startingOffsets='{"0": 3}')
    assert (lost["partition"], lost["offset"], lost["type"]) == (0, 3, -1)
    assert lost["problem"] == "offsets 3 to 7 are gone: the log begins behind them"
    assert rows == whole
    wanted = {"startingOffsets": '{"0": 2}', "endingOffsets": '{"0": 6}'}
    [lost] = read(bootstrap, topic=topic, **wanted)
    assert lost["problem"].startswith("offsets 2 to 5 are gone")
    with pytest.raises(RangeTruncated, match="offset 21 was wanted, the log holds 8 to 19"):
        read(bootstrap, topic=topic, startingOffsets='{"0": 21}')
    with pytest.raises(RangeTruncated):
        read(bootstrap, topic=topic, startingOffsets='{"5": 1}')


def test_several_partitions_begin_later(broker: RunningBroker, unique: str):
    """Every record that is there comes once, whatever is gone beside it."""
    bootstrap, topic = broker.bootstrap_servers, f"begun-later-{unique}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(120)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(9000):
        key, value = record_key(1, "g", "t", number % 3), making.commit(4, committed=number)
        producer.produce(topic, value, key=key, partition=number % 3)
    producer.flush(120)
    cuts = [KafkaPartition(topic, 0, 2000), KafkaPartition(topic, 2, 1000)]
    for future in admin.delete_records(cuts).values():
        future.result(120)
    starts, ends = '{"0": 0, "1": 0, "2": 0}', '{"0": 1500, "1": 3000, "2": 3000}'
    rows = read(bootstrap, topic=topic, startingOffsets=starts, endingOffsets=ends, tasks="1")
    lost = {row["partition"]: row["problem"] for row in rows if row["problem"]}
    assert {p: told.split(" are")[0] for p, told in lost.items()} == {
        0: "offsets 0 to 1499",
        2: "offsets 0 to 999",
    }
    found = [(row["partition"], row["offset"]) for row in rows if not row["problem"]]
    assert sorted(found) == [*((1, n) for n in range(3000)), *((2, n) for n in range(1000, 3000))]


def test_streams_end_where_they_are_told(groups: Groups):
    """Positions of a stream: limits, what is there now, and a log that was made anew."""
    stream = OffsetsStream(read_options({"bootstrap.servers": groups.bootstrap}))
    first = stream.initialOffset()
    limit = source.ReadMaxRows(5)
    middle = stream.latestOffset(first, limit)
    end = stream.latestOffset(middle, source.ReadAllAvailable())
    assert end == stream.reportLatestOffset()
    assert 5 <= sum(middle.values()) < sum(end.values())
    rows = rows_of(stream, stream.partitions(first, middle))
    rows += rows_of(stream, stream.partitions(middle, end))
    key = lambda row: (row["partition"], row["offset"])  # noqa: E731
    assert sorted(rows, key=key) == sorted(read(groups.bootstrap), key=key)
    assert stream.partitions(end, end) == []
    with pytest.raises(RangeTruncated):
        stream.latestOffset({**end, "0": 10**6}, limit)


def test_no_broker_is_one_sentence():
    """Bounded, with what was asked."""
    with pytest.raises(RangeUnread, match="__consumer_offsets: brokers did not return its offsets"):
        read("127.0.0.1:1", readTimeout="0.5")


@pytest.mark.spark
def test_through_spark_connect(spark: Any, groups: Groups, tmp_path: Path):
    """Batch and stream give the rows that a task gives; a failure keeps its sentence."""
    register(spark)
    register(spark)
    key = lambda row: (row["partition"], row["offset"])  # noqa: E731
    expected = sorted(read(groups.bootstrap), key=key)

    def reader(how: Any) -> Any:
        return how.format("consumer_offsets").option("bootstrap.servers", groups.bootstrap)

    found = reader(spark.read).load().toArrow()
    assert sorted(found.to_pylist(), key=key) == expected
    assert pa.types.is_int16(found.schema.field("type").type)

    table, positions = str(tmp_path / "table"), str(tmp_path / "positions")
    most = str(len(expected) - 5)
    query = (
        reader(spark.readStream)
        .option("maxOffsetsPerTrigger", most)
        .load()
        .writeStream.option("path", table)
        .option("checkpointLocation", positions)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert sorted(spark.read.parquet(table).toArrow().to_pylist(), key=key) == expected

    with pytest.raises(Exception, match=TRUNCATED):
        reader(spark.read).option("startingOffsets", '{"0": 99999999}').load().collect()
    with pytest.raises(Exception, match="option groups: 'a,b' is not a list in JSON"):
        reader(spark.read).option("groups", "a,b").load().collect()
