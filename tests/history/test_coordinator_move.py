"""A coordinator that moves costs no rebalance, and the replay goes on over it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.broker import Broker
from fleet.observe.group_log import partition_for
from tests.support import kafka_tools
from tests.support.coordinator_log import rounds
from tests.support.lane import Lane
from tests.support.lane_scripts import CONSUMER, RANGE

pytestmark = [pytest.mark.long, pytest.mark.slow]
SLOW = {**RANGE, "session.timeout.ms": 30_000}


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Broker]:
    """Three nodes; the offsets topic has one partition, so that one node coordinates all."""
    broker = Broker(tmp_path, brokers=3, overrides={"offsets.topic.num.partitions": "1"})
    broker.start(wait=120)
    try:
        yield broker
    finally:
        broker.purge()


def coordinator_of(lane: Lane) -> int:
    """The node that coordinates the group now."""
    found = lane.admin.list_topics("__consumer_offsets", timeout=20)
    partitions = found.topics["__consumer_offsets"].partitions
    return int(partitions[partition_for(lane.group, len(partitions))].leader)


@pytest.mark.parametrize("config", [SLOW, CONSUMER], ids=["classic", "consumer"])
def test_the_coordinator_dies_and_nothing_rebalances(three: Broker, config, unique) -> None:
    topic = f"t-{unique}"
    lane = Lane(three.status().bootstrap_servers, f"g-{unique}", {topic: 6}, **config)
    lane.session(30)
    try:
        lane.step(lambda: lane.start("a"), "created", limit=60)
        lane.step(lambda: lane.start("b"), "join", limit=60)
        before = coordinator_of(lane)
        three.kill(before)
        moved_at = time.time()
        while coordinator_of(lane) == before:
            lane.run(0.5)
        lane.replay.coordinator_moved(moved_at)
        lane.run(5)
        lane.step(lambda: lane.start("c"), "join", limit=60)
        lane.step(lambda: lane.close("c"), "leave", limit=60)
        told = [str(row.cause) for row in lane.rebalances]
        assert told == lane.expected
        logs = [node.data.parent / "coordinator.log" for node in three.status().nodes]
        judged = rounds(logs, lane.group)[: len(told)]
        assert [each.number for each in judged] == [row.number for row in lane.rebalances]
        for row, judge in zip(lane.rebalances, judged, strict=True):
            assert row.cause in judge.causes()[0], (row, judge)
        dumped = [r for r in kafka_tools.dump_group_records(three, lane.group) if r.value]
        generations = {r.value["generation"] for r in dumped if r.type == 2} - {0}
        epochs = {r.value["assignmentEpoch"] for r in dumped if r.type == 6}
        assert {row.number for row in lane.rebalances} <= generations | epochs
    finally:
        lane.end()
