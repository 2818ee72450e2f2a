"""The Kafka sink on a real broker: what was begun is ended, who was frozen adds nothing."""

import os
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, IsolationLevel, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from fleet.errors import FleetError
from fleet.sinks import kafka_topic, write_kafka
from fleet.sinks.kafka_topic import Row, _TopicWriter
from fleet.testing import make_batch
from tests.conftest import RunningBroker
from tests.sinks.cases import GROUP, Case, Place, batch, kafka, made_topics, range_of, records
from tests.support.waiting import until

pytestmark = pytest.mark.broker


@pytest.fixture
def place(broker: RunningBroker, unique: str) -> Place:
    """A topic of its own."""
    return made_topics(broker.bootstrap_servers, f"to-{unique}")


@pytest.fixture
def case(place: Place) -> Case:
    """The sink there."""
    return kafka(place)


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written from now on is by other producers; the former ones live on."""
    monkeypatch.setattr(kafka_topic, "_writers", {})


def test_a_transaction_that_a_killed_one_left_open_is_ended(case: Case, place: Place):
    """Its rows are never read, and nobody waits for its timeout."""
    rows, context = batch(range_of(0, 10))
    left = Producer(
        {
            "bootstrap.servers": place["bootstrap"],
            "transactional.id": f"{GROUP}/{place['topic']}/t/3",
            "transaction.timeout.ms": 600_000,
        }
    )
    left.init_transactions(20)
    left.begin_transaction()
    left.produce(place["topic"], b'{"partition": 3, "offset": 0}')
    left.flush(120)
    assert case.write(rows, context) == 1
    assert case.offsets() == list(range(10))


def test_who_was_frozen_finds_his_rows_written(
    case: Case, place: Place, monkeypatch: pytest.MonkeyPatch
):
    """Before his look, and between it and his transaction: the topic has each row once."""
    rows, context = batch(range_of(0, 10), range_of(0, 10, partition=4))
    case.write(*batch(range_of(0, 4)))
    frozen = dict(kafka_topic._writers)
    another_process(monkeypatch)
    assert case.write(rows, context) == 2
    monkeypatch.setattr(kafka_topic, "_writers", frozen)
    assert case.write(rows, context) == 0
    assert case.offsets(3) == case.offsets(4) == list(range(10))

    looked = _TopicWriter._written

    def overtaken(self, ranges, pool):
        """Somebody else writes the batch right after the look."""
        found = looked(self, ranges, pool)
        monkeypatch.setattr(_TopicWriter, "_written", looked)
        monkeypatch.setattr(kafka_topic, "_writers", {})
        assert case.write(*later) == 1
        return found

    later = batch(range_of(10, 20))
    monkeypatch.setattr(_TopicWriter, "_written", overtaken)
    assert case.write(*later) == 0
    assert case.offsets() == list(range(20))


def test_the_workers_own_offsets_are_not_touched(case: Case, place: Place):
    """The side group has them, with what Kafka's tools show: the end."""
    case.write(*batch(range_of(5, 9)))
    ends = {}
    for group in (GROUP, f"{GROUP}/{place['topic']}"):
        reader = Consumer({"bootstrap.servers": place["bootstrap"], "group.id": group})
        (found,) = reader.committed([KafkaPartition("t", 3)], 20)
        ends[group] = (found.offset, found.metadata)
        reader.close()
    own, side = ends.values()
    assert own[0] < 0
    assert side == (9, "a-topic_id-00 5-9")


def test_a_topic_made_anew_begins_anew(case: Case):
    """Its offsets are others."""
    rows, context = batch(range_of(0, 3))
    assert case.write(rows, context) == 1
    (each,) = context.ranges
    again = type(each)(topic="t", topic_id="another", partition=each.partition, start=0, end=3)
    _, context = batch(again)
    assert case.write(rows, context) == 1
    assert case.write(rows, context) == 0
    assert case.offsets() == [0, 0, 1, 1, 2, 2]


def test_keys_headers_and_nothing(place: Place):
    """As Spark's Kafka sink has them; a null value is a tombstone."""
    rows, context = batch(range_of(0, 2))
    headers = pa.array([[("h", b"1"), ("h", None)], None], kafka_topic_headers())
    rows = rows.drop_columns(["n"]).append_column("key", [["a", "b"]])
    rows = rows.append_column("value", pa.array([b"x", None])).append_column("headers", headers)
    client = {"bootstrap.servers": place["bootstrap"]}
    write_kafka(rows, place["topic"], context, client=client)
    reader = Consumer({**client, "group.id": "reader", "auto.offset.reset": "earliest"})
    reader.assign([KafkaPartition(place["topic"], each, 0) for each in range(3)])
    found = {}
    while len(found) < 2:
        for each in reader.consume(2, timeout=1):
            found[each.key()] = (each.value(), each.headers())
    reader.close()
    assert found == {b"a": (b"x", [("h", b"1"), ("h", None)]), b"b": (None, None)}


def kafka_topic_headers() -> pa.DataType:
    """Of our own source's column."""
    from fleet.kafka_source.columns import SCHEMA

    return SCHEMA.field("headers").type


def test_what_cannot_be_written_is_one_sentence(case: Case, place: Place):
    """And leaves nothing behind that the next write would stumble over."""
    client = {"bootstrap.servers": place["bootstrap"]}
    rows, context = batch(range_of(0, 3))
    odd = rows.rename_columns({"n": "value"})
    large = rows.drop_columns(["n"]).append_column("value", [["x" * 2_000_000] * 3])
    with pytest.raises(FleetError, match="make one column `value` of what they hold"):
        write_kafka(rows, place["topic"], context, client=client)
    with pytest.raises(FleetError, match="column value is int64; text and bytes"):
        write_kafka(odd, place["topic"], context, client=client)
    _, two = batch(range_of(0, 3), range_of(0, 3, partition=4))
    with pytest.raises(FleetError, match="writes a batch of 2 partitions partition by partition"):
        write_kafka(pa.table({"value": ["x"]}), place["topic"], two, client=client)
    with pytest.raises(FleetError, match=r"t-3 cannot be written to .*2,000,000 bytes"):
        write_kafka(large, place["topic"], context, client=client)
    with pytest.raises(FleetError, match=r"topic a/b cannot be written: .*Invalid topic"):
        write_kafka(records(), "a/b", context, client=client)
    until(lambda: not undecided(place), "the end of all transactions")
    assert case.rows() == []
    assert case.write(rows, context) == 1
    assert case.offsets() == [0, 1, 2]


@pytest.mark.parametrize("bad", ["x" * 2_000_000, "a header"], ids=["too large", "no bytes"])
def test_a_refused_row_leaves_no_transaction_open(
    place: Place, bad: str, monkeypatch: pytest.MonkeyPatch
):
    """Fault: who reads what is committed stands behind it until the broker's timeout."""
    client = {"bootstrap.servers": place["bootstrap"], "transaction.timeout.ms": 600_000}

    def made(_: pa.Table) -> Iterator[Row]:
        yield Row(None, "good", ())
        until(lambda: undecided(place), "the first row to be there")
        yield Row(None, bad, [("h", 1)] if bad == "a header" else ())

    monkeypatch.setattr(kafka_topic, "_rows", made)
    rows, context = batch(range_of(0, 2))
    rows = rows.drop_columns(["n"]).append_column("value", [["a", "b"]])
    with pytest.raises(Exception, match=r"cannot be written|header"):
        write_kafka(rows, place["topic"], context, client=client)
    until(lambda: not undecided(place), "the end of all transactions")


def undecided(place: Place) -> list[int]:
    """Partitions of the topic in which a transaction is open."""
    admin = AdminClient({"bootstrap.servers": place["bootstrap"]})
    asked = {KafkaPartition(place["topic"], each): OffsetSpec.latest() for each in range(3)}
    ends = [
        {tp.partition: end.result(20).offset for tp, end in found.items()}
        for found in (
            admin.list_offsets(asked, isolation_level=each)
            for each in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
        )
    ]
    return [each for each, end in ends[0].items() if end != ends[1][each]]


@pytest.mark.parametrize(
    ("limit", "rows", "told"),
    [
        (5_000_000, [os.urandom(3_000_000)], None),
        (60_000, [os.urandom(5_000)] * 100, None),
        (
            60_000,
            [b"small", os.urandom(70_000)],
            r"offsets 0 to 1 of t-0 .* a record of 70,000 bytes .*max\.message\.bytes is 60,000",
        ),
    ],
)
def test_the_topic_decides_what_is_too_large(
    broker: RunningBroker, unique: str, limit: int, rows: list[bytes], told: str | None
):
    """A bound of librdkafka was told as the broker's; small rows were refused as one batch."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topic, source = f"large-{unique}", "t"
    made = [NewTopic(topic, 1, 1, config={"max.message.bytes": str(limit)}), NewTopic(source, 4, 1)]
    for each in admin.create_topics(made).values():
        each.exception(120)  # the source may be there
    table = make_batch([{"value": each} for each in rows], topic=source, group=unique)
    chosen = table.table.select(["topic", "partition", "offset", "value"])
    client = {"bootstrap.servers": broker.bootstrap_servers}
    if told is None:
        assert write_kafka(chosen, topic, table.context, client=client) == 1
    else:
        with pytest.raises(FleetError, match=told):
            write_kafka(chosen, topic, table.context, client=client)


def test_a_topic_that_brokers_do_not_know_yet_is_waited_for(broker: RunningBroker, unique: str):
    """They hear of a new topic a little later than who made it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topic = f"late-{unique}"
    table = make_batch([{"value": b"1"}], topic=f"source-{unique}", group=unique)
    chosen = table.table.select(["topic", "partition", "offset", "value"])
    late = threading.Timer(1.0, admin.create_topics, [[NewTopic(topic, 1, 1)]])
    admin.create_topics([NewTopic(f"source-{unique}", 4, 1)])[f"source-{unique}"].result(120)
    late.start()
    try:
        client = {"bootstrap.servers": broker.bootstrap_servers}
        assert write_kafka(chosen, topic, table.context, client=client) == 1
    finally:
        late.join()
