"""Consumers that Fleet did not write, in three languages, as commands.

The Go one is built once into ~/.cache/fleet/clients; where modules come from is Go's own
configuration (GOPROXY).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from fleet.broker.embedded import shared_classes
from fleet.broker.jars import find_kafka
from fleet.errors import FleetError
from fleet.system.home import cache_home

_SOURCES: Final = Path(__file__).with_name("programs")
INSTANCE: Final = "{instance_id}"
Command = Callable[..., list[str]]
"""(servers, group, topic, static=…) → arguments."""


def confluent(servers: str, group: str, topic: str, *, static: bool = True) -> list[str]:
    """Confluent's Python client, which gets GROUP_INSTANCE_ID."""
    del static
    return [sys.executable, str(_SOURCES / "consumer.py"), servers, group, topic]


def java(servers: str, group: str, topic: str, *, static: bool = True) -> list[str]:
    """Kafka's own console consumer, which commits every second."""
    kafka = find_kafka()
    settings = {"auto.commit.interval.ms": "1000", "auto.offset.reset": "earliest"}
    if static:
        settings["group.instance.id"] = INSTANCE
    options = [part for each in settings.items() for part in ("--command-property", "=".join(each))]
    return [
        *(str(kafka.java), "-Xmx64m", "-XX:+UseSerialGC", *shared_classes(kafka)),
        *("-cp", kafka.classpath, "org.apache.kafka.tools.consumer.ConsoleConsumer"),
        *("--bootstrap-server", servers, "--topic", topic, "--group", group, *options),
    ]


def go(servers: str, group: str, topic: str, *, static: bool = True) -> list[str]:
    """franz-go, which reads GROUP_INSTANCE_ID and commits every second."""
    del static
    return [str(build_go()), servers, group, topic]


CLIENTS: Final[dict[str, Command]] = {"confluent-kafka": confluent, "java": java, "franz-go": go}


def build_go() -> Path:
    """Builds the Go consumer where its sources changed. FleetError where that fails."""
    target, sources = cache_home() / "clients" / "consumer", _SOURCES / "go"
    newest = max(each.stat().st_mtime for each in sources.iterdir())
    if target.exists() and target.stat().st_mtime >= newest:
        return target
    if (program := shutil.which("go")) is None:
        raise FleetError("no go on PATH: install Go 1.26 or newer")
    target.parent.mkdir(parents=True, exist_ok=True)
    _run([program, "build", "-o", f"{target}.new", "."], sources)
    Path(f"{target}.new").replace(target)
    return target


def _run(argv: Sequence[str], folder: Path) -> None:
    environ = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=readonly"}
    done = subprocess.run(
        argv, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise FleetError(f"go build failed: {done.stderr.strip()[-500:]}")
