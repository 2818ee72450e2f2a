"""Health, readiness, metrics and status of one worker over HTTP.

/startupz: the process has read its settings and may warm, however long that takes. /livez: its
threads move, or wait for brokers that are away. /readyz: a warm standby that brokers answer, or a
holder that has committed (or found nothing to read) and whose last batch went well. Each says in
words how the worker stands and what it waits for: "no slot" is well, "ill" is not. /metrics:
Prometheus text. /status: the same facts as JSON. No secrets are in any of them. Answers come from
what the worker's threads left in memory: a store, a broker or a Spark that hangs delays none.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final

from fleet.system.listening import Listening

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Status = Callable[[], Mapping[str, Any]]
"""The worker's facts now; see `fleet.worker.slot.process`."""

_COUNTERS: Final = {
    "batches": "Batches committed.",
    "records": "Records committed.",
    "busy_seconds": "Seconds spent inside batches.",
    "lost_records": "Records that retention removed before they were read.",
    "dead_letters": "Records sent to the dead-letter topic.",
}
_GAUGES: Final = {
    "ready": "1 where the worker is a warm standby or its last batch went well.",
    "partitions": "Partitions assigned now.",
    "quarantined": "Partitions stopped because their next record cannot be processed.",
    "failing_seconds": "Seconds since when the entrypoint fails for all it is given; else 0.",
    "last_commit_timestamp_seconds": "Wall time of the last commit.",
}
_PROBES: Final = {"/startupz": None, "/livez": "live", "/readyz": "ready"}
"""Path of a probe → the fact that it asks for; None: that it is answered at all."""


def in_words(facts: Mapping[str, Any]) -> str:
    """How a worker stands, in a line: its condition, its slot, what is wrong, what it waits for."""
    said = str(facts["condition"])
    if facts.get("slot") is not None:
        said += f" (slot {facts['slot']})"
    if facts.get("error"):
        said += f": {facts['error']}"
    if facts.get("doubt"):
        said += f": {facts['doubt']}"
    if facts.get("waits_for"):
        said += f"; waits for {facts['waits_for']}"
    return " ".join(said.split())


class _Collector:
    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> "Iterator[Metric]":
        """Families made from the status at the time of the scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

        facts = self._status()
        names = ("cluster", "group", "worker", "revision")
        labels = [str(facts[name]) for name in names]
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"fleet_worker_{name}", text, labels=names)
            counter.add_metric(labels, float(facts[name]))
            yield counter
        for name, text in _GAUGES.items():
            if facts.get(name) is not None:
                gauge = GaugeMetricFamily(f"fleet_worker_{name}", text, labels=names)
                gauge.add_metric(labels, float(facts[name]))
                yield gauge
        phase = GaugeMetricFamily(
            "fleet_worker_phase", "1 for the phase the worker is in.", labels=(*names, "phase")
        )
        phase.add_metric([*labels, str(facts["phase"])], 1.0)
        yield phase


class StatusServer(Listening):
    """Serves one worker's status until the process ends."""

    def __init__(self, address: str, status: Status) -> None:
        handler = _handler(status)
        remedy = "write host:port, port 0 for a free one"
        super().__init__(address, handler, key="worker.http", remedy=remedy)


def _exposition(status: Status) -> bytes:
    """Prometheus text; who is never scraped does not load its library."""
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415

    registry = CollectorRegistry()
    registry.register(_Collector(status))
    return generate_latest(registry)


def _handler(status: Status) -> type[BaseHTTPRequestHandler]:
    class StatusHandler(BaseHTTPRequestHandler):
        # Who connects and says nothing would keep a thread and a file of the worker for good.
        timeout = 30

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, _exposition(status), "text/plain; version=0.0.4")
                return
            facts = status()
            if path == "/status":
                self._answer(200, json.dumps(facts, default=str).encode(), "application/json")
            elif path in _PROBES:
                fact = _PROBES[path]
                good = fact is None or bool(facts[fact])
                told = f"{'ok' if good else 'no'}: {in_words(facts)}\n"
                self._answer(200 if good else 503, told.encode(), "text/plain")
            else:
                self._answer(404, f"{' '.join(_PROBES)} /metrics /status\n".encode(), "text/plain")

        def _answer(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Probes are no events."""

    return StatusHandler
