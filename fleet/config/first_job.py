"""The files of a first job: a function, its test, and what Dagster reads beside fleet.yaml.

Problem: between a fleet.yaml that only looks and a worker that runs lie five files that nobody
knows by heart. Choice: texts that run as they stand, written by `fleet init --job`; a file that
is there is never touched, but for fleet.yaml, which gets the fleet under its `fleets:` as text, so
that its comments stay; the test finds its job by itself, since a project that is there already has
settings of pytest of its own. Cost: a `fleets:` that is written in one line has to be opened by
hand.
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
    """With its state in that folder: every path is spelled out, so that it holds without
    DAGSTER_HOME, too.
    """
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
    """The same as a file of a new folder."""
    head = "# Dagster's own state, beside Fleet's. Changes are resumed under a lease: no retries.\n"
    text: str = yaml.safe_dump(dagster_instance(state), sort_keys=False, default_flow_style=None)
    return head + text


def write_first_job(path: Path, group: str, topic: str) -> None:
    """Declare the group in the fleet.yaml that is there, and write what it needs beside it.

    Raises ConfigError where the group is declared already, or its lines do not fit the file.
    """
    from fleet.config.load import load  # noqa: PLC0415 - a demo needs none of it
    from fleet.system.home import write_whole  # noqa: PLC0415

    before = load(path, os.environ)
    if any(each.group == group for each in before.fleets):
        raise ConfigError(
            f"{path} declares group {group} already: give it a `worker:`, or name another group"
        )
    text = declared(path.read_text(encoding="utf-8"), group, topic)
    try:
        load(path, os.environ, text=text)
    except ConfigError as error:
        raise ConfigError(
            f"{path} is left as it is: with a job for group {group} as its first fleet it would "
            f"not be valid:\n{error}"
        ) from error
    write_whole(path, text)
    click.echo(f"{path}: group {group} with a worker, mode: act")
    for name, content in files(group, path.parent.absolute()).items():
        target = path.parent / name
        if target.exists():
            click.echo(f"{target}: is there already, left as it is")
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, content)
        click.echo(f"{target}: written")
    click.echo("Next:")
    click.echo(f"  pytest {path.parent / test_of(group)}  the job's own test")
    click.echo(f"  fleet test {group:<16} the job once, on records of its topic")
    click.echo("  fleet up                    workers start")
    click.echo(f"  fleet logs {group:<16} what they write")


_JOB = '''\
"""What group {group} does with each batch of records. Documentation: start/first-job."""

import logging

from pyspark.sql import functions as F

from fleet.sinks import write_parquet

log = logging.getLogger(__name__)
OUT = {out}  # seen by all workers, and by Spark's executors


def rows(df):
    """What is written of a batch; df has key, value, topic, partition, offset, timestamp."""
    return df.select("partition", "offset", F.col("value").cast("string").alias("value"))


def process(df, context):
    """Called once per batch; when it returns, exactly that batch's offsets are committed."""
    write_parquet(rows(df), OUT, context)
    log.info("wrote %s", ", ".join(each.id for each in context.ranges) or "nothing: no records yet")
'''

_TEST = '''\
"""The job of group {group} on a batch made by hand, in a Spark of the test's own."""

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
  - python_module: {module_name: fleet.dagster.project, location_name: fleet}
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
    """ConfigError: what was given as --job and --topic (None: the group's name) is no such name."""
    if not 1 <= len(group) <= 249:
        raise ConfigError(f"--job {group!r} is no group's name: it has 1 to 249 characters")
    try:
        topic_entry(topic or group)
    except ValueError as error:
        if topic:
            raise ConfigError(f"--topic {topic!r} {error}") from error
        raise ConfigError(
            f"--job {group!r} reads a topic of the same name where no --topic says another, and "
            f"{group!r} {error}: name the group's topic, --topic TOPIC"
        ) from error


def module_of(group: str) -> str:
    """The job's module: the group's letters and digits."""
    name = re.sub(r"\W+", "_", group, flags=re.ASCII).strip("_").lower()
    return name if name and not name[0].isdigit() else f"job_{name}".rstrip("_")


def test_of(group: str) -> str:
    """The job's test, relative to fleet.yaml's folder."""
    return f"tests/test_{module_of(group)}.py"


def files(group: str, folder: PurePath) -> Mapping[str, str]:
    """Path → text, relative to fleet.yaml's folder; fleet.yaml itself is not among them."""
    module = module_of(group)
    out = json.dumps(str(folder / "out" / module))
    words = {"group": group.replace('"', "'"), "module": module, "out": out}
    return {
        f"jobs/{module}.py": _JOB.format(**words),
        test_of(group): _TEST.format(**words),
        "pyproject.toml": _PROJECT,
        "dagster.yaml": dagster_yaml(".fleet/dagster"),
        "workspace.yaml": _WORKSPACE,
    }


def declared(text: str, group: str, topic: str) -> str:
    """fleet.yaml with that fleet as its first. ConfigError: it has no line `fleets:`."""
    fleet = _FLEET.format(group=_quoted(group), topic=_quoted(topic), module=module_of(group))
    found = _FLEETS.search(text)
    if found is None:
        raise ConfigError(
            "fleet.yaml has no line `fleets:` with its fleets below it; write these lines under it:"
            f"\n{fleet}"
        )
    rest = text[found.end() :]
    first = _FIRST.match(rest)
    fleet = indent(fleet, first[1] if first else "  ")
    return f"{text[: found.start()]}fleets:\n{fleet}{rest}"


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=True).replace("${", "$${")
