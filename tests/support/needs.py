"""What tests need beyond Python, and whether it is here.

A test names its needs by markers. Where one is missing the test is skipped and the reason says
what to do; where FLEET_REQUIRE lists the need, it fails instead, so that CI cannot pass by
skipping. A probe runs once, and only when a selected test has its marker.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from fleet.broker.jars import find_java, find_kafka
from fleet.errors import FleetError


def _broker() -> str | None:
    try:
        # Fetches the jars at first use: here, where no test's timeout runs.
        find_kafka(say=lambda text: print(text, file=sys.stderr))
    except FleetError as error:
        return str(error)
    return None


def _spark() -> str | None:
    try:
        find_java()
    except FleetError as error:
        return str(error)
    if not importlib.util.find_spec("pyspark"):
        return "no pyspark: run `make .venv`"
    from tests.support import spark_classes

    # Half of what a Spark server costs a test, made here once.
    spark_classes.prepare()
    return None


def _browser() -> str | None:
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {' and no '.join(missing)} on PATH: run `make deps`" if missing else None


def _kubernetes() -> str | None:
    if os.geteuid() != 0:
        return "a cluster of one's own needs root"
    from k8s.cluster import programs
    from tests.support import kube

    lacks = programs.missing() + programs.missing_tools()
    if lacks:
        return "; ".join(lacks)
    try:
        # Makes the images of this code, and at first use their base: no test's timeout runs here.
        kube.prepare()
    except FleetError as error:
        return str(error)
    return None


def program(*names: str) -> str | None:
    """The path of a program, under the first of its names that is on PATH."""
    return next(filter(None, map(shutil.which, names)), None)


ALERTMANAGER = ("prometheus-alertmanager", "alertmanager")
"""Debian's name and its maker's."""


def _prometheus() -> str | None:
    wanted = (("prometheus",), ("promtool",), ALERTMANAGER, ("amtool",))
    missing = [names[-1] for names in wanted if program(*names) is None]
    return f"no {' and no '.join(missing)}: run `make deps`" if missing else None


def postgres_programs() -> Path | None:
    """The folder of PostgreSQL's programs, of its newest version; Debian keeps them off PATH."""
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name)
    )
    places = os.pathsep.join([*map(str, reversed(debian)), os.environ.get("PATH", "")])
    found = [shutil.which(name, path=places) for name in ("initdb", "postgres", "psql")]
    return Path(found[0]).parent if found[0] and all(found) else None


def _postgres() -> str | None:
    return None if postgres_programs() else "no PostgreSQL: run `make deps`"


def _mounts() -> str | None:
    if os.geteuid() != 0:
        return "mounting a disk needs root"
    probe = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    )
    return None if probe.returncode == 0 else "this kernel or container refuses to mount a tmpfs"


PROBES: Mapping[str, Callable[[], str | None]] = {
    "broker": _broker,
    "spark": _spark,
    "kubernetes": _kubernetes,
    "browser": _browser,
    "prometheus": _prometheus,
    "mounts": _mounts,
    "postgres": _postgres,
}


@cache
def missing(need: str) -> str | None:
    """Why tests with this need cannot run here; None where they can."""
    return PROBES[need]()


def required(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The needs that FLEET_REQUIRE lists; ValueError where it lists an unknown one."""
    names = frozenset(
        name.strip() for name in environ.get("FLEET_REQUIRE", "").split(",") if name.strip()
    )
    unknown = sorted(names - set(PROBES))
    if unknown:
        raise ValueError(
            f"FLEET_REQUIRE lists {', '.join(unknown)}; known are {', '.join(sorted(PROBES))}"
        )
    return names


def repository() -> Path:
    """The checkout."""
    return Path(__file__).parents[2]
