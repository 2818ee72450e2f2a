"""Kafka's DumpLogSegments, asked many times by one process.

Problem: a run asks it some two hundred times, and each time more than a second of CPU goes into
starting a JVM. Choice: one JVM per test process runs the tool's own `main` for one question after
the other (java/DumpServer.java, compiled by the Janino among PySpark's jars). Cost: a JVM of 100 MB
per process, started with the first question.
"""

import os
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from fleet.broker.jars import find_kafka

_SOURCE = Path(__file__).parent / "java" / "DumpServer.java"


def dump(segments: Iterable[Path]) -> str:
    """What the tool prints of these segments of `__consumer_offsets`, in the order given.

    AssertionError with what it said on standard error where it ended instead.
    """
    return _server().ask(",".join(map(str, segments)))


class DumpServer:
    """The JVM; ended by whoever ends all that a test process started (dying.py)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as this is

    def ask(self, segments: str) -> str:
        """One question at a time; a JVM that ended is started again for the next one."""
        with self._lock:
            process = self._process or self._start()
            self._process = None
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{segments}\n".encode())
            process.stdin.flush()
            length = process.stdout.readline()
            answer = process.stdout.read(int(length)) if length else b""
            if not length or len(answer) < int(length):
                process.wait()
                self._said.seek(0)
                raise AssertionError(f"DumpLogSegments of {segments}: {self._said.read().decode()}")
            self._process = process
            return answer.decode()

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        kafka = find_kafka()
        found = find_spec("pyspark")
        assert found is not None
        assert found.submodule_search_locations
        jars = Path(next(iter(found.submodule_search_locations)), "jars")
        janino = [*jars.glob("janino-*.jar"), *jars.glob("commons-compiler-*.jar")]
        classes = os.pathsep.join([*map(str, janino), kafka.classpath])
        self._said.truncate(0)
        return subprocess.Popen(
            [
                str(kafka.java), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m",
                "-Dlog4j2.level=OFF", "-Duser.timezone=UTC", "-cp", classes,
                "org.codehaus.janino.SimpleCompiler", str(_SOURCE), _SOURCE.stem,
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
        )  # fmt: skip


@cache
def _server() -> DumpServer:
    return DumpServer()
