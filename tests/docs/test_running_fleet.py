"""Commands of docs/how-to/deploy.md and scale.md: they need workers that run (`world: workers`).

Both pages share one fleet, whose job was changed since its workers started.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.docs.pages import blocks
from tests.docs.worlds import World
from tests.support.brokers import RunningBroker

pytestmark = [pytest.mark.spark, pytest.mark.broker]

PAGES = ("docs/how-to/deploy.md", "docs/how-to/scale.md")
FLEET = """
cluster: {name: main, bootstrap_servers: "broker-1:9092"}
fleets:
  - group: orders
    topics: [orders]
    mode: act
    worker: {entrypoint: "job:process", python_path: [.], protocol: classic, spark: "SPARK"}
    replicas: {min: 1, max: 3, standby: 1}
    scaling: {policy: fixed, workers: 2}
    rollout: {bake: 2s, canary_batches: 1}
"""
JOB = "def process(df, context):\n    df.count()  # version {}\n"


@pytest.fixture
def running(
    broker: RunningBroker, spark_address: str, unique: str, tmp_path: Path
) -> Iterator[World]:
    """A reader's folder whose fleet runs."""
    group = f"orders-{unique}"
    names = {"broker-1:9092": broker.bootstrap_servers, "SPARK": spark_address, "orders": group}
    where = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(where)
    admin.create_topics([NewTopic(group, 3, 1)])[group].result(120)
    producer = Producer(where)
    for number in range(30):
        producer.produce(group, f'{{"id": {number}}}', partition=number % 3)
    producer.flush(120)
    world = World(tmp_path / "reader", names)
    world.declare(FLEET)
    (world.folder / "job.py").write_text(JOB.format(0))
    try:
        world.fleet("up", "--yes")
        yield world
    finally:
        world.fleet("down", "--purge", "--yes")


def test_commands_that_need_workers(running: World) -> None:
    """Of both pages, in order."""
    (running.folder / "job.py").write_text(JOB.format(1))
    for page in PAGES:
        found = [each for each in blocks() if each.page == page and each.world == "workers"]
        assert found, page
        for block in found:
            running.run(block)
