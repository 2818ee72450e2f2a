"""What docs/how-to/dagster.md and docs/how-to/dagster-project.md show, done as a person would."""

import re
import subprocess
import sys

import pytest
import yaml
from dagster import AssetSelection, Definitions, define_asset_job, validate_run_config
from dagster.components.testing import create_defs_folder_sandbox

from fleet import cli
from fleet.config.first_job import dagster_instance
from fleet.dagster import (
    FleetComponent,
    FleetResource,
    asset_keys,
    build_definitions,
    group_key,
)
from tests.support.needs import repository

PAGE = "".join(
    (repository() / f"docs/how-to/{name}.md").read_text(encoding="utf-8")
    for name in ("dagster-project", "dagster")
)
FILES = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
CHECKS_CONFIG, RUN_CONFIG = re.findall(r"```yaml\n# run config\n(.*?)```", PAGE, re.DOTALL)
SHELL = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
         for line in block.splitlines()]  # fmt: skip


@pytest.fixture
def project(tmp_path):
    """The files of the page."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_project_loads_without_a_warning_of_ours(project):
    """By the `[tool.dg]` block alone; a deprecation that our code causes would be an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error:::fleet", "-m", "dagster", "definitions", "validate"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Validation successful for code location fleet." in said
    assert "WARNING" not in said
    assert "fleet/dagster" not in said, "a warning names its file"


def test_run_config_and_schedules_are_those_of_the_page(project):
    """The op's name, its config, and a schedule that runs by itself."""
    fleet = FleetResource(config=str(project / "fleet.yaml"))
    nightly = define_asset_job("nightly", AssetSelection.all_asset_checks())
    definitions = Definitions.merge(build_definitions(fleet), Definitions(jobs=[nightly]))
    checks = definitions.resolve_job_def("nightly")
    assert validate_run_config(checks, yaml.safe_load(CHECKS_CONFIG))
    job = definitions.resolve_job_def(asset_keys.definition_name("main", asset_keys.CHANGE_JOB))
    assert validate_run_config(job, yaml.safe_load(RUN_CONFIG))
    assert fleet.spec.dagster.schedules == ("reconcile",)


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(fleets:.*?)```", PAGE, re.DOTALL))
def test_lines_of_fleet_yaml_load(block, tmp_path):
    """Each alone is a file without errors, and its group is a part of the graph."""
    (tmp_path / "fleet.yaml").write_text(block)
    fleet = FleetResource(config=str(tmp_path / "fleet.yaml"))
    Definitions.validate_loadable(build_definitions(fleet))


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_attributes_of_the_component_load():
    """Those of the page, in a project of one instance."""
    (block,) = re.findall(r"```yaml\n(type:.*?)```", PAGE, re.DOTALL)
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(FleetComponent, defs_path="kafka")
        (path / "fleet.yaml").write_text(FILES["fleet.yaml"])
        (path / "defs.yaml").write_text(block)
        with sandbox.build_all_defs() as loaded:
            spec = loaded.resolve_asset_graph().get(group_key("main", "orders-enrichment"))
            assert spec.group_name == "kafka_main"


def test_an_own_dagster_yaml_keeps_ticks_as_ours_does():
    """What the page gives for it is what a new folder has."""
    own = yaml.safe_load(FILES["dagster.yaml"])
    assert own == {"retention": dagster_instance("state")["retention"]}


@pytest.mark.broker
def test_commands_of_the_page(scene, capsys, monkeypatch):
    """Each `fleet` line for a declared group, changing ones as dry runs; ID is the plan's."""
    monkeypatch.setenv("FLEET_HOME", scene.resource.home)
    known = ""
    told = []
    for line in (line for line in SHELL if line.startswith("fleet ")):
        words = line.replace("orders-enrichment", scene.managed).replace("ID", known).split()[1:]
        dry = [] if words[0] == "plan" else ["--dry-run"]
        where = ["--config", str(scene.config), "-o", "json"]
        assert cli.run([*words, *dry, *where]) == 0, capsys.readouterr()
        told.append(capsys.readouterr().out)
        known = known or re.findall(r'"id": "([^"]+)"', told[0])[0]
    assert len(told) == 4
    assert "will undo this" in told[2]
    assert "pinned for 2 h" in told[3]
