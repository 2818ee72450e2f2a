"""Storms as a person sees them: who is in one now, and when a group was in one."""

from collections.abc import Iterable, Mapping, Sequence

from fleet.config.spec import FleetSpec
from fleet.decide.storms.assessment import Storm, assess
from fleet.decide.storms.storm_watch import StormWatch, budget_of, excuses_of
from fleet.model.rebalances import Rebalance
from fleet.report.timeline import Span
from fleet.slots import Change


class StormLooks:
    """Looks after looks, so that a storm ends as calmly as it does elsewhere."""

    def __init__(self, spec: FleetSpec) -> None:
        self._spec = spec
        self._state = StormWatch()

    def look(
        self,
        rebalances: Iterable[Rebalance],
        *,
        now: float,
        changes: Mapping[str, Sequence[Change]],
    ) -> Mapping[str, Storm]:
        """Groups in a storm; our `changes` are not held against."""
        self._state = self._state.look(self._spec, rebalances, now=now, changes=changes)
        return self._state.storms


def storm_spans(
    spec: FleetSpec,
    rebalances: Sequence[Rebalance],
    *,
    until: float,
    changes: Sequence[Change] = (),
) -> tuple[Span, ...]:
    """The storms of one group by its budget, oldest first, up to `until`."""
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
            excuses=excuses_of(spec, group, changes),
        )
        if before is not None and (storm is None or storm.since != before.since):
            spans.append(Span(before.since, before.calm_since or before.seen_at))
    if storm is not None:
        spans.append(Span(storm.since, storm.calm_since or until))
    return tuple(spans)
