"""Writes events as lines on stderr and, if requested, as JSON lines for tests.

`FLEET_EVENTS` names a file to which events are appended whole (docs/contributing/protocol.md 5.2):
assigned, revoked, lost, batch, committed, phase, exit, each with the wall time, worker and slot.
`-` is standard output, for a container, whose log holds both. Telling never raises: a full disk
or a closed pipe must end no thread that holds a lease or a membership [40]; what cannot be told
is not told.
"""

import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from fleet.clock import Clock
from fleet.config.settings import WorkerSettings
from fleet.config.spec import ClassicWorker, Worker
from fleet.kafka_source.login import References, references
from fleet.security import client_config

# Writes a job's log records to its worker's log.
#
# Problem: without a handler Python drops `log.info` of a job, and prints warnings without a time.
# Choice: one handler on the root logger writes each record as a line of the worker, with the level
# and the job's logger name; `worker.log_level` is the root's level. Libraries that log every call
# stay at WARNING unless the job sets another level. Cost: a job that configures logging itself
# (`basicConfig(force=True)`) writes past it.


_TALKATIVE: Final = (
    *("botocore", "boto3", "grpc", "kafka", "kubernetes", "numba", "parso", "py4j", "pyspark"),
    *("s3transfer", "urllib3", "asyncio", "httpx", "httpcore", "fsspec"),
)


class _Told(logging.Handler):
    """Hands each record on; one that cannot be formatted is left out."""

    def __init__(self, tell: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """Hands one record on."""
        with contextlib.suppress(Exception):
            self._tell(record)


def catch_job_logs(level: str, *, say: Callable[[str], None]) -> None:
    """Makes the root logger write through `say`; once per process."""
    root = logging.getLogger()
    root.handlers[:] = [each for each in root.handlers if not isinstance(each, _Told)]
    plain = logging.Formatter()
    root.addHandler(_Told(lambda r: say(f"{r.levelname} {r.name}: {plain.format(r)}")))
    root.setLevel(level.upper())
    for name in _TALKATIVE:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(max(logging.WARNING, root.level))


VARIABLE: Final = "FLEET_EVENTS"
_STDOUT: Final = "-"
_UNTOLD: Final = (OSError, ValueError, AttributeError)
"""Errors of a write without an effect: no space, no reader, a closed stream, or none (None)."""


def list_names(things: Sequence[object]) -> str:
    """Returns at most twelve of the names, for a line that people read."""
    return ", ".join(map(str, things[:12])) + (", …" if len(things) > 12 else "")


class Events:
    """Writes what happens in a worker; thread-safe."""

    def __init__(self, *, worker: str, clock: Clock, environ: Mapping[str, str]) -> None:
        self._worker = worker
        self._clock = clock
        self._path = environ.get(VARIABLE)
        self._lock = threading.Lock()
        self._last_said: dict[str, float] = {}

    def log(self, sentence: str) -> None:
        """Writes one line for people."""
        at = datetime.fromtimestamp(self._clock.now(), UTC).isoformat(timespec="milliseconds")
        with self._lock, contextlib.suppress(*_UNTOLD):
            sys.stderr.write(f"{at.replace('+00:00', 'Z')} {self._worker}: {sentence}\n")
            sys.stderr.flush()

    def log_rarely(self, sentence: str, *, every: float = 30.0, key: str | None = None) -> None:
        """Writes a line of one kind at most once per `every` seconds, for lasting errors."""
        now, key = self._clock.monotonic(), key or sentence
        last = self._last_said.get(key)
        if last is None or now - last >= every:
            if len(self._last_said) > 100:
                self._last_said.clear()
            self._last_said[key] = now
            self.log(sentence)

    def librdkafka_logger(self) -> logging.Logger:
        """Returns a logger for librdkafka's own lines, which are rate-limited."""
        logger = logging.Logger("librdkafka", logging.WARNING)  # noqa: LOG001 - nobody else's
        logger.addHandler(
            _Told(
                lambda record: self.log_rarely(
                    f"librdkafka: {record.getMessage()[:300]}", key="librdkafka"
                )
            )
        )
        return logger

    def emit(self, event: str, **facts: Any) -> None:
        """Writes one JSON event, if events are requested."""
        if self._path is None:
            return
        told = {"at": self._clock.now(), "worker": self._worker, "event": event, **facts}
        line = json.dumps(told, separators=(",", ":")) + "\n"
        with contextlib.suppress(*_UNTOLD):
            self._write(line, self._path)

    def report_odd_field(self, odd: Any) -> None:
        """Reports a field that Spark gets as null (`kafka_source.columns.UnreadableField`)."""
        self.log_rarely(str(odd), key=f"odd {odd.field}")
        self.emit("odd", **odd._asdict())

    def _write(self, line: str, path: str) -> None:
        if path == _STDOUT:
            with self._lock:
                sys.stdout.write(line)
                sys.stdout.flush()
            return
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """What every part of one worker's process needs."""

    settings: WorkerSettings
    """They declare a worker."""
    name: str
    clock: Clock
    events: Events
    stop: threading.Event = field(default_factory=threading.Event)
    """Set once the process is asked to end."""
    secrets: frozenset[str] = frozenset()
    """Texts to remove from what a job or a library writes."""

    @property
    def group(self) -> str:
        """Returns its group's name."""
        return self.settings.group.group

    @property
    def worker(self) -> Worker:
        """Returns the `worker` section."""
        worker = self.settings.group.worker
        assert worker is not None
        return worker

    @property
    def lease(self) -> float:
        """Returns the lease in seconds."""
        return self.settings.group.runtime.lease

    @property
    def is_static(self) -> bool:
        """Whether its members have instance ids (KIP-345)."""
        return self.worker.membership == "static"

    @property
    def session_timeout(self) -> float:
        """Returns the seconds that a member may be silent."""
        return self.worker.session_timeout if isinstance(self.worker, ClassicWorker) else 60.0

    @property
    def login(self) -> References:
        """Returns where a client's options are found, without secrets."""
        return references(self.settings.cluster, self.settings.bootstrap_servers)

    @property
    def client(self) -> dict[str, Any]:
        """Returns the client options of that login, with the secrets that it refers to.

        Raises ConfigError if one is missing.
        """
        return client_config(self.settings.cluster, self.settings.bootstrap_servers, os.environ)
