"""What `fleet doctor` finds on this machine.

Each check is a function that returns findings and raises nothing that a broken machine can
cause; `guarded` turns a FleetError into a FAIL that carries its sentence. The machine is here;
what needs fleet.yaml and a cluster is in checks_fleet.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from fleet.errors import FleetError
from fleet.extras import EXTRAS, installed, pip_line
from fleet.model.findings import Finding, fail, ok, warn

_LEAST_PYTHON: Final = (3, 11)
_LEAST_BYTES: Final = 500_000_000
_COMFORT_BYTES: Final = 3_000_000_000


Check = Callable[[], Iterator[Finding]]


def guarded(check: str, look: Check) -> list[Finding]:
    """The findings of a check; a FleetError on the way is one more, and a FAIL."""
    found: list[Finding] = []
    try:
        found.extend(look())
    except FleetError as error:
        found.append(fail(check, str(error)))
    return found


def python() -> Iterator[Finding]:
    """The interpreter is new enough."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] >= _LEAST_PYTHON:
        yield ok("python", f"Python {version}")
    else:
        yield fail("python", f"Python {version}", "Fleet needs Python 3.11 or newer")


def java(*, needed: bool, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Spark and the embedded broker need Java 17 or newer; who only looks does not."""
    from fleet.broker.jars import find_java

    try:
        yield ok("java", f"Java at {find_java(environ)}")
    except FleetError as error:
        if needed:
            raise
        yield warn("java", str(error), "only workers and an embedded broker here need it")


def jars(*, embedded: bool, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """The embedded broker's jars are there, or can be fetched at its first start."""
    from fleet.broker.jars import KAFKA, damage
    from fleet.system.home import cache_home

    if not embedded:
        yield ok("jars", "not needed: the cluster is not the embedded one")
        return
    named = environ.get("FLEET_KAFKA_LIBS")
    libs = Path(named) if named else cache_home() / f"kafka-{KAFKA}"
    if named:
        found = sorted(libs.glob("kafka_2.13-*.jar"))
        if found:
            yield ok("jars", f"{found[0].name} in {libs} (FLEET_KAFKA_LIBS)")
        else:
            yield fail(
                "jars",
                f"FLEET_KAFKA_LIBS={libs} holds no kafka_2.13-*.jar",
                "name the libs/ folder of a Kafka distribution, or unset it",
            )
    elif not libs.exists():
        yield warn(
            "jars",
            f"Kafka {KAFKA} is not in {libs} yet",
            "the first `fleet broker start` fetches 45 MB from Maven Central; without network set "
            "FLEET_KAFKA_LIBS",
        )
    elif (wrong := damage(libs)) is not None:
        yield warn("jars", f"{libs}: {wrong}", "the next `fleet broker start` fetches them again")
    else:
        yield ok("jars", f"Kafka {KAFKA} in {libs}")


def disk(home: Path) -> Iterator[Finding]:
    """$FLEET_HOME can be written and has room."""
    folder = next(path for path in (home, *home.parents) if path.exists())
    if not os.access(folder, os.W_OK):
        yield fail("disk", f"{folder} cannot be written", "make it writable, or set FLEET_HOME")
        return
    free = shutil.disk_usage(folder).free
    found = f"{free / 1e9:.1f} GB free at {home}"
    if free < _LEAST_BYTES:
        yield fail("disk", found, "free at least 0.5 GB, or set FLEET_HOME to another disk")
    elif free < _COMFORT_BYTES:
        yield warn("disk", found, "the embedded broker and Spark want 3 GB")
    else:
        yield ok("disk", found)


def home() -> Iterator[Finding]:
    """State can be written; a home that is not there yet is the next command's to make."""
    from fleet.system.home import fleet_home, make_home

    folder = fleet_home()
    if folder.exists():
        yield ok("home", f"{make_home(folder)} can be written")
    elif not os.access(next(each for each in folder.parents if each.exists()), os.W_OK):
        yield fail("home", f"{folder} cannot be made", "set FLEET_HOME to a folder of yours")


def packages(*, needed: bool) -> Iterator[Finding]:
    """PySpark runs the workers; Dagster is wanted, but nothing in `fleet` needs it."""
    lacks = fail if needed else warn
    for module, without, tell in (
        ("pyspark", "no workers, and no embedded broker", lacks),
        ("dagster", "no schedules, checks or history of runs", warn),
    ):
        if installed(module):
            yield ok(module, "installed")
        else:
            yield tell(module, f"not installed: {without}", pip_line(EXTRAS[module]))
