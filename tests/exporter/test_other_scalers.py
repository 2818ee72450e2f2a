"""The recipes for KEDA and an HPA, on a real Prometheus that scrapes a real exporter."""

import contextlib
import math
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from fleet.clock import SystemClock
from fleet.config.spec import ExternalScaling
from fleet.exporter import Exporter
from fleet.manager.cycle import Fleet
from fleet.manager.external_number import ExternalNumbers
from fleet.system.ports import on_free_ports
from tests.alerts.monitoring import get, process
from tests.docs.pages import blocks
from tests.support import commits
from tests.support.needs import program
from tests.support.topics import create_topic
from tests.support.waiting import until

PARTITIONS, RECORDS, COMMITTED = 12, 5, 2
WAITING = PARTITIONS * (RECORDS - COMMITTED)
FOR_EACH = 9


def trigger(kind: str, group: str) -> dict[str, str]:
    """A trigger of the page, for that group."""
    found = [yaml.safe_load(each.text) for each in blocks() if f"- type: {kind}" in each.text]
    (only,) = found[0]["triggers"]
    assert only["metricType"] == "AverageValue"
    return {k: v.replace('group="orders"', f'group="{group}"') for k, v in only["metadata"].items()}


def keda(metadata: dict[str, str], result: list[dict[str, Any]]) -> float | None:
    """What its scaler prometheus makes of a result; None: an error, and nothing is scaled."""
    if not result:
        return 0.0 if metadata.get("ignoreNullValues", "true") == "true" else None
    (only,) = result
    return float(only["value"][1])


def pods(value: float | None, current: int, *, threshold: float) -> int:
    """What an HPA makes of an external metric by AverageValue; KEDA starts the first pod."""
    if value is None:
        return current
    if current == 0:
        return 1 if value > 0 else 0
    if 0.9 <= value / (threshold * current) <= 1.1:
        return current
    return math.ceil(value / threshold)


@pytest.mark.parametrize(
    ("value", "current", "wanted"),
    [
        (4, 1, 4),
        (4, 9, 4),
        (4, 4, 4),
        (21, 20, 20),
        (12, 10, 12),
        (8, 10, 8),
        (4, 0, 1),
        (None, 7, 7),
    ],
)
def test_the_arithmetic(value: float | None, current: int, wanted: int) -> None:
    """A threshold of 1 makes the number of pods the value, but for the tolerance of a tenth."""
    assert pods(value, current, threshold=1) == wanted


@contextlib.contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Scrapes once a second; evaluates queries. Its address is an attribute."""

    @contextlib.contextmanager
    def serve(port: int) -> Iterator[str]:
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": "fleet", "static_configs": [{"targets": [target]}]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        arguments = [str(program("prometheus")), "--config.file=prometheus.yml"]
        arguments += ["--storage.tsdb.path=tsdb", f"--web.listen-address=127.0.0.1:{port}"]
        with process(arguments, folder / "prometheus.log") as running:

            def ready() -> bool:
                assert running.poll() is None, (folder / "prometheus.log").read_text()
                with contextlib.suppress(OSError):
                    return bool(get(f"http://127.0.0.1:{port}/api/v1/query?query=vector(1)"))
                return False

            until(ready, "Prometheus")
            yield f"http://127.0.0.1:{port}"

    with on_free_ports("Prometheus", serve, count=1) as address:
        yield address


@pytest.mark.prometheus
def test_a_group_that_no_fleet_declares_is_sized_by_the_recipes(broker, unique, tmp_path) -> None:
    """From its lag to a number of pods; Fleet obeys it as well. A group that is gone holds them."""
    group, topic = f"pay-{unique}", f"pays-{unique}"
    client = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
    create_topic(client, topic, PARTITIONS, records=RECORDS)
    member = Consumer({**client, "group.id": group})
    commits.commit(member, [TopicPartition(topic, n, COMMITTED) for n in range(PARTITIONS)])
    member.close()
    scaling = {"policy": "lag", "records_per_worker": FOR_EACH}
    entry = {"groups": {"allow": [f".*-{unique}"]}, "scaling": scaling}
    file = {
        "cluster": {"name": "main", "bootstrap_servers": broker.bootstrap_servers},
        "exporter": {"groups": entry["groups"], "wanted_members": [entry]},
    }
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(file))
    by_query, by_page = trigger("prometheus", group), trigger("metrics-api", group)
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(
            Fleet.open(tmp_path / "fleet.yaml", home=tmp_path / "home", clock=SystemClock())
        )
        exporter = stack.enter_context(Exporter.of(fleet, listen="127.0.0.1:0", say=lambda _: None))
        exporter.wait_for_log()
        exporter.refresh()
        address = stack.enter_context(prometheus(tmp_path, exporter.address))

        def asked() -> list[dict[str, Any]]:
            query = urllib.parse.urlencode({"query": by_query["query"]})
            answer = get(f"{address}/api/v1/query?{query}")
            assert answer["status"] == "success", answer
            return list(answer["data"]["result"])

        def by_fleet() -> Any:
            policy = {"policy": "external", "url": address, "query": by_query["query"]}
            return ExternalNumbers({}, clock=SystemClock()).ask(
                ExternalScaling.model_validate(policy)
            )

        until(asked, "a scrape with the group")
        value, threshold = keda(by_query, asked()), float(by_query["threshold"])
        assert value == WAITING / FOR_EACH == 4
        assert [pods(value, now, threshold=threshold) for now in (0, 1, 4, 9)] == [1, 4, 4, 4]
        assert by_fleet().wanted == 4
        assert at_location(by_page["valueLocation"], exporter.text()) == [4.0]

        admin = AdminClient(client)  # kept: without it the answer is never delivered
        admin.delete_consumer_groups([group])[group].result(timeout=120)
        exporter.refresh()
        until(lambda: not asked(), "a scrape without the group")
        value = keda(by_query, asked())
        assert [pods(value, now, threshold=threshold) for now in (1, 9)] == [1, 9]
        assert (by_fleet().wanted, by_fleet().why) == (None, "scaling.query finds no series")
        assert at_location(by_page["valueLocation"], exporter.text()) == []


def at_location(location: str, text: str) -> list[float]:
    """The samples that KEDA's trigger metrics-api finds in the format prometheus."""
    name, _, labels = location.rstrip("}").partition("{")
    wanted = dict(each.split("=") for each in labels.replace('"', "").split(","))
    return [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and wanted.items() <= sample.labels.items()
    ]
