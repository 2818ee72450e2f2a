"""Kafka's command-line tools, asked many times by one process.

Problem: a run of all tests asks them some hundred times, and each time more than a second of CPU
goes into starting a JVM. Choice: one JVM per test process runs the tool's own `main` for one
question after the other (java/ToolServer.java, compiled by the Janino among PySpark's jars). Cost:
a JVM of 100 MB per process, started with the first question; what the tool says on standard error
is only told where it ended its JVM.
"""

import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import IO

from fleet.broker.embedded import shared_classes
from fleet.broker.jars import find_kafka, run_java
from tests.support import janino

_ONLY_ERRORS = """<Configuration status="ERROR">
  <Appenders><Console name="err" target="SYSTEM_ERR"/></Appenders>
  <Loggers><Root level="ERROR"><AppenderRef ref="err"/></Root></Loggers>
</Configuration>
"""
_SOURCE = Path(__file__).parent / "java" / "ToolServer.java"


def run_tool(main_class: str, *args: str) -> str:
    """What the tool prints. AssertionError with what it said where it ended instead."""
    return _server().ask(main_class, *args)


def run_once(main_class: str, *args: str) -> subprocess.CompletedProcess[str]:
    """The same in a JVM of its own, which logs only errors; its exit code is the caller's."""
    kafka = find_kafka()
    with tempfile.NamedTemporaryFile("w", suffix=".xml", encoding="utf-8") as file:
        file.write(_ONLY_ERRORS)
        file.flush()
        argv = [
            str(kafka.java), *shared_classes(kafka), f"-Dlog4j2.configurationFile={file.name}",
            "-cp", kafka.classpath, main_class, *args,
        ]  # fmt: skip
        return run_java(argv, timeout=300.0, late=f"{main_class} did not end")


class ToolServer:
    """The JVM; dying.py ends it with all that a test process started (dying.py)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as this is

    def ask(self, *words: str) -> str:
        """One question at a time; a JVM that ended is started again for the next one."""
        with self._lock:
            process = self._process or self._start()
            self._process = None
            process.stdin.write("\t".join(words).encode() + b"\n")
            process.stdin.flush()
            length = process.stdout.readline()
            answer = process.stdout.read(int(length)) if length else b""
            if not length or len(answer) < int(length):
                process.wait()
                self._said.seek(0)
                raise AssertionError(f"{' '.join(words)}: {self._said.read().decode()}")
            self._process = process
            return answer.decode()

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        kafka = find_kafka()
        self._said.truncate(0)
        return subprocess.Popen(
            [
                str(kafka.java), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m",
                *shared_classes(kafka),
                "-Dlog4j2.level=OFF", "-Duser.timezone=UTC", "-cp",
                janino.class_path(kafka.classpath), janino.MAIN, str(_SOURCE), _SOURCE.stem,
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
        )  # fmt: skip


@cache
def _server() -> ToolServer:
    return ToolServer()
