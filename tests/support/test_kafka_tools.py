"""The judge itself: Kafka's tools are read right."""

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.broker import Broker
from tests.support.kafka_tools import (
    DUMP,
    assignment_epochs,
    consumer_group_command,
    dump_group_records,
    generations,
    group_epochs,
    parse_dump,
    parse_table,
    partition_of,
)
from tests.support.tool_server import ToolServer


@pytest.mark.parametrize(
    ("group", "code"),
    [
        pytest.param("hello", 99162322, id="ascii"),
        pytest.param("", 0, id="empty"),
        pytest.param("polygenelubricants", 0, id="least-integer"),
    ],
)
def test_partition_is_javas_hash(group, code) -> None:
    """String.hashCode, made positive; the one value without a positive counts as 0."""
    assert partition_of(group, 2**31) == code
    assert 0 <= partition_of(group, 50) < 50


def test_dump_is_parsed() -> None:
    """Records, tombstones and lines that are neither."""
    text = (
        "Dumping x.log\nLog starting offset: 0\n"
        "baseOffset: 0 lastOffset: 0 count: 1 CreateTime: 5 size: 105 magic: 2\n"
        "| offset: 7 CreateTime: 5 keySize: 13 valueSize: 24 sequence: 0 headerKeys: [] key: "
        '{"type":"2","data":{"group":"g payload: key: "}} payload: {"version":"3","data":'
        '{"generation":4}}\n'
        "| offset: 8 CreateTime: 6 keySize: 13 valueSize: -1 sequence: 3 headerKeys: [] key: "
        '{"type":"3","data":{"groupId":"h"}} payload: <DELETE>\n'
        "| offset: 9 CreateTime: 6 keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] "
        "endTxnMarker: COMMIT coordinatorEpoch: 0\n"
    )
    first, second = parse_dump(text)
    assert (first.offset, first.timestamp, first.type, first.version) == (7, 5, 2, 3)
    assert first.group == "g payload: key: "
    assert first.value == {"generation": 4}
    assert (second.type, second.group, second.value, second.version) == (3, "h", None, None)


def test_table_is_parsed() -> None:
    """The coordinator is one column; remarks are no rows."""
    text = (
        "\nGROUP           COORDINATOR (ID)          ASSIGNMENT-STRATEGY  STATE    #MEMBERS\n"
        "g               127.0.0.1:23603  (1)      range                Stable   1\n \n"
        "Consumer group 'g' has no active members.\n"
    )
    assert parse_table(text) == [
        {
            "GROUP": "g",
            "COORDINATOR(ID)": "127.0.0.1:23603(1)",
            "ASSIGNMENT-STRATEGY": "range",
            "STATE": "Stable",
            "#MEMBERS": "1",
        }
    ]


def joined(bootstrap: str, topic: str, name: str, protocol: str) -> tuple[str, Consumer]:
    """A static member of a group, with both records of the topic.

    Of another group where a heartbeat of KIP-848 was sent twice, as on a busy machine: the member
    that the first one made has the instance id, and librdkafka gives up (UNRELEASED_INSTANCE_ID).
    """
    for turn in range(5):
        group = f"{name}-{turn}"
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.instance.id": f"{group}-0",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.subscribe([topic])
        errors = [error for _ in range(2) if (error := unread(consumer))]
        if not errors:
            return group, consumer
        consumer.close()
    raise AssertionError(f"{name}: {errors}")


def unread(consumer: Consumer) -> str | None:
    """Why the next record is not read; None where it is."""
    message = consumer.poll(60)
    return "nothing for 60 s" if message is None else str(message.error() or "") or None


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_on_a_real_broker(broker, unique, protocol) -> None:
    """A static member joins, commits and goes: the records say so in order."""
    topic = f"t-{unique}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(timeout=120)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for partition in (0, 1):
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(120) == 0
    group, consumer = joined(broker.bootstrap_servers, topic, f"g-{unique}", protocol)
    try:
        consumer.commit(asynchronous=False)
        rows = consumer_group_command(
            broker.broker, "--describe", "--group", group, "--members", "--verbose"
        )
        assert [(row["GROUP-INSTANCE-ID"], row["#PARTITIONS"]) for row in rows] == [
            (f"{group}-0", "2")
        ]
        if protocol == "classic":  # the other tables look the same for both
            check_other_tables(broker.broker, group)
    finally:
        consumer.close()
    records = dump_group_records(broker.broker, group)
    assert {record.group for record in records} == {group}
    assert [record.offset for record in records] == sorted(record.offset for record in records)
    commits = [record for record in records if record.type == 1]
    assert {record.key["partition"] for record in commits} == {0, 1}
    if protocol == "classic":
        assert generations(broker.broker, group)[:2] == [0, 1]
    else:
        assert group_epochs(broker.broker, group) == assignment_epochs(broker.broker, group)
        assert len(assignment_epochs(broker.broker, group)) == 1


def check_other_tables(broker: Broker, group: str) -> None:
    """Offsets, state, the list of groups, and the answer for a group that is not there."""
    offsets = consumer_group_command(broker, "--describe", "--group", group)
    assert [row["LAG"] for row in offsets] == ["0", "0"]
    state = consumer_group_command(broker, "--describe", "--group", group, "--state")
    assert state[0]["STATE"] == "Stable"
    assert {"GROUP": group} in consumer_group_command(broker, "--list")
    assert consumer_group_command(broker, "--describe", "--group", f"no-{group}") == []


@pytest.mark.broker
def test_what_ends_a_tool_is_told_and_the_next_one_works(tmp_path) -> None:
    """As a file that is no segment; the tool itself ends its JVM then."""
    server = ToolServer()
    try:
        with pytest.raises(AssertionError, match="no-number"):
            server.ask(DUMP, "--files", str(tmp_path / "no-number.log"))
        segment = tmp_path / "00000000000000000000.log"
        segment.write_bytes(b"")
        for _ in range(2):
            assert segment.name in server.ask(DUMP, "--files", str(segment))
    finally:
        server.close()
