"""A fleet whose batches run on a cluster, and the history recorded there; what the master says."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.errors import Refused
from fleet.history.tables import Tables
from tests.conftest import RunningBroker
from tests.spark_cluster.conftest import TOKEN, Elsewhere
from tests.support.command import process
from tests.support.live_folders import files_below
from tests.support.spark_cluster import application_of
from tests.support.waiting import until
from tests.support.workshop import Workshop, ending, kill

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

PARTITIONS = 4
JOB = '''"""Journal first; then a function of this file, run by Spark's tasks, says where."""
import os, time
from fleet.demo.orders import write_journal
from fleet.sinks import write_parquet

VERSION = 1
SEQ = "try_cast(cast(value AS STRING) AS LONG) AS seq"


def places(batches):
    import os
    import pyarrow as pa
    try:
        import fleet
        installed = True
    except ModuleNotFoundError:
        installed = False
    for batch in batches:
        count = batch.num_rows
        yield pa.RecordBatch.from_arrays(
            [pa.array([value] * count) for value in (os.getcwd(), VERSION, installed)],
            names=["place", "version", "installed"])


def process(df, context):
    if context.warm:
        return
    write_journal(context, df.selectExpr("topic", "partition", SEQ).toArrow())
    found = df.mapInArrow(places, "place STRING, version LONG, installed BOOLEAN").distinct()
    with open(os.environ["PLACES"], "a") as out:
        for row in found.collect():
            out.write(f"{row.place} {row.version} {row.installed}\\n")
    write_parquet(df.select("topic", "partition", "offset"), os.environ["TABLE"], context)
    time.sleep(float(os.environ.get("JOB_SECONDS", "0")))
'''


class Yard:
    """A workshop whose Spark is the cluster's, and the history beside it."""

    def __init__(self, home: Path, bootstrap: str, group: str, url: str, **worker: Any) -> None:
        self.shop = Workshop(home, bootstrap, group, **worker)
        self.shop.write_code(JOB)
        self.url = url
        self.table = home / "table"
        self._places = home / "places"
        environ = {
            "FLEET_JOURNAL": str(self.shop.journal),
            "PLACES": str(self._places),
            "TABLE": str(self.table),
        }
        self.shop.declare(worker={"spark": url, "env": environ})
        self.shop.create_topic(PARTITIONS)

    def places(self) -> set[tuple[str, int, bool]]:
        """(folder in which a task ran, VERSION of the code it ran, whether it found `fleet`)."""
        found = set()
        for line in self._places.read_text().splitlines():
            place, version, installed = line.rsplit(" ", 2)
            found.add((place, int(version), installed == "True"))
        return found

    def rows(self) -> list[tuple[int, int]]:
        """(partition, offset) of the sink's table."""
        import pyarrow.dataset as ds

        table = ds.dataset(self.table, partitioning="hive").to_table(["partition", "offset"])
        return sorted(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))

    def due(self) -> list[tuple[int, int]]:
        """The same, of the topic."""
        ends = self.shop.ends()
        return sorted((tp.partition, at) for tp, end in ends.items() for at in range(end))

    def record(self, spark: str, path: Path) -> "subprocess.CompletedProcess[str]":
        """`fleet history sync`, configured in a fleet.yaml."""
        spec = yaml.safe_load(self.shop.config.read_text())
        spec["history"] = {"path": str(path), "spark": spark, "interval": "1s"}
        config = self.shop.home / "history.yaml"
        config.write_text(yaml.safe_dump(spec))
        home = self.shop.home
        return process("history", "sync", "-o", "json", home=home, FLEET_CONFIG=str(config))


@contextmanager
def yard(home: Path, broker: RunningBroker, group: str, url: str, **worker: Any) -> Iterator[Yard]:
    """Ended at the end, whatever happened."""
    made = Yard(home, broker.bootstrap_servers, group, url, **worker)
    with ending(made.shop):
        yield made


def content(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Every row of the tables, but for what was looked at, which is of its moment."""
    tables = Tables(path)
    return {
        name: sorted(tables.read(name).to_pylist(), key=str)
        for name in ("commits", "events", "rebalances", "memberships")
    }


def test_a_fleet_and_the_history_run_on_one_cluster(
    elsewhere: Elsewhere, token: str, broker: RunningBroker, unique: str, home: Path
):
    """Its batches and the history's are the cluster's work, and nothing is lost or twice."""
    application = application_of(elsewhere.cluster)
    assert application["name"] == "fleet"
    with yard(home, broker, f"there-{unique}", elsewhere.url) as made:
        made.shop.declare(replicas={"min": 2, "max": 2, "standby": 0})
        made.shop.apply()
        made.shop.produce_to(made.shop.topic, 1000)
        assert made.shop.lost_and_duplicates() == (0, 0)
        assert made.rows() == made.due()
        settings = "".join(
            f.read_text() for f in files_below(made.shop.home) if f.name == "settings.json"
        )
        assert elsewhere.url in settings
        assert TOKEN not in settings
    for place, version, installed in made.places():
        assert f"/node-0/{application['id']}/0/" in place
        assert (version, installed) == (1, False)

    for _ in range(5):  # until nothing of other tests' groups comes in between
        there = made.record(elsewhere.url, home / "there")
        assert there.returncode == 0, there.stderr
        here = made.record("local[2]", home / "here")
        assert here.returncode == 0, here.stderr
        answers = json.loads(there.stdout), json.loads(here.stdout)
        if answers[0]["positions"] == answers[1]["positions"]:
            break
    mine = Tables(home / "there").rebalances(group=made.shop.group)
    assert [each.number for each in mine][:1] == [1]
    assert content(home / "there") == content(home / "here")
    assert application_of(elsewhere.cluster)["id"] == application["id"]
    assert not (home / "spark").exists(), "no server of this home was needed"
    assert TOKEN not in (elsewhere.cluster.folder / "connect.log").read_text()


def test_kill_9_and_new_code_on_a_cluster(
    elsewhere: Elsewhere, token: str, broker: RunningBroker, unique: str, home: Path
):
    """A worker, an executor: the sink holds every record once. A roll runs the new code at once."""
    application = application_of(elsewhere.cluster)
    with yard(home, broker, f"killed-{unique}", elsewhere.url) as made:
        made.shop.apply()
        with made.shop.stream(rate=200), made.shop.fleet() as fleet:
            until(made.table.is_dir, "the first batch")
            kill(next(w.pid for w in fleet.workers(made.shop.group) if w.pid is not None))
            kill(_executor(application["id"]))
            made.shop.new_code()
            until(lambda: _rolled(made.shop), "the roll")
            until(lambda: 2 in {version for _, version, _ in made.places()}, "the new code")
        assert made.shop.lost_and_duplicates()[0] == 0
        assert made.rows() == made.due()
    executors = {place.rpartition("/")[0] for place, _, _ in made.places()}
    assert len(executors) == 2, "the master gave another executor for the killed one"


def _rolled(shop: Workshop) -> bool:
    """Refused for as long as the killed worker's slot is on its way to another."""
    try:
        shop.apply()
    except Refused as why:
        shop.say(str(why))
        return False
    return True


def _executor(application: str) -> int:
    """Its JVM, by what the node gave it to run."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"--app-id" in words and application.encode() in words:
                return int(entry.name)
    pytest.fail(f"no executor of {application}")
