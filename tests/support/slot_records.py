"""What workers write of themselves, as values: a test says only what matters to it."""

from typing import Any

from fleet.slots import WorkerReport


def report_of(worker: str, group: str = "g", **fields: Any) -> WorkerReport:
    """Of a warm standby of revision r1."""
    usual: dict[str, Any] = {
        "revision": "r1",
        "phase": "standby",
        "slot": None,
        "counter": 1,
        "http_port": None,
    }
    return WorkerReport(worker=worker, group=group, **{**usual, **fields})
