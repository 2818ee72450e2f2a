"""A small fleet in a folder of its own, and `dagster dev` on it."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.manager.cycle import Fleet
from fleet.slots import Change, ChangeState
from tests.dagster_ui.browser import Browser, chromium
from tests.dagster_ui.served import ROOT, Served, dagster_dev
from tests.support.brokers import running_broker

GROUP = "orders-enrichment"
PLAIN = "audit-log"
TOPIC = "orders"

FLEET_YAML = f"""
cluster: {{name: main, bootstrap_servers: embedded}}
mode: act
dagster: {{watermark: 5s, schedules: []}}
fleets:
  - group: {GROUP}
    owner: team-orders
    topics: [{TOPIC}]
    writes: {{delta: {{lake/orders: lake/orders}}}}
    worker:
      entrypoint: "counting:process"
      python_path: [code]
      heartbeat_interval: 1s
      batch: {{max_wait: 1200ms, max_seconds: 2s}}
    replicas: {{min: 1, max: 4, standby: 1}}
    scaling: {{policy: fixed, workers: 2}}
    rollout: {{bake: 2s}}
    runtime: {{kind: local, lease: 5s}}
  - group: {PLAIN}
    owner: team-orders
    topics: [{TOPIC}]
"""

CODE = '''"""Writes."""

from fleet.sinks import write_delta

TABLE = "{table}"


def process(df, context):
    """Keeps the records of a batch."""
    write_delta(df.select("topic", "partition", "offset"), TABLE, context)
'''
OWN_ASSETS = """
from dagster import AssetKey, AssetSelection, define_asset_job, in_process_executor


@asset(
    deps=[AssetKey(["lake", "orders"])],
    automation_condition=AutomationCondition.any_deps_updated(),
    group_name="team_orders",
    kinds={"table"},
)
def revenue() -> None:
    \"\"\"A team's own table, made of the one that the group writes.\"\"\"


downstream.append(revenue)
nightly = define_asset_job(
    "nightly",
    AssetSelection.checks_for_assets(group_key("main", GROUP))
    | AssetSelection.assets(processed_orders),
    executor_def=in_process_executor,
)
"""
"""What the team adds to assets/sinks.py."""
EDITS = (
    ("checks.py", "_group_checks(fleet)]", '_group_checks(fleet, blocking={"freshness"})]'),
    ("definitions.py", "*history.jobs]", "*history.jobs, sinks.nightly]"),
)
"""File of assets/, what the team replaces there, and by what."""


@dataclass(frozen=True)
class Stage:
    """A folder with a fleet.yaml, its state, its embedded broker and steady input."""

    folder: Path

    @property
    def home(self) -> Path:
        """Where `fleet` in this folder keeps its state."""
        return self.folder / ".fleet"

    @property
    def table(self) -> Path:
        """The Delta table that the group writes."""
        return self.folder / "lake" / "orders"

    def write(self, schedules: str = "[]") -> None:
        """Write fleet.yaml."""
        text = FLEET_YAML.replace("lake/orders: lake/orders", f"lake/orders: {self.table}")
        text = text.replace("schedules: []", f"schedules: {schedules}")
        (self.folder / "fleet.yaml").write_text(text)

    def edit_assets(self) -> None:
        """Copy the folder `assets`, and edit it as a team does."""
        shutil.copytree(ROOT / "assets", self.folder / "assets")
        for name, old, new in EDITS:
            path = self.folder / "assets" / name
            text = path.read_text()
            assert old in text
            path.write_text(text.replace(old, new))
        with (self.folder / "assets" / "sinks.py").open("a") as file:
            file.write(OWN_ASSETS)

    def open(self) -> Fleet:
        """As the command line opens it."""
        environ = {**os.environ, "FLEET_CONFIG": str(self.folder / "fleet.yaml")}
        return Fleet.open(home=self.home, environ=environ)

    def change(self) -> Change | None:
        """The group's running or last change."""
        with self.open() as fleet:
            return fleet.store.change(GROUP)

    def is_in(self, state: ChangeState) -> bool:
        """Whether the group's last change is in this state."""
        change = self.change()
        return change is not None and change.state is state

    def serve(self) -> AbstractContextManager[Served]:
        """`dagster dev` in this folder."""
        return dagster_dev(self.folder, {"FLEET_HOME": str(self.home)})


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """An embedded broker with steady input and a plain consumer; nothing acts yet."""
    made = Stage(tmp_path_factory.mktemp("checkout"))
    (made.folder / "code").mkdir()
    (made.folder / "code" / "counting.py").write_text(CODE.format(table=made.table))
    made.write()
    made.edit_assets()
    over = threading.Event()
    with running_broker(made.home) as own:
        create_topic(own.bootstrap_servers)
        others = [
            threading.Thread(target=run, args=(own.bootstrap_servers, over))
            for run in (produce, consume)
        ]
        for thread in others:
            thread.start()
        try:
            yield made
        finally:
            over.set()
            for thread in others:
                thread.join()
            with made.open() as fleet:  # workers outlive the runs that started them
                fleet.down()


@pytest.fixture(scope="module")
def room(stage: Stage) -> Iterator[Served]:
    """The web page. No schedule runs: tests say what happens."""
    with stage.serve() as served:
        yield served


def create_topic(bootstrap: str) -> None:
    """Four partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_topics([NewTopic(TOPIC, 4, 1)]).values():
        done.result(120)


def produce(bootstrap: str, over: threading.Event) -> None:
    """Steady input, under which a pause can be measured [27]: 20 records/s in all partitions."""
    producer = Producer({"bootstrap.servers": bootstrap})
    while not over.wait(0.2):
        for partition in range(4):
            producer.produce(TOPIC, value=b"an order", partition=partition)
    producer.flush(120)


def consume(bootstrap: str, over: threading.Event) -> None:
    """Somebody else's consumer."""
    settings = {"bootstrap.servers": bootstrap, "group.id": PLAIN, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([TOPIC])
    while not over.is_set():
        consumer.poll(0.2)
    consumer.close()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One window for all tests of this folder."""
    with chromium(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """That window; a page that stayed open would go on asking Dagster all the while."""
    yield window
    window.open("about:blank")
