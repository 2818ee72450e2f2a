"""Finding Java and the Kafka jars, with no download page and no package manager.

Problem: a broker for tests and demos should need nothing but what Fleet already depends on.
Choice: PySpark ships Apache Ivy, which resolves Apache Kafka from Maven Central once, into
~/.cache/fleet; what comes is compared with the checksums kept beside this module. Where Maven
Central cannot be reached, FLEET_KAFKA_LIBS names a folder with the jars of a Kafka
distribution (its `libs/`) and nothing is fetched; FLEET_IVY_SETTINGS names Ivy settings with a
mirror. Cost: 45 MB and 20-60 s at first use, 0.1 s to verify on later starts.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from fleet.errors import FleetError, Unreachable
from fleet.extras import pip_line
from fleet.system.home import cache_home, locked
from fleet.system.retrying import retry

KAFKA: Final = "4.3.1"
LEAST_JAVA: Final = 17
_RESOLVE_SECONDS: Final = 900.0
_SUMS: Final = "SHA256SUMS"

Say = Callable[[str], None]

# kafka-tools without its dependencies: they are Connect's and Jetty's, and only its command
# line classes are used here, which need what the broker brings anyway. log4j-slf4j-impl binds
# slf4j 1.7, without which the coordinator's log lines are lost.
_IVY_MODULE: Final = f"""<ivy-module version="2.0">
  <info organisation="fleet" module="embedded-kafka"/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconf="default->default">
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA}"/>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{KAFKA}" transitive="false"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.25.4"/>
  </dependencies>
</ivy-module>
"""


@dataclass(frozen=True, slots=True)
class Kafka:
    """Holds Java and the jars of a Kafka process."""

    java: Path
    libs: Path

    @property
    def classpath(self) -> str:
        """Every jar of the folder, as java expands it."""
        return f"{self.libs}/*"

    def has(self, artifact: str) -> bool:
        """Whether a jar of that artifact is there, e.g. `kafka-tools`."""
        return any(self.libs.glob(f"{artifact}-[0-9]*.jar"))


def find_kafka(
    *, environ: Mapping[str, str] = os.environ, cache: Path | None = None, say: Say | None = None
) -> Kafka:
    """Finds Java and the jars, and fetches them at first use; `say` reports slow steps.

    Raises FleetError where Java is missing or too old or the jars are unusable, Unreachable
    where they cannot be fetched.
    """
    java = find_java(environ)
    return Kafka(java, find_libs(java, environ=environ, cache=cache, say=say))


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """Finds a java of at least version 17: $JAVA_HOME's, else the one on PATH."""
    home = environ.get("JAVA_HOME")
    found = (
        str(Path(home, "bin", "java")) if home else shutil.which("java", path=environ.get("PATH"))
    )
    remedy = f"install Java {LEAST_JAVA} or 21 (`make deps` does on Debian) or set JAVA_HOME"
    if found is None:
        raise FleetError(f"no java on PATH: {remedy}")
    try:
        answer = subprocess.run(
            [found, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        named = f"JAVA_HOME={home} has no working bin/java" if home else f"{found} does not run"
        raise FleetError(f"{named}: {remedy}") from error
    version = java_major(answer.stderr + answer.stdout)
    if version is None or version < LEAST_JAVA:
        raise FleetError(f"{found} is Java {version or 'of unknown version'}: {remedy}")
    return Path(found)


def java_major(text: str) -> int | None:
    """The major version in the output of `java -version`: 8 for "1.8.0_402", 17 for "17.0.15"."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def find_libs(
    java: Path,
    *,
    environ: Mapping[str, str] = os.environ,
    cache: Path | None = None,
    say: Say | None = None,
) -> Path:
    """The folder with Kafka's jars; see find_kafka."""
    named = environ.get("FLEET_KAFKA_LIBS")
    if named:
        return _named_libs(Path(named))
    folder = cache or cache_home()
    libs = folder / f"kafka-{KAFKA}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f".kafka-{KAFKA}.lock"):
            wrong = damage(libs)
            if wrong is not None:
                if libs.exists() and say:
                    say(f"{libs}: {wrong}; fetching the jars again")
                _resolve(java, libs, settings=environ.get("FLEET_IVY_SETTINGS"), say=say)
    except OSError as error:
        raise FleetError(f"cannot use the cache {folder} ({error}); make it writable") from error
    return libs


def damage(libs: Path) -> str | None:
    """Checks fetched jars by their stored checksums; returns the first error, or None."""
    try:
        listed = _read_sums((libs / _SUMS).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return "no readable SHA256SUMS"
    present = {path.name for path in libs.glob("*.jar")}
    if present != set(listed):
        return f"missing or unknown jars: {', '.join(sorted(present ^ set(listed)))}"
    for name, digest in listed.items():
        if _digest(libs / name) != digest:
            return f"{name} differs from its checksum"
    return None


def _named_libs(libs: Path) -> Path:
    for artifact in ("kafka_2.13", "kafka-clients"):
        if not any(libs.glob(f"{artifact}-*.jar")):
            raise FleetError(
                f"FLEET_KAFKA_LIBS={libs} has no {artifact}-*.jar; name the libs/ folder of a "
                "Kafka 4 distribution, or unset it to fetch the jars"
            )
    return libs.absolute()


def _resolve(java: Path, libs: Path, *, settings: str | None, say: Say | None) -> None:
    """Fetches into a temporary folder, compares, writes the sums and renames."""
    if say:
        say(f"fetching Apache Kafka {KAFKA} (45 MB, once) into {libs}")
    with tempfile.TemporaryDirectory(dir=libs.parent, prefix=".resolve-") as name:
        found = fetch(java, _IVY_MODULE, Path(name), settings=settings)
        wanted = (files("fleet.broker") / _SUMS).read_text(encoding="ascii")
        (found / _SUMS).write_text(wanted, encoding="ascii")
        wrong = damage(found)
        if wrong is not None:
            raise FleetError(
                f"the fetched Kafka jars differ from those that Fleet was tested with: {wrong}. "
                "Check the mirror, or set FLEET_KAFKA_LIBS to a folder that you trust"
            )
        if libs.exists():
            shutil.rmtree(libs)
        found.rename(libs)


def fetch(java: Path, module: str, work: Path, *, settings: str | None) -> Path:
    """The folder below `work` with the jars that an Ivy module depends on.

    settings: a file with a mirror's. Raises Unreachable where Maven Central, or that, is.
    """
    (work / "ivy.xml").write_text(module, encoding="utf-8")
    argv = [
        str(java), f"-Divy.default.ivy.user.dir={work}/ivy", "-cp", str(_ivy_jar()),
        "org.apache.ivy.Main", "-ivy", f"{work}/ivy.xml", "-cache", f"{work}/cache",
        "-confs", "default",
        "-retrieve", f"{work}/libs/[artifact]-[revision](-[classifier]).[ext]",
        *(["-settings", settings] if settings else []),
    ]  # fmt: skip
    until = time.monotonic() + _RESOLVE_SECONDS

    def attempt() -> None:
        try:
            done = subprocess.run(
                argv,
                capture_output=True,
                text=True,
                timeout=max(1.0, until - time.monotonic()),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise FleetError(_unreachable(f"no answer in {_RESOLVE_SECONDS:.0f} s")) from error
        if done.returncode != 0:
            raise Unreachable(_unreachable(_reason(done.stdout + done.stderr)))

    retry("fetching Kafka's jars", attempt, on=Unreachable)
    return work / "libs"


def _unreachable(why: str) -> str:
    return (
        f"cannot fetch Apache Kafka {KAFKA} from Maven Central: {why}. Check the network (proxy: "
        "JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=...), name a mirror's Ivy settings in "
        "FLEET_IVY_SETTINGS, or set FLEET_KAFKA_LIBS to the libs/ folder of a Kafka distribution"
    )


def _reason(output: str) -> str:
    """Returns the first lines of Ivy's output that name a failure."""
    signs = (
        "unknownhost",
        "connect",
        "timed out",
        "unresolved dependency",
        "exception",
        "certif",
    )
    lines = (" ".join(line.split()) for line in output.splitlines())
    found = list(
        dict.fromkeys(line for line in lines if any(word in line.lower() for word in signs))
    )
    return "; ".join(found[:2])[:400] or "Ivy failed without a reason"


def _ivy_jar() -> Path:
    """Ivy as PySpark ships it, found without importing PySpark."""
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise FleetError(
        f"PySpark's jars/ivy-*.jar does not exist; run {pip_line('worker')}, or set "
        "FLEET_KAFKA_LIBS to the libs/ folder of a Kafka distribution"
    )


def _read_sums(text: str) -> dict[str, str]:
    """`sha256sum`'s format as {file: digest}; ValueError where it is something else."""
    pairs = [line.split(maxsplit=1) for line in text.splitlines() if line]
    return {name: digest for digest, name in pairs}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_java(argv: Sequence[str], *, timeout: float, late: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Java's to its end; FleetError `late` after `timeout` seconds."""
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=java_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise FleetError(late) from error


def java_environment() -> dict[str, str]:
    """Ours without what would add options or logging settings to Kafka's JVM.

    Java reads names of files by the locale: a path that is not ASCII needs one that has it.
    """
    drop = ("KAFKA_", "LOG4J_", "CLASSPATH", "JDK_JAVA_OPTIONS")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(drop)}
    return {**kept, "LC_ALL": "C.UTF-8"}
