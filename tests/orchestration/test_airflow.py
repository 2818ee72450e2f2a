"""What docs/how-to/airflow.md shows, run by the shell that Airflow's operators start."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.needs import repository

PAGE = (repository() / "docs/how-to/airflow.md").read_text(encoding="utf-8")
APPLY, SCALE, WAIT = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
(DAG,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def shell(scene):
    """Runs a block for the managed group, as a task whose environment names the fleet.yaml."""
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLEET_CONFIG": str(scene.config),
        "FLEET_HOME": scene.resource.home,
    }

    def run(block: str, *, group: str = scene.managed) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-c", f"set -eo pipefail\n{block}"],
            env={**environ, "GROUP": group},
            cwd=scene.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def rewritten(scene, workers: int) -> str:
    """Line of a shell that changes what the policy wants."""
    return f"sed -i 's/workers: [0-9]*/workers: {workers}/' {scene.config}\n"


@pytest.mark.broker
def test_a_task_applies_the_plan_of_another(shell, scene):
    """Exit code 0; and 3 with the plan of now if the group has changed between the two."""
    done = shell(rewritten(scene, 0) + APPLY)
    assert done.returncode == 0, done.stderr
    before, _, apply = APPLY.rpartition("fleet apply")
    refused = shell(f"{before}{rewritten(scene, 2)}fleet apply{apply}")
    assert refused.returncode == 3, refused.stdout
    assert "so nothing was done. The plan is now" in refused.stdout + refused.stderr


@pytest.mark.broker
def test_a_task_scales_and_another_waits(shell, scene):
    """The wait fails while records wait, or nobody has ever committed."""
    scaled = shell(SCALE)
    assert scaled.returncode == 0, scaled.stderr
    assert "pinned for 2 h" in scaled.stdout
    assert shell(WAIT, group=scene.plain).returncode == 1
    with scene.member(scene.plain):
        done = shell(WAIT, group=scene.plain)
    assert done.returncode == 0, done.stderr


def test_the_dag_has_the_commands_of_the_page():
    """Airflow is not installed here: its file is Python, and runs what the shell ran."""
    assigned = {
        node.targets[0].id: node.value
        for node in ast.parse(DAG).body
        if isinstance(node, ast.Assign)
    }
    made = ast.literal_eval(assigned["ID"])
    assert f"ID='{made}'" in APPLY
    assert eval(compile(ast.Expression(assigned["PLAN"]), "dag", "eval"), {"ID": made}) == (
        f"fleet plan orders-enrichment -o json | python -c '{made}'"
    )
