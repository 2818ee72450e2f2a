"""The history on a cluster: kill -9, a cluster that gives nothing, a disk that is not shared."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, materialize

from fleet.dagster.history_assets import build_history_assets
from fleet.dagster.resources import FleetResource
from fleet.history.tables import Tables
from fleet.system.ports import on_free_ports
from tests.history.test_exactly_once import KILLS, MORE, broker, fill, held, run, scan
from tests.spark_cluster.conftest import Elsewhere
from tests.support.spark_cluster import (
    HOME,
    ROOT,
    Standalone,
    application_of,
    connect_server,
    serving,
    standalone,
)

__all__ = ["broker"]

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

IMPATIENT = """
import sys
from fleet import cli
from fleet.manager import history_session as recording

recording._TASK_SECONDS = 4.0
if sys.argv[1] == "trusting":
    recording.LazySpark._cores = lambda *_: 2
sys.exit(cli.run(["history", "sync", "-o", "json"]))
"""


@pytest.fixture
def home(broker: Any, tmp_path: Path) -> Path:
    """A fleet.yaml of that broker."""
    declare(tmp_path, broker, "shared")
    return tmp_path


def declare(home: Path, broker: Any, spark: str, **more: Any) -> None:
    """fleet.yaml with its history section."""
    history = {"interval": "1s", "spark": spark, **more}
    cluster = {"name": "main", "bootstrap_servers": broker.bootstrap_servers}
    lines = (f"cluster: {json.dumps(cluster)}", f"history: {json.dumps(history)}")
    (home / "fleet.yaml").write_text("\n".join(lines) + "\n")


def impatient(home: Path, how: str = "asking") -> "subprocess.CompletedProcess[str]":
    """`fleet history sync`, which waits seconds for an executor where it else waits a minute."""
    return subprocess.run(
        [sys.executable, "-c", IMPATIENT, how],
        env={
            **os.environ,
            "FLEET_CONFIG": str(home / "fleet.yaml"),
            "FLEET_HOME": str(home / "home"),
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_killed_at_any_step_on_a_cluster(
    elsewhere: Elsewhere, token: str, broker: Any, unique: str, home: Path
):
    """As on one machine: no row is lost or twice, and one quiet local run has the same."""
    fill(broker.bootstrap_servers, unique, generations=6, commits=200)
    for number, (at, times) in enumerate((*KILLS, *MORE)):
        done = run(home, elsewhere.url, at, times, batch=1_000)
        assert done.returncode == -9, (at, done.returncode, done.stderr)
        commits, _, events = held(Tables(home / "home" / "history"))
        real, _, every = scan(broker.bootstrap_servers)
        assert all(commits[key] <= real[key] for key in commits), f"twice after {at}"
        assert len(set(events)) == len(events)
        assert set(events) <= set(every)
        if number % 3 == 1:  # else there is nothing left for the last ones to be killed in
            fill(broker.bootstrap_servers, f"{unique}-{number}", generations=3, commits=100)
    quiet = home / "quiet"
    for _ in range(5):  # a coordinator that loaded these records removes their members meanwhile
        found = _answered(run(home, elsewhere.url))
        local = _answered(run(home, "local[2]", batch=1_000_000, path=quiet))
        whole = scan(broker.bootstrap_servers)
        tables = Tables(home / "home" / "history")
        if local["positions"] == found["positions"] and held(tables) == whole:
            break
    assert held(tables) == whole == held(Tables(quiet))
    assert tables.rebalances() == Tables(quiet).rebalances()
    assert application_of(elsewhere.cluster)["name"] == "fleet"


def _answered(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_dagsters_run_is_the_clusters_too(
    elsewhere: Elsewhere, token: str, broker: Any, unique: str, home: Path
):
    """The asset's process reads the same fleet.yaml; no Spark of its own is started for it."""
    fill(broker.bootstrap_servers, unique, generations=2, commits=50)
    declare(home, broker, elsewhere.url)
    config, state = home / "fleet.yaml", home / "home"
    with DagsterInstance.ephemeral() as instance:
        done = materialize(
            [build_history_assets(FleetResource(config=str(config), home=str(state)))],
            instance=instance,
        )
    assert done.success
    told = {e.asset_key.path[-1]: e for e in done.get_asset_materialization_events()}
    rows = told["commits"].materialization.metadata["dagster/row_count"].value
    assert rows == Tables(state / "history").rows()["commits"] > 0
    assert not (state / "spark").exists()


def test_where_nothing_answers_it_says_so(broker: Any, unique: str, home: Path):
    """No server, and a token in the file; neither is tried for long."""
    fill(broker.bootstrap_servers, unique, generations=1, commits=10)
    nowhere = "sc://127.0.0.1:1"
    declare(home, broker, nowhere)
    done = impatient(home)
    assert done.returncode == 1
    assert f"Spark at {nowhere} does not answer within 30 s" in done.stderr
    assert "does a Spark Connect server run there, and may this machine reach it?" in done.stderr
    declare(home, broker, f"{nowhere}/;token=of-somebody")
    done = impatient(home)
    assert done.returncode == 2
    assert "fleet.yaml:2: history.spark: holds a token" in done.stderr
    assert "of-somebody" not in done.stderr
    declare(home, broker, nowhere)
    done = run(home, f"{nowhere}/;token=of-somebody")
    assert done.returncode == 2
    assert f"--spark {nowhere} holds a token" in done.stderr
    assert "of-somebody" not in done.stderr


def test_a_cluster_without_executors(
    token: str, broker: Any, unique: str, home: Path, tmp_path: Path
):
    """Its server answers, and no task runs: said in time, nothing written; a node, and it goes."""
    fill(broker.bootstrap_servers, unique, generations=2, commits=50)
    with (
        standalone(tmp_path / "cluster", nodes=0) as cluster,
        connect_server(cluster, token=token) as url,
    ):
        declare(home, broker, url, batch_timeout="10s")
        done = impatient(home)
        assert done.returncode == 1
        assert "scheduled no task within 4 s" in done.stderr, done.stderr
        done = impatient(home, "trusting")
        assert done.returncode == 1
        assert "offsets within 10 s (history.batch_timeout), so Fleet interrupted it" in done.stderr
        assert Tables(home / "home" / "history").manifest() is None
        cluster.add_node()
        cluster.wait_ready()
        declare(home, broker, url)
        _answered(run(home, url))
        (commits, _, events), (real, _, every) = (
            held(Tables(home / "home" / "history")),
            scan(broker.bootstrap_servers),
        )
        assert {key: commits[key] for key in commits if unique in key[0]} == {
            key: real[key] for key in real if unique in key[0]
        }
        assert set(events) <= set(every)


@pytest.fixture
def own_disk(tmp_path: Path, home: Path) -> Iterator[Standalone]:
    """A cluster of one node, on which the tables' folder is another disk."""
    tables = home / "home" / "history"
    tables.mkdir(parents=True)
    own = ["unshare", "--mount", "mount", "-t", "tmpfs", "own", str(tables)]
    if not shutil.which("unshare") or subprocess.run(own, check=False).returncode:
        pytest.skip("this needs a mount namespace: run it as root")
    with standalone(tmp_path / "cluster", nodes=0) as cluster:
        cluster.add_node(own_disk=tables)
        cluster.wait_ready()
        yield cluster


def test_executors_with_a_disk_of_their_own_lose_nothing_silently(
    own_disk: Standalone, token: str, broker: Any, unique: str, home: Path
):
    """Spark says that all is written; the run says where it is not, and the positions stay."""
    fill(broker.bootstrap_servers, unique, generations=2, commits=50)
    with connect_server(own_disk, token=token) as url:
        done = run(home, url)
    assert done.returncode == 1, done.stdout
    assert "finds only 0 of them" in done.stderr, done.stderr
    assert Tables(home / "home" / "history").manifest() is None


def test_the_tasks_are_the_executors_by_sparks_own_account(
    broker: Any, unique: str, home: Path, tmp_path: Path
):
    """A server that Spark itself starts, with its page on, on machines without Fleet."""
    fill(broker.bootstrap_servers, unique, generations=2, commits=50)
    with standalone(tmp_path / "cluster", nodes=2) as cluster:
        pages = []

        def serve(port: int, page: int) -> AbstractContextManager[str]:
            settings = {
                "spark.connect.grpc.binding.port": str(port),
                "spark.driver.memory": "700m",
                "spark.driver.host": cluster.host,
                "spark.ui.port": str(page),
                "spark.port.maxRetries": "0",
            }
            given = [w for key, value in settings.items() for w in ("--conf", f"{key}={value}")]
            started = [
                *(str(HOME / "bin" / "spark-submit"), "--master", cluster.url, "--name", "theirs"),
                *(*given, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                "spark-internal",
            ]
            environ = {**cluster.environ, "SPARK_LOCAL_DIRS": str(tmp_path)}
            pages.append(page)
            return serving(cluster, started, environ, port)

        with on_free_ports("their server", serve, count=2, host=cluster.host) as url:
            page = pages[-1]
            application = application_of(cluster)
            assert application["name"] == "theirs"

            def tasks() -> dict[str, int]:
                asked = f"http://{cluster.host}:{page}/api/v1/applications/{application['id']}"
                with urllib.request.urlopen(f"{asked}/executors", timeout=10) as answer:
                    return {each["id"]: each["totalTasks"] for each in json.load(answer)}

            before = tasks()
            declare(home, broker, url)
            found = _answered(run(home, url))
            after = tasks()
    assert found["added"]["commits"] > 0
    assert after["driver"] == 0
    assert sum(after.values()) > sum(before.values())
    assert len(after) == 3
