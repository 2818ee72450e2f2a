"""Streams groups are counted: what a real coordinator writes for one (KIP-1071)."""

from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.clock import SystemClock
from fleet.log.readers.group_log import GroupLog
from fleet.log.records import Undecoded
from fleet.log.replay.causes import Replay
from fleet.model.rebalances import Cause, Rebalance, TimeSource
from tests.support import kafka_tools
from tests.support.offsets_topic import offsets_partitions
from tests.support.streams_member import StreamsMember, settle

PARTITIONS = 4
STABLE = 1
"""A streams member's states count from 1; those of other groups' members from 0."""


@pytest.mark.broker
def test_a_streams_group_rebalances_when_members_come_and_go(broker, unique) -> None:
    """Two members come, one goes, the other goes: numbers are those of DumpLogSegments."""
    group, topic = f"streams-{unique}", f"in-{unique}"
    bootstrap = broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(120)
    offsets_partitions(bootstrap)  # made by whoever asks first, not by a streams member
    first = StreamsMember(bootstrap, group, topic)
    alone = settle([first], PARTITIONS)
    second = StreamsMember(bootstrap, group, topic)
    both = settle([first, second], PARTITIONS, after=alone)
    second.leave()
    again = settle([first], PARTITIONS, after=both)
    first.leave()

    with GroupLog({"bootstrap.servers": bootstrap}, clock=SystemClock()) as log:
        records = log.read(group, 0)
    assert not [each for each in records if isinstance(each, Undecoded)]
    kinds = Counter(each.type for each in records)
    assert {17, 19, 20, 21, 22, 23} <= kinds.keys(), kinds

    replay, rows, most = Replay("main", group), [], 0
    for record in records:
        rows += replay.feed(0, record)
        most = max(most, replay.size)
    told = {row.number: row for row in rows if isinstance(row, Rebalance)}
    dumped = kafka_tools.dump_group_records(broker.broker, group)
    epochs = [
        int(each.value["assignmentEpoch"]) for each in dumped if each.type == 20 and each.value
    ]
    assert list(told) == list(dict.fromkeys(epochs))
    assert not replay.pending()
    assert {row.protocol for row in told.values()} == {"streams"}
    assert told[epochs[0]].cause is Cause.CREATED
    assert told[both].cause is Cause.JOIN
    assert told[again].cause in {Cause.LEAVE, Cause.REMOVAL}
    for row in told.values():
        assert row.end_source is TimeSource.RECORD
        assert row.ended_at == _settled_at(dumped, row), row
    events = [(row.event, row.member_id) for row in rows if not isinstance(row, Rebalance)]
    assert events == [
        ("joined", first.member_id),
        ("joined", second.member_id),
        ("left", second.member_id),
        ("left", first.member_id),
    ]
    assert (replay.protocol, most, replay.size) == ("streams", 2, 0)


def _settled_at(dumped: list[kafka_tools.Record], row: Rebalance) -> float:
    """When the last of an assignment's members was stable at it, as Kafka decodes it."""
    members: dict[str, float | None] = {}
    for each in dumped:
        name = str(each.key.get("memberId", ""))
        if each.offset < row.log_offset:
            if each.type == 19:
                members[name] = None
                if each.value is None:
                    del members[name]
        elif each.type == 22 and each.value and name in members:
            value = each.value
            if value["state"] == STABLE and value["memberEpoch"] == row.number:
                members[name] = members[name] or each.timestamp / 1000
    ended = list(members.values())
    assert ended, row
    return max(at or float("inf") for at in ended)
