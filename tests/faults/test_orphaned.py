"""A partition that a cooperative rebalance leaves without an owner gets one by itself.

It is provoked by a death between the two rounds: the first one is complete, the member that has
to give partitions up still has its batch in hand, so that its rejoin, which would bring the
second round, never comes. Its static successor is let in without a rebalance (KIP-345).
"""

import time
from dataclasses import replace

import pytest
from confluent_kafka import ConsumerGroupState

from tests.conftest import RunningBroker
from tests.support.kafka_tools import generations
from tests.worker.conftest import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

BATCH_SECONDS = 8.0


def test_a_death_between_the_two_rounds(group: Group, broker: RunningBroker):
    """Two partitions are nobody's until an owner has them asked for; then all is processed."""
    group.standbys(
        "w1",
        "w2",
        "w3",
        env={"SECONDS_EACH": f"{BATCH_SECONDS:g}"},
        assignor="cooperative-sticky",
        heartbeat_interval="500ms",
        batch={"max_wait": "100ms"},
    )
    group.open(0)
    first = str(group.slot(0).owner)
    group.produce(40)
    group.until(lambda: bool(group.journal()), "a batch in hand")
    group.change_targets(
        lambda targets: replace(targets, open=frozenset({0, 1}), open_at=time.time() + 0.5)
    )
    group.until(lambda: owned(group) == [0, 2], "the first round")
    group.processes[first].kill()
    before = max(generations(broker.broker, group.name))

    group.until(lambda: group.slot(0).owner not in {None, first}, "a successor")
    group.until(lambda: owned(group) == [0, 2], "nobody to have two partitions")
    since = time.monotonic()
    group.until(lambda: bool(group.events("orphans")), "it to be seen")
    print(f"asked for a rebalance {time.monotonic() - since:.0f} s after the successor was there")
    (seen,) = group.events("orphans")
    assert len(seen["partitions"]) == 2
    group.until(lambda: owned(group) == [2, 2], "an owner of each")
    group.until(group.all_committed, "all records to be committed")
    cost = max(generations(broker.broker, group.name)) - before
    print(f"it cost {cost} rebalances")
    assert 1 <= cost <= 4


def owned(group: Group) -> list[int]:
    """How many partitions each member of the Stable group has; [] where it is not Stable."""
    (answer,) = group.admin.describe_consumer_groups([group.name]).values()
    found = answer.result(120)
    if found.state is not ConsumerGroupState.STABLE:
        return []
    return sorted(len(m.assignment.topic_partitions) if m.assignment else 0 for m in found.members)
