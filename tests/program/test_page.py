"""docs/how-to/any-consumer.md, as its reader follows it: program, fleet.yaml, commands."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.docs.pages import blocks
from tests.docs.worlds import World
from tests.support.kafka_tools import rebalances

pytestmark = [pytest.mark.broker, pytest.mark.long]
PAGE = "docs/how-to/any-consumer.md"


def test_the_page(broker: Any, tmp_path: Path, unique: str) -> None:
    """Two slots, a roll, a third one: two rebalances, and every record is printed."""
    topic, group = f"orders-{unique}", f"prices-{unique}"
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(120)
    producer = Producer(servers)
    for number in range(30):
        producer.produce(topic, f"record {number}", partition=number % 3)
    producer.flush(120)
    mine = [each for each in blocks() if each.page == PAGE]
    (program,) = (each.text for each in mine if each.language == "python")
    (declared,) = (each.text for each in mine if each.language == "yaml")
    names = {"broker-1:9092": broker.bootstrap_servers, "orders-prices": group}
    world = World(tmp_path, names)
    world.declare(declared.replace("[orders]", f"[{topic}]"))
    text = program.replace("orders-prices", group).replace('"orders"', f'"{topic}"')
    (tmp_path / "consumer.py").write_text(text)
    try:
        for block in mine:
            if block.run_by is not None:
                world.run(block)
        logs = "".join(each.read_text() for each in tmp_path.rglob("workers/*.log"))
    finally:
        world.fleet("down", "--purge", "--yes")
    assert rebalances(broker.broker, group) <= 4  # the first join, one more slot, the end
    assert all(f"record {number}\n" in logs for number in range(30))
