"""A record that no row can hold as it is: its field is null and told, and the worker goes on."""

import itertools
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from fleet.kafka_source.columns import UnreadableField, batch_of, to_stderr
from fleet.model import TopicPartition
from fleet.worker.batch.entrypoint import JobErrors
from fleet.worker.member.protocols import reading_options
from tests.conftest import RunningBroker
from tests.support.declared import group_spec, settings_of
from tests.support.memory_kafka import NOW, MemoryKafka, Message, not_utf8
from tests.worker.conftest import Group
from tests.worker.rig import Drive

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
NANOSECONDS = NOW * 1_000_000
LATEST = "9223372036854775807"


def rows(*messages: Message) -> tuple[list[dict[str, Any]], list[UnreadableField]]:
    """Rows, and what was told."""
    told: list[UnreadableField] = []
    return batch_of("t", 0, messages, told.append).to_pylist(), told


@pytest.mark.parametrize(
    ("at", "year"),
    [
        pytest.param((1, NOW), 2023, id="usual"),
        pytest.param((1, 0), 1970, id="zero"),
        pytest.param((1, -1), 1969, id="none of Kafka's, as Spark has it"),
        pytest.param((1, -5_000_000_000_000), 1811, id="negative"),
        pytest.param((2, NOW), 2023, id="log append time"),
        pytest.param((0, -1), None, id="type none"),
        pytest.param((1, NANOSECONDS), None, id="nanoseconds"),
        pytest.param((1, NOW * 1000), None, id="microseconds"),
        pytest.param((1, 2**63 - 1), None, id="largest"),
        pytest.param((1, -(2**63)), None, id="smallest"),
        pytest.param((1, 253_402_300_800_000), None, id="year 10000"),
    ],
)
def test_timestamps(at: tuple[int, int], year: int | None):
    """What Python's datetime can hold is kept; all else is null, and the neighbours stay."""
    made, told = rows(
        Message(P0, 5, value=b"a"), Message(P0, 6, value=b"b", timestamp=at), Message(P0, 7)
    )
    assert [row["offset"] for row in made] == [5, 6, 7]
    assert [row["value"] for row in made] == [b"a", b"b", None]
    found = made[1]["timestamp"]
    assert (found and found.year) == year
    assert made[0]["timestamp"].year == made[2]["timestamp"].year == 2023
    assert made[1]["timestampType"] == at[0] - 1
    odd = [UnreadableField("t", 0, 6, "timestamp", f"{at[1]} is not a time in milliseconds")]
    assert told == (odd if year is None and at[0] else [])


def test_header_keys_that_are_not_utf8():
    """Null for just these records, asked for once, the first of them told with its bytes."""
    good = [("k", b"v")]
    made, told = rows(
        Message(P0, 0, headers=good),
        Message(P0, 1, headers=not_utf8(b"\xff\xfe")),
        Message(P0, 2, headers=good),
        Message(P0, 3, headers=not_utf8(b"\xc3")),
    )
    assert [bool(row["headers"]) for row in made] == [True, False, True, False]
    assert told == [UnreadableField("t", 0, 1, "headers", r"the key b'\xff\xfe' is not UTF-8")]


def test_a_task_says_each_field_once(capsys):
    """A whole topic in nanoseconds is no reason for a line per batch in the executors' logs."""
    tell = to_stderr()
    for offset in (3, 4):
        tell(UnreadableField("t", 0, offset, "timestamp", "7"))
    assert (
        capsys.readouterr().err == "fleet: the timestamp of offset 3 of t-0 is null in its row: 7\n"
    )


def test_a_member_goes_on(kafka: MemoryKafka, drive: Drive):
    """On the real membership, inline."""
    kafka.produce(P0, b"d", timestamp=(1, NANOSECONDS))
    kafka.produce(P0, b"e", headers=not_utf8(b"\xff"))
    driven = drive(P0, reading="inline")
    driven.until(lambda: kafka.committed(P0)[-1:] == [5], "the records")
    assert driven.values() == [b"a", b"b", b"c", b"d", b"e"]
    told = driven.events("odd")
    assert [(e["offset"], e["field"]) for e in told] == [(3, "timestamp"), (4, "headers")]
    assert str(NANOSECONDS) in told[0]["raw"]


@pytest.mark.parametrize("reading", ["auto", "inline"])
def test_a_batch_that_the_client_cannot_unpack(kafka: MemoryKafka, drive: Drive, reading: str):
    """It is read by ranges, or its partition is stopped by name; the member waits for neither."""
    kafka.unreadable = {P0}
    driven = drive(P0, P1, reading=reading)
    driven.until(lambda: kafka.committed(P1)[-1:] == [3], "the other partition's records")
    if reading == "auto":
        driven.until(lambda: kafka.committed(P0)[-1:] == [3], "what ranges read")
        assert driven.values_of(P0) == [b"a", b"b", b"c"]
        return
    (mark,) = driven.store.stopped_partitions("g")
    assert (mark.tp, mark.offset, driven.values_of(P0)) == (P0, 0, [])
    assert "reading auto or ranges can" in mark.error


def test_an_errors_words_can_be_stored():
    """Half of a surrogate pair has no encoding: a mark, a header or a row with it would raise."""
    told = JobErrors(say=print).line(ValueError("half " + chr(0xD800)))
    assert told.encode() == rb"ValueError: half \ud800"


# --- on a real broker -----------------------------------------------------------------------


class _Raw(str):
    """A header key that is sent as these bytes."""

    __slots__ = ("raw",)

    def __new__(cls, raw: bytes) -> "_Raw":
        made = super().__new__(cls, raw.hex())
        made.raw = raw
        return made

    def encode(self, *_: Any) -> bytes:
        """What kafka-python asks for."""
        return self.raw


JOB = """
import json, os

def process(df, context):
    if context.warm:
        return
    rows = df.select("offset", "value", "timestamp", "headers").collect()
    if any(bytes(row.value) == b"poison" for row in rows):
        raise ValueError("half a pair: " + chr(0xD800))
    told = [(r.offset, bytes(r.value).decode(), r.timestamp and r.timestamp.year,
             r.headers and [h.key for h in r.headers]) for r in rows]
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(json.dumps({"rows": told}) + "\\n")
"""


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize("reading", ["inline", "ranges"])
def test_a_real_worker_goes_on(group: Group, reading: str):
    """A topic that allows any timestamp; the poisoned one of them is put aside with its headers."""
    (group.folder / "worker_job.py").write_text(JOB)
    topic, letters = f"{group.name}-odd", f"{group.name}-letters"
    any_time = {"message.timestamp.after.max.ms": LATEST, "message.timestamp.before.max.ms": LATEST}
    new = [NewTopic(topic, 1, 1, config=any_time), NewTopic(letters, 1, 1, config=any_time)]
    for made in group.admin.create_topics(new).values():
        made.result(120)
    producer = KafkaProducer(bootstrap_servers=group.bootstrap)
    odd = [("ok", b"1"), (_Raw(b"\xff\xfe"), b"2")]
    for value, stamp, headers in (
        (b"plain", None, [("k", b"v")]),
        (b"nano", NANOSECONDS, [("k", b"v")]),
        (b"key", None, odd),
        (b"both", 2**62, odd),
        (b"poison", NANOSECONDS, odd),
        (b"negative", -5, []),
        (b"last", None, []),
    ):
        producer.send(topic, value, headers=headers, timestamp_ms=stamp, partition=0)
    producer.flush(120)
    producer.close()
    group.standbys("w1", reading=reading, topics=[topic], dead_letter_topic=letters)
    group.open(0)
    committed = lambda: any(7 in e["offsets"].values() for e in group.events("committed"))  # noqa: E731
    group.until(lambda: committed() or bool(group.events("exit")), "all records")
    read = {offset: rest for line in group.journal() for offset, *rest in line["rows"]}
    assert {offset: (value, *rest) for offset, (value, *rest) in read.items()} == {
        0: ("plain", read[0][1], ["k"]),
        1: ("nano", None, ["k"]),
        2: ("key", read[2][1], None),
        3: ("both", None, None),
        5: ("negative", 1969, None),
        6: ("last", read[6][1], None),
    }
    assert not group.events("exit")
    reader = Consumer(
        {"bootstrap.servers": group.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    try:
        reader.assign([KafkaPartition(letters, 0, 0)])
        (letter,) = reader.consume(1, 20)
        assert letter.value() == b"poison"
        told = dict(letter.headers())
        assert (told["fleet.offset"], told["fleet.timestamp"]) == (b"4", b"")
        assert rb"\ud800" in told["fleet.error"]
    finally:
        reader.close()
    if reading == "inline":
        assert "is null in its row" in group.logs()


# --- partitions take turns however small batches are ------------------------------------------


PARTITIONS = 4
EACH = 5_000
SIZE = 100
LARGE = 300_000


@pytest.mark.broker
def test_a_backlog_is_read_from_all_partitions_in_turn(broker: RunningBroker, unique: str) -> None:
    """Records that arrived a few at a time, and one that is larger than a share."""
    topic = f"turns-{unique}"
    bootstrap = broker.bootstrap_servers
    config = {"bootstrap.servers": bootstrap}
    admin = AdminClient(config)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(120)
    producer = Producer({**config, "batch.num.messages": 20, "linger.ms": 50})
    for number in range(PARTITIONS * EACH):
        value = b"x" * (LARGE if number == EACH else SIZE)
        producer.produce(topic, value, partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(120) == 0
    settings = settings_of(group_spec(topic, topics=[topic]), bootstrap=bootstrap)
    read: list[tuple[int, int]] = []
    reader = Consumer({**config, **reading_options(settings.group.worker), "group.id": topic})
    try:
        reader.assign([KafkaPartition(topic, each, 0) for each in range(PARTITIONS)])
        still = 0
        while len(read) < PARTITIONS * EACH:
            found = [m for m in reader.consume(50, 1.0) if m.error() is None]
            read += [(m.partition(), len(m.value())) for m in found]
            still = 0 if found else still + 1
            assert still < 120, f"{len(read)} records were read, and no more came"
    finally:
        reader.close()
    assert sum(size == LARGE for _, size in read) == 1
    runs = [len(list(run)) for _, run in itertools.groupby(number for number, _ in read)]
    assert max(runs) * SIZE <= 4 * 65536
    assert sorted(runs)[len(runs) // 2] * SIZE <= 65536


@pytest.mark.broker
def test_a_batch_that_unpacks_to_much_is_read(broker: RunningBroker, unique: str) -> None:
    """Packed by zstd, 88 MB are 11 KB; librdkafka's own bound for what it unpacks is lower."""
    topic, many = f"unpacks-{unique}", 880
    config = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(config)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(120)
    as_one = {"linger.ms": 5_000, "batch.size": 92_000_000, "message.max.bytes": 95_000_000}
    producer = Producer({**config, **as_one, "compression.type": "zstd"})
    for _ in range(many):
        producer.produce(topic, b"z" * 100_000)
    assert producer.flush(120) == 0
    settings = settings_of(group_spec(topic, topics=[topic]), bootstrap=broker.bootstrap_servers)
    reader = Consumer({**config, **reading_options(settings.group.worker), "group.id": topic})
    try:
        reader.assign([KafkaPartition(topic, 0, 0)])
        found = []
        while len(found) < many and (some := reader.consume(many, 30.0)):
            found += [each for each in some if each.error() is None]
            assert {e.code() for each in some if (e := each.error())} <= {KafkaError._PARTITION_EOF}
        assert len(found) == many
    finally:
        reader.close()
