"""The files of a first job: a function, its test, and what Dagster reads beside fleet.yaml.

Problem: a worker needs five more files than a fleet.yaml that only observes. Choice: `fleet new`
writes texts that run as they are. It changes no existing file but fleet.yaml, which gets the group
under `fleets:` as text, so its comments stay. The test finds its job by path, since an existing
project has its own pytest settings. Cost: a `fleets:` in one line must be split by hand.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from textwrap import indent
from typing import Any

import click
import yaml

from fleet.config.topic_patterns import topic_entry
from fleet.errors import ConfigError


def dagster_instance(state: str) -> dict[str, Any]:
    """Returns a dagster.yaml that keeps its state in that folder, also without DAGSTER_HOME."""
    return {
        "storage": {"sqlite": {"base_dir": state}},
        "local_artifact_storage": {
            "module": "dagster._core.storage.root",
            "class": "LocalArtifactStorage",
            "config": {"base_dir": state},
        },
        "compute_logs": {
            "module": "dagster.core.storage.local_compute_log_manager",
            "class": "LocalComputeLogManager",
            "config": {"base_dir": f"{state}/compute_logs"},
        },
        "concurrency": {"runs": {"max_concurrent_runs": 6}},
        "run_monitoring": {
            "enabled": True,
            "poll_interval_seconds": 30,
            "start_timeout_seconds": 180,
            "cancel_timeout_seconds": 120,
            "max_runtime_seconds": 21600,
        },
        "run_retries": {"enabled": False},
        "retention": {
            "sensor": {"purge_after_days": {"skipped": 1, "success": 7, "failure": 30}},
            "schedule": {"purge_after_days": {"skipped": 1, "success": 30, "failure": 30}},
        },
        "sensors": {"use_threads": True, "num_workers": 2},
        "telemetry": {"enabled": False},
        "nux": {"enabled": False},
    }


def dagster_yaml(state: str) -> str:
    """Returns the text of that dagster.yaml."""
    head = "# Dagster's own state, beside Fleet's. A lease resumes changes, so runs do not retry.\n"
    text: str = yaml.safe_dump(dagster_instance(state), sort_keys=False, default_flow_style=None)
    return head + text


def write_first_job(path: Path, group: str, topic: str, *, assets: bool = False) -> None:
    """Adds the group to an existing fleet.yaml, and writes the missing files beside it.

    `assets`: also the Dagster project, which workspace.yaml then names.

    Raises ConfigError if the group is declared already, or its lines do not fit the file.
    """
    from fleet.config.load import load  # noqa: PLC0415 - a demo needs none of it
    from fleet.system.home import write_whole  # noqa: PLC0415

    before = load(path, os.environ)
    if any(each.group == group for each in before.fleets):
        raise ConfigError(
            f"{path} already declares group {group}: add a `worker:` there, or name another group"
        )
    text = declared(path.read_text(encoding="utf-8"), group, topic)
    try:
        load(path, os.environ, text=text)
    except ConfigError as error:
        raise ConfigError(
            f"{path} is unchanged: with group {group} as its first fleet it would have errors:\n"
            f"{error}"
        ) from error
    write_whole(path, text)
    click.echo(f"{path}: added group {group} with a worker and mode: act")
    for name, content in files(group, path.parent.absolute(), assets=assets).items():
        target = path.parent / name
        if target.exists():
            click.echo(f"{target}: exists, unchanged")
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, content)
        click.echo(f"{target}: written")
    if assets and ASSETS_MODULE not in (path.parent / "workspace.yaml").read_text("utf-8"):
        click.echo(f"To load assets/, name the module {ASSETS_MODULE} in workspace.yaml.")
    click.echo("Next:")
    click.echo(f"  pytest {path.parent / test_of(group)}  run the job's test")
    click.echo(f"  fleet test {group:<16} call the job once, on records of its topic")
    click.echo("  fleet up                    start the workers")
    click.echo(f"  fleet logs {group:<16} print their logs")


_JOB = '''\
"""The job of group {group}: called with each batch of records."""

import logging

from pyspark.sql import functions as F

from fleet.sinks import write_parquet

log = logging.getLogger(__name__)
OUT = {out}  # all workers and Spark's executors must see this folder


def rows(df):
    """Returns what is written; df has key, value, topic, partition, offset, timestamp."""
    return df.select("partition", "offset", F.col("value").cast("string").alias("value"))


def process(df, context):
    """Runs once per batch; after it returns, Fleet commits the offsets of the batch."""
    write_parquet(rows(df), OUT, context)
    log.info("wrote %s", ", ".join(each.id for each in context.ranges) or "nothing: no records")
'''

_TEST = '''\
"""Tests the job of group {group} on a small batch, in the test's own Spark."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "jobs"))  # fleet.yaml's python_path

from {module} import rows  # noqa: E402

pytest_plugins = ["fleet.testing.plugin"]


def test_rows(fleet_batch):
    df, _context = fleet_batch([{{"value": "a"}}, {{"value": "b"}}])
    assert [row.value for row in rows(df).collect()] == ["a", "b"]
'''

_PROJECT = """\
[tool.pytest.ini_options]
pythonpath = ["jobs"]
testpaths = ["tests"]
"""

_WORKSPACE = """\
# Read by `dagster dev` in this folder.
load_from:
  - python_module: {{module_name: {module}, location_name: fleet, working_directory: .}}
"""

_FLEET = """\
- group: {group}
  mode: act
  topics: [{topic}]
  worker: {{entrypoint: "{module}:process", python_path: [jobs], protocol: classic}}
  replicas: {{min: 1, max: 4, standby: 1}}
"""

_FLEETS = re.compile(r"^fleets:[ \t]*(?:\[\])?[ \t]*(?:#.*)?(?:\n|\Z)", re.MULTILINE)
_FIRST = re.compile(r"(?:[ \t]*(?:#.*)?\n)*( *)- ")


def check_names(group: str, topic: str | None) -> None:
    """Raises ConfigError if group or topic (None: the group's name) is no such name."""
    if not 1 <= len(group) <= 249:
        raise ConfigError(f"GROUP {group!r} is no group name: use 1 to 249 characters")
    try:
        topic_entry(topic or group)
    except ValueError as error:
        if topic:
            raise ConfigError(f"--topic {topic!r} {error}") from error
        raise ConfigError(
            f"without --topic the group reads the topic {group!r}, which {error}: add --topic TOPIC"
        ) from error


def module_of(group: str) -> str:
    """Returns the job's module: the group's letters and digits."""
    name = re.sub(r"\W+", "_", group, flags=re.ASCII).strip("_").lower()
    return name if name and not name[0].isdigit() else f"job_{name}".rstrip("_")


def test_of(group: str) -> str:
    """Returns the path of the job's test, relative to fleet.yaml's folder."""
    return f"tests/test_{module_of(group)}.py"


ASSETS_MODULE = "assets.definitions"


def asset_files() -> dict[str, str]:
    """Returns path → text of the Dagster project that a team reads and edits.

    A checkout has it at its top, the wheel in `fleet.dagster`.
    """
    here = Path(__file__).parents[1]
    found = (here / "dagster" / "template", here.parent / "assets")
    folder = next(each for each in found if each.is_dir())
    return {f"assets/{each.name}": each.read_text("utf-8") for each in sorted(folder.glob("*.py"))}


def files(group: str, folder: PurePath, *, assets: bool = False) -> Mapping[str, str]:
    """Returns path → text, relative to fleet.yaml's folder, without fleet.yaml itself."""
    loaded = ASSETS_MODULE if assets else "fleet.dagster.project"
    module = module_of(group)
    out = json.dumps(str(folder / "out" / module))
    words = {"group": group.replace('"', "'"), "module": module, "out": out}
    return {
        f"jobs/{module}.py": _JOB.format(**words),
        test_of(group): _TEST.format(**words),
        "pyproject.toml": _PROJECT,
        "dagster.yaml": dagster_yaml(".fleet/dagster"),
        "workspace.yaml": _WORKSPACE.format(module=loaded),
        **(asset_files() if assets else {}),
    }


def declared(text: str, group: str, topic: str) -> str:
    """Returns fleet.yaml with that fleet as its first. Raises ConfigError without a `fleets:`."""
    fleet = _FLEET.format(group=_quoted(group), topic=_quoted(topic), module=module_of(group))
    found = _FLEETS.search(text)
    if found is None:
        raise ConfigError(
            "fleet.yaml has no line `fleets:` with fleets below it; add one, and under it these "
            "lines:"
            f"\n{fleet}"
        )
    rest = text[found.end() :]
    first = _FIRST.match(rest)
    fleet = indent(fleet, first[1] if first else "  ")
    return f"{text[: found.start()]}fleets:\n{fleet}{rest}"


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=True).replace("${", "$${")
