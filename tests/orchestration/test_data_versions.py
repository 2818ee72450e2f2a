"""Dagster's own conditions run what is downstream of a group or topic, by its data version."""

import time
from collections.abc import Iterator

import deltalake
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetSelection,
    AutomationCondition,
    DagsterInstance,
    Definitions,
    asset,
    build_sensor_context,
    evaluate_automation_conditions,
    instance_for_test,
    materialize,
)
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from fleet.dagster import group_assets
from fleet.dagster.asset_keys import group_key, plan_key, topic_key
from fleet.dagster.change_assets import build_change_assets
from fleet.dagster.group_assets import group_version, topic_version, watermark_of
from fleet.dagster.sink_assets import build_sink_assets
from fleet.dagster.watch_sensor import watch
from fleet.lag.snapshot import Figures
from fleet.model.batch_context import BatchRange
from fleet.sinks import write_delta, write_iceberg
from tests.support.batch_parts import context_of

HOUR = 3600.0
NOON = 43_200.0


@pytest.mark.parametrize(
    ("at", "age", "moved", "undated", "passed"),
    [
        pytest.param(NOON + 60, 0.0, NOON - 5, 0, NOON, id="idle since before noon"),
        pytest.param(NOON + 2 * HOUR, 0.0, NOON - 5, 0, NOON, id="idle for hours"),
        pytest.param(NOON + 20, 0.0, NOON - 5, 0, NOON - HOUR, id="an age may be a little wrong"),
        pytest.param(NOON + 60, 90.0, NOON + 59, 0, NOON - HOUR, id="an older record waits"),
        pytest.param(NOON + 120, 60.0, NOON + 119, 0, NOON, id="younger records wait"),
        pytest.param(NOON + 60, 0.0, NOON - 5, 1, 0, id="one partition is unknown"),
        pytest.param(NOON + 60, None, NOON - 5, 0, 0, id="no age"),
    ],
)
def test_a_groups_version_is_the_hour_up_to_which_all_is_committed(at, age, moved, undated, passed):
    """It stands still while nothing is committed, and before the hour's last record is."""
    found = Figures(partitions=4, committed=9, lag=1, age=age, undated=undated, moved=moved)
    assert watermark_of(found, at=at, every=HOUR) == passed


def test_versions_as_text():
    """A topic's is its number of partitions; a pattern's that of all its topics."""
    topics = {"orders": 4, "refunds.eu": 2, "refunds.us": 3}
    assert topic_version(topics, "orders") == "4"
    assert topic_version(topics, r"^refunds\..*$") == "5"
    assert topic_version(topics, "nowhere") == "0"
    assert group_version(43_200) == "1970-01-01T12:00:00Z"


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    """Dagster's storage in a temporary folder."""
    with instance_for_test() as made:
        yield made


class Downstream:
    """A team's assets behind what Fleet observes, and the daemons that serve them."""

    def __init__(self, scene, instance, definitions) -> None:
        self.scene, self.instance, self.definitions = scene, instance, definitions
        self.sensor_cursor: str | None = None
        self.cursor = evaluate_automation_conditions(self.definitions, instance).cursor

    def ticked(self) -> set[str]:
        """One tick of the sensor, then one of the automation conditions: what these ask for."""
        context = build_sensor_context(instance=self.instance, cursor=self.sensor_cursor)
        told = watch(context, self.scene.resource)
        self.sensor_cursor = told.cursor
        for event in told.asset_events:
            self.instance.report_runless_asset_event(event)
        seen = evaluate_automation_conditions(self.definitions, self.instance, cursor=self.cursor)
        self.cursor = seen.cursor
        asked = [each.true_subset for each in seen.results if not each.true_subset.is_empty]
        for each in asked:
            if each.is_partitioned:
                assert each.expensively_compute_partition_keys() == {self.scene.managed}
        return {each.key.to_user_string() for each in asked}


@pytest.mark.broker
def test_a_commit_runs_what_is_behind_the_group_and_partitions_what_is_behind_the_topic(
    scene, instance, monkeypatch
):
    """Events without a new version run nothing: another member, or a run that observes.

    The group in mode act asks for its plan and rollout, in its own partition alone.
    """
    monkeypatch.setattr(group_assets, "MARGIN_SECONDS", 0.0)
    scene.config.write_text(f"{scene.config.read_text()}dagster: {{watermark: 1s}}\n")

    @asset(
        deps=[group_key("main", scene.plain)],
        automation_condition=AutomationCondition.any_deps_updated(),
    )
    def orders_model() -> None: ...

    @asset(
        deps=[topic_key("main", scene.topic)],
        automation_condition=AutomationCondition.any_deps_updated(),
    )
    def partitioning() -> None: ...

    topics = group_assets.build_topic_assets(scene.resource)
    observed = [*topics, *group_assets.build_group_assets(scene.resource)]
    ours = build_change_assets(scene.resource)
    made = Definitions(assets=[*observed, *ours, orders_model, partitioning])
    behind = Downstream(scene, instance, made)
    with scene.member(scene.plain):
        time.sleep(1.1)  # the second of the last commit is over
        first = {"orders_model", "partitioning", "main/plan", "main/rollout"}
        assert behind.ticked() == first, "they had no version before"
        with scene.member(scene.plain):
            assert behind.ticked() == set()
        looked = materialize(
            observed,
            selection=AssetSelection.assets(
                group_key("main", scene.plain), topic_key("main", scene.topic)
            ),
            instance=instance,
        )
        assert looked.success
        assert behind.ticked() == set()

        producer = Producer({"bootstrap.servers": scene.bootstrap})
        producer.produce(scene.topic, value="one more")
        producer.flush(60)
        deadline = time.monotonic() + 60
        while not (fired := behind.ticked()):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert fired == {"orders_model"}
        time.sleep(1.1)
        behind.ticked()  # the second of that commit is over
        assert behind.ticked() == set()

        admin = AdminClient({"bootstrap.servers": scene.bootstrap})
        admin.create_partitions([NewPartitions(scene.topic, 6)])[scene.topic].result(60)
        while not (fired := behind.ticked()):
            assert time.monotonic() < deadline
            time.sleep(0.5)
    assert fired == {"partitioning", "main/plan", "main/rollout"}
    planned = AssetMaterialization(plan_key("main"), partition=scene.managed)
    instance.report_runless_asset_event(planned)
    assert behind.ticked() == set(), "a plan that a person makes asks for no rollout"
    last = instance.get_latest_data_version_record(topic_key("main", scene.topic), is_source=True)
    assert last.asset_observation.data_version == "6"


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_commit_of_a_sink_runs_what_is_behind_its_table(
    scene, instance, monkeypatch, tmp_path, kind
):
    """Once the group has committed to Kafka too; a commit that wrote nothing runs nothing."""
    monkeypatch.setattr(group_assets, "MARGIN_SECONDS", 0.0)
    catalog = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    for name, value in catalog.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # pyiceberg reads them once
    load_catalog("lake").create_namespace("shop")
    places = {"delta": str(tmp_path / "lake"), "iceberg": "lake:shop.orders"}
    text = scene.config.read_text().replace(
        "storm: {rebalances: 1",
        f"writes: {{{kind}: {{lake/orders: '{places[kind]}'}}}}\n    storm: {{rebalances: 1",
    )
    scene.config.write_text(f"{text}dagster: {{watermark: 1s}}\n")

    @asset(
        deps=[AssetKey(["lake", "orders"])],
        automation_condition=AutomationCondition.any_deps_updated(),
    )
    def revenue() -> None: ...

    tables = [*group_assets.build_group_assets(scene.resource), *build_sink_assets(scene.resource)]
    behind = Downstream(scene, instance, Definitions(assets=[*tables, revenue]))

    def write(first: int, rows: int) -> str:
        """A batch of the job; the table's version after it."""
        place = BatchRange(
            topic=scene.topic, topic_id="t", partition=0, start=first, end=first + rows
        )
        context = context_of([place], group=scene.plain)
        batch = pa.table(
            {"topic": [scene.topic] * rows, "partition": [0] * rows}
            | {"offset": range(first, first + rows)}
        )
        if kind == "delta":
            write_delta(batch, places[kind], context)
            return str(deltalake.DeltaTable(places[kind]).version())
        write_iceberg(batch, "shop.orders", context, catalog="lake")
        return str(load_catalog("lake").load_table("shop.orders").current_snapshot().snapshot_id)

    def fired_after_commit() -> set[str]:
        producer = Producer({"bootstrap.servers": scene.bootstrap})
        producer.produce(scene.topic, value="one more", partition=0)
        producer.flush(60)
        time.sleep(1.5)  # it is committed, and the second of that commit is over
        return behind.ticked()

    with scene.member(scene.plain):
        time.sleep(1.1)
        assert behind.ticked() == set(), "there is no table"
        first = write(0, 5)
        assert behind.ticked() == set(), "the group has not committed to Kafka"
        assert fired_after_commit() == {"revenue"}
        last = instance.get_latest_materialization_event(AssetKey(["lake", "orders"]))
        assert last.asset_materialization.tags["dagster/data_version"] == first
        assert fired_after_commit() == set(), "that commit wrote nothing"
        second = write(5, 5)
        assert fired_after_commit() == {"revenue"}
        last = instance.get_latest_materialization_event(AssetKey(["lake", "orders"]))
        assert last.asset_materialization.tags["dagster/data_version"] == second != first
