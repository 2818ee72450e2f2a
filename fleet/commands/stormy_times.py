"""When a group was in a storm, over a stretch of time."""

from collections.abc import Sequence

from fleet.rebalances import Rebalance
from fleet.report.timeline import Span
from fleet.spec import FleetSpec


def storm_spans(
    spec: FleetSpec, rebalances: Sequence[Rebalance], *, until: float | None
) -> tuple[Span, ...]:
    """The storms of one group by its budget, oldest first."""
    return ()
