"""A fresh `dg` project with two clusters and an executor of its own, as a team makes it.

It is scaffolded by the command of docs/how-to/dagster-project.md.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from fleet.demo.dagster_ui import DagsterPage
from fleet.system import processes
from fleet.system.ports import free_ports
from tests.support.needs import repository
from tests.support.waiting import until

DG = Path(sys.executable).with_name("dg")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DG.exists(), reason="no dg: run `make .venv`"),
]
PAGE = (repository() / "docs/how-to/dagster-project.md").read_text(encoding="utf-8")
(SCAFFOLD,) = re.findall(r"^dg (scaffold .*)$", PAGE, re.MULTILINE)
TYPE = "fleet.dagster.FleetComponent"
PROJECT = """
[project]
name = "shop"
version = "1"
requires-python = ">=3.11"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
"""
DEFINITIONS = """
from pathlib import Path

from dagster import Definitions, definitions, in_process_executor, load_from_defs_folder

@definitions
def defs() -> Definitions:
    loaded = load_from_defs_folder(path_within_project=Path(__file__).parent)
    return Definitions.merge(loaded, Definitions(executor=in_process_executor))
"""
FILES = {
    "pyproject.toml": PROJECT,
    "shop/__init__.py": "",
    "shop/defs/__init__.py": "",
    "shop/definitions.py": DEFINITIONS,
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The project's files, and the environment in which a person runs `dg` there."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "home").mkdir()
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("DAGSTER", "FLEET_"))},
        "PATH": f"{DG.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path),
        "HOME": str(tmp_path / "home"),
        "COLUMNS": "200",
    }


@pytest.fixture
def dg(tmp_path: Path, environ: dict[str, str]) -> Callable[..., str]:
    """Runs `dg` in the project and returns what it printed."""

    def run(*words: str) -> str:
        done = subprocess.run(
            [DG, *words],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_a_fresh_project_with_two_clusters(dg, tmp_path):
    """`dg` finds the component, scaffolds it, checks the files and loads the definitions."""
    assert TYPE in dg("list", "components")
    for cluster in ("orders", "billing"):
        dg(*SCAFFOLD.replace("kafka", cluster).split())
        folder = tmp_path / "shop" / "defs" / cluster
        text = (folder / "fleet.yaml").read_text()
        assert f"`fleet init --force --config shop/defs/{cluster}/fleet.yaml` writes" in text
        declared = yaml.safe_load(text)
        assert declared["cluster"]["bootstrap_servers"] == "broker-1:9092"
    dg("check", "yaml")
    listed = dg("list", "defs")
    for cluster in ("orders", "billing"):
        assert f"{cluster}_fleet_watch" in listed
        assert f"{cluster}/discovered_groups" in listed


@pytest.mark.long
def test_dg_dev_serves_both_clusters(dg, environ, tmp_path):
    """Whose brokers do not answer: the page shows both all the same."""
    for cluster in ("orders", "billing"):
        dg(*SCAFFOLD.replace("kafka", cluster).split())
    (port,) = free_ports(1, "127.0.0.1")
    process = processes.spawn(
        [str(DG), "dev", "--host", "127.0.0.1", "--port", str(port)],
        log=tmp_path / "dev.log",
        env={**environ, "DAGSTER_HOME": environ["HOME"]},
        cwd=tmp_path,
    )
    page = DagsterPage(f"http://127.0.0.1:{port}")
    try:
        until(page.is_loaded, "Dagster's page", picture=(tmp_path / "dev.log").read_text)
        found = page.ask("{ assetNodes { assetKey { path } } }")["assetNodes"]
        assert {each["assetKey"]["path"][0] for each in found} == {"orders", "billing"}
    finally:
        processes.end(process, grace=10.0)
