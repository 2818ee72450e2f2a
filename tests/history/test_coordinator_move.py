"""A rebalance that only the coordinator's move explains, told so from the tables.

Three brokers. A third member begins a round and is killed while it waits for a member that does
not poll; then the coordinator is killed. The next one knows nothing of that round, yet those who
were asked to rejoin do so: a generation in which nothing is different.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.broker import Broker
from fleet.history.tables import Tables
from fleet.log.records import partition_for
from fleet.model.rebalances import Cause, Confidence
from tests.support.waiting import until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.long,
]
GROUP, TOPIC = "moved", "moved-input"
MEMBER = f"""
import sys
from confluent_kafka import Consumer

member = Consumer({{"bootstrap.servers": sys.argv[1], "group.id": "{GROUP}",
                   "partition.assignment.strategy": "range"}})
member.subscribe(["{TOPIC}"])
while True:
    member.poll(0.2)
"""


@pytest.fixture
def brokers(tmp_path):
    """Three nodes."""
    cluster = Broker(tmp_path / "home", brokers=3)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.purge()


def polled_until(what: Callable[[], bool], *polled: Consumer) -> None:
    """Poll these members until it is so."""

    def so() -> bool:
        for member in polled:
            member.poll(0.1)
        return what()

    until(so, "the group")


def test_cause_is_the_move(brokers: Broker, tmp_path) -> None:
    client = brokers.status().bootstrap_servers
    admin = AdminClient({"bootstrap.servers": client})
    made = admin.create_topics([NewTopic(TOPIC, num_partitions=4, replication_factor=3)])
    made[TOPIC].result(120)
    options = {
        "bootstrap.servers": client,
        "group.id": GROUP,
        "partition.assignment.strategy": "range",
        "topic.metadata.refresh.interval.ms": 60_000,
    }
    one, other = Consumer(options), Consumer(options)
    for member in (one, other):
        member.subscribe([TOPIC])
    polled_until(lambda: len(one.assignment()) == len(other.assignment()) == 2, one, other)

    def described():
        return admin.describe_consumer_groups([GROUP])[GROUP].result(120)

    third = subprocess.Popen([sys.executable, "-c", MEMBER, client])
    try:
        polled_until(lambda: described().state.name == "PREPARING_REBALANCING", other)
        # It was asked, gave up what it had, rejoins.
        polled_until(lambda: not other.assignment(), other)
    finally:
        os.kill(third.pid, signal.SIGKILL)
        third.wait()
    brokers.kill(described().coordinator.id)
    polled_until(lambda: len(one.assignment()) == len(other.assignment()) == 2, one, other)
    brokers.start()

    (tmp_path / "fleet.yaml").write_text(
        f'cluster: {{name: main, bootstrap_servers: "{client}"}}\n'
    )
    ran = subprocess.run(
        [sys.executable, "-m", "fleet", "history", "sync", "--spark", "local[2]"],
        env={
            **os.environ,
            "FLEET_CONFIG": str(tmp_path / "fleet.yaml"),
            "FLEET_HOME": str(tmp_path / "home"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    one.close()
    other.close()
    assert ran.returncode == 0, ran.stderr
    told = Tables(tmp_path / "home" / "history").rebalances(group=GROUP)
    last = told[-1]
    assert last.cause is Cause.COORDINATOR_MOVE, told
    assert last.confidence is Confidence.LIKELY
    assert last.joined + last.left + last.replaced == ()
    assert last.log_partition == partition_for(GROUP, 50)
