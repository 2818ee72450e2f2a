"""Rebalances as values: what a test does not name is plain."""

from collections.abc import Iterable
from typing import Any

from fleet.model.rebalances import Cause, Confidence, Rebalance, TimeSource


def rebalance(number: int = 1, at: float = 0.0, **changes: Any) -> Rebalance:
    """Generation `number`, complete at `at`, at the place in the log that is its number.

    Members may be given in any collection.
    """
    for name in ("joined", "left", "replaced", "resubscribed"):
        members: Iterable[str] = changes.get(name) or ()
        changes[name] = tuple(sorted(members))
    plain = {
        "cluster": "main",
        "group": "g",
        "protocol": "classic",
        "number": number,
        "before": number - 1 or None,
        "incarnation": 0,
        "started_at": None,
        "start_source": TimeSource.NOT,
        "ended_at": at,
        "end_source": TimeSource.RECORD,
        "cause": Cause.UNKNOWN,
        "confidence": Confidence.CERTAIN,
        "log_partition": 7,
        "log_offset": number,
    }
    return Rebalance(**{**plain, **changes})
