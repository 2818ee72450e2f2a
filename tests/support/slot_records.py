"""What workers write of themselves, as values: a test says only what matters to it."""

from typing import Any

from fleet.model import TopicPartition
from fleet.slots import StoppedPartition, WorkerReport


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


def stopped(tp: TopicPartition, group: str = "g", *, error: str = "no") -> StoppedPartition:
    """A mark of a partition that revision r1 cannot go on with."""
    return StoppedPartition(
        group=group, tp=tp, offset=7, error=error, attempts=3, revision="r1", at=1.0
    )
