"""Spark's own Structured Streaming with its Kafka source, in an environment of its own.

Problem: the connector is published later than Spark is: up to Spark 4.2.0, and Fleet runs on 4.3.
Choice: a second virtual environment under `~/.cache/fleet`, made by pip the first time (450 MB),
the connector by Spark's own Ivy; it runs `streaming.py` as a script. Cost: two versions of
Spark are compared, the only two there are for this.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import streaming
from fleet.errors import FleetError
from fleet.system.retrying import retry

VERSION: Final = "4.2.0"
CONNECTOR: Final = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{VERSION}"
_INSTALL_SECONDS: Final = 1200.0


def environment(cache: Path, say: Callable[[str], None]) -> Path:
    """The other environment's Python, installed where it is missing; FleetError where it cannot."""
    folder = cache / f"spark-{VERSION}"
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if ready.exists():
        return python
    say(f"installing Spark {VERSION} into {folder} (once, 450 MB)")
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", f"pyspark=={VERSION}"],
    ):
        retry("installing Spark", functools.partial(_install, command))
    ready.touch()
    return python


def _install(command: Sequence[str]) -> None:
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS
        )
    except (subprocess.SubprocessError, OSError) as error:
        told = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1:]
        raise FleetError(
            f"Spark {VERSION} for the comparison could not be installed: {''.join(told)}; "
            "`make bench-worker ARGS=--alone` measures without it"
        ) from error


def spark_folder(python: Path) -> Path:
    """The folder of that environment's Spark; FleetError where there is none."""
    for found in python.parents[1].glob("lib/python*/site-packages/pyspark"):
        return found
    raise FleetError(f"no PySpark in {python.parents[1]}: delete that folder, and try again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a query is given beyond what it needs."""

    options: Mapping[str, str] = field(default_factory=dict)
    """Of the Kafka source."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Of the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """What the script runs, one after the other."""

    home: Path
    bootstrap: str
    topic: str
    master: str
    """Spark's: local[*], or a cluster's address."""
    wanted: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        name: str,
        options: Mapping[str, str],
        settings: Settings | None = None,
        *,
        records: int = 0,
        seconds: float = 300.0,
    ) -> None:
        """A query until it has read `records`, or for `seconds`."""
        settings = settings or Settings()
        self.wanted.append(
            {
                "name": name,
                "options": {**options, **settings.options},
                "conf": dict(settings.conf),
                "records": records,
                "seconds": seconds,
                "checkpoint": str(self.home / "checkpoints" / str(len(self.wanted))),
            }
        )


@contextmanager
def running(python: Path, queries: Queries, *, cache: Path) -> Iterator[Iterator[dict[str, Any]]]:
    """Run the queries in turn; yields what the script tells, line by line. Ended on leaving.

    Nothing is set but what a session of its own on this machine needs: its jars, its address, and
    as much memory as Fleet's server has.
    """
    conf = {
        "spark.jars.packages": CONNECTOR,
        "spark.jars.ivy": str(cache / f"spark-{VERSION}" / "ivy"),
        "spark.driver.memory": os.environ.get("FLEET_SPARK_MEMORY") or "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    plan = {
        "conf": conf,
        "bootstrap": queries.bootstrap,
        "topic": queries.topic,
        "master": queries.master,
        "queries": queries.wanted,
    }
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SPARK_", "PYSPARK_")) and key not in {"PYTHONPATH", "VIRTUAL_ENV"}
    }
    log = queries.home / "structured.log"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [str(python), streaming.__file__, json.dumps(plan)],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**env, "PYSPARK_PYTHON": str(python)},
            text=True,
        )
    try:
        yield collect_log(process, log)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def collect_log(process: "subprocess.Popen[str]", log: Path) -> Iterator[dict[str, Any]]:
    """What the program tells of each query, to its end; FleetError where that is a bad one."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{") and line.endswith("\n"):  # else it was killed while it told
            yield json.loads(line)
    if process.wait(60):
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise FleetError(f"Structured Streaming ended with {process.returncode}: {''.join(last)}")
