"""Storms as a person sees them: who is in one now, and when a group was in one."""

from collections.abc import Iterable, Sequence

from fleet.decide.storm_watch import StormWatch, budget_of
from fleet.decide.storms import Storm, assess
from fleet.rebalances import Rebalance
from fleet.report.timeline import Span
from fleet.spec import FleetSpec


class Watch:
    """Looks after looks, so that a storm ends as calmly as it does elsewhere."""

    def __init__(self, spec: FleetSpec) -> None:
        self._spec = spec
        self._state = StormWatch()

    def look(self, rebalances: Iterable[Rebalance], *, now: float) -> dict[str, str]:
        """Groups in a storm, with who makes it, in words."""
        self._state = self._state.look(self._spec, rebalances, now=now)
        return {group: storm.words for group, storm in self._state.storms.items()}


def storm_spans(
    spec: FleetSpec, rebalances: Sequence[Rebalance], *, until: float
) -> tuple[Span, ...]:
    """The storms of one group by its budget, oldest first, up to `until`.

    What the group's own changes were to cost is not known here: it counts.
    """
    if not rebalances:
        return ()
    group = rebalances[0].group
    budget = budget_of(spec, group)
    ends = sorted(r.ended_at for r in rebalances)
    # A storm begins with a rebalance and ends by time alone: look at both.
    quiet = [at + budget.window + budget.calm + 0.001 for at in ends]
    moments = sorted(at for at in {*ends, *quiet} if at <= until)
    spans: list[Span] = []
    storm: Storm | None = None
    for at in [*moments, until]:
        before = storm
        storm = assess(
            [r for r in rebalances if r.ended_at <= at],
            cluster=rebalances[0].cluster,
            group=group,
            budget=budget,
            now=at,
            before=before,
        )
        if before is not None and (storm is None or storm.since != before.since):
            spans.append(Span(before.since, before.calm_since or before.seen_at))
    if storm is not None:
        spans.append(Span(storm.since, storm.calm_since or until))
    return tuple(spans)
