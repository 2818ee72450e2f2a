"""A topic, the exporter's configuration, and what it tells of one group."""

from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition
from prometheus_client.parser import text_string_to_metric_families

from tests.support import commits
from tests.support.topics import create_topic


@pytest.fixture
def bootstrap(broker) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def topic(bootstrap, unique) -> str:
    """Two partitions with five records each."""
    return create_topic({"bootstrap.servers": bootstrap}, f"exported-{unique}", 2, records=5)


@pytest.fixture
def config(bootstrap, unique, topic, tmp_path) -> Path:
    spec = {
        "cluster": {"name": "main", "bootstrap_servers": bootstrap},
        "exporter": {
            "interval": "1s",
            "listen": "127.0.0.1:0",
            "groups": {"allow": [f".*-{unique}"], "deny": ["denied-.*"]},
        },
        "fleets": [{"group": f"seen-{unique}", "owner": "team-a", "topics": [topic]}],
    }
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    commits.commit(client, [KafkaPartition(topic, number, offset) for number in range(2)])
    client.close()


class Scraped(dict):
    """Samples of one group by name; of many labels the sum."""

    def __init__(self, text: str, group: str) -> None:
        super().__init__()
        self.labels: dict[str, dict[str, str]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.labels.get("group", group) == group:
                    self[sample.name] = self.get(sample.name, 0.0) + sample.value
                    self.labels[sample.name] = sample.labels
