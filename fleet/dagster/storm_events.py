"""Finds the storms of a tick, for the sensor that reports them.

Problem: a storm starts within seconds and concerns the whole cluster. Choice: a tick takes the last
rebalances of all groups from the live view and compares them with their budgets, with hysteresis. A
group gets an event if its storm starts, cools down, ends or gets another top offender. A declared
group's storm is stored beside its slots: plans and check runs read the same. Cost: a login that may
not read `__consumer_offsets` sees no storm, and the tick says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from dagster import AssetObservation

from fleet.dagster import asset_keys
from fleet.dagster.live import Live
from fleet.decide.storms import Storm, StormWatch, watch_reach
from fleet.errors import FleetError, Unreachable
from fleet.log.records import TOPIC
from fleet.model.rebalances import Rebalance


@dataclass(frozen=True, slots=True, kw_only=True)
class StormRefresh:
    """The storms of one tick."""

    watch: StormWatch = field(default_factory=StormWatch)
    counted: Mapping[str, int] = field(default_factory=dict)
    """Rebalances in the window, for each declared group that was read."""
    problem: str = ""
    """Why the log was not read."""
    denied: bool = False
    """Whether this login may not read it."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Why the storm of a group is unknown: what is stored of it was not read."""

    def mark(self, group: str) -> tuple[object, ...] | None:
        """Returns what an event of the group says of its storm; None if that is unknown."""
        storm = self.watch.storms.get(group)
        if storm is not None:
            return storm.since, storm.cooldown_since is None, storm.cause, storm.top_offender
        if group in self.errors:
            return None
        if not self.problem:
            return ()
        return ("not counted",) if self.denied else None

    def sentences(self) -> list[str]:
        """Describes the storms for the web page, at most ten."""
        if self.problem:
            return [f"Storms are unknown: {self.problem}."]
        found = sorted(self.watch.storms.items())[:10]
        return [f"{group}: {storm.sentence}." for group, storm in found]

    def of_cluster(self, cluster: str, before: StormWatch) -> list[AssetObservation]:
        """Returns the event of a storm of the whole cluster that has started or ended."""
        storm = self.watch.cluster
        if (storm is None) is (before.cluster is None):
            return []
        sentence = f"{storm.sentence if storm else f'the storm of {cluster} is over'}."
        return [
            AssetObservation(
                asset_key=asset_keys.discovered_key(cluster),
                description=sentence,
                metadata={"sentence": sentence, "storm": storm is not None},
            )
        ]


def refresh_storms(live: Live, before: StormWatch) -> StormRefresh:
    """Finds the current storms of all groups; a declared group's storm is kept beside its slots."""
    fleet, tail = live.fleet, live.cluster.tail
    spec, now = fleet.spec, fleet.clock.now()
    is_read = tail.is_current()
    problem = "" if is_read else tail.problem or f"{TOPIC} was not read in time"
    by_group: dict[str, list[Rebalance]] = {}
    for each in tail.rebalances(since=now - watch_reach(spec)) if is_read else ():
        by_group.setdefault(each.group, []).append(each)
    moved = by_group.keys() | before.storms.keys() if is_read else set()
    assessed: dict[str, Storm | None] = {}
    errors: dict[str, str] = {}
    away = ""
    for group in moved & {declared.group for declared in spec.fleets}:
        try:
            if away:
                errors[group] = away
            else:
                assessed[group] = fleet.storm(group, by_group.get(group, ()))
        except Unreachable as error:
            away = errors[group] = str(error)
        except FleetError as error:
            errors[group] = str(error)
    watch = before.refresh(
        spec,
        chain.from_iterable(by_group.values()),
        now=now,
        moves=tuple(filter(None, [live.cluster.poll_move()])),
        is_read=lambda group: is_read and group not in errors,
        assessed=assessed,
    )
    counted = {
        each.group: sum(
            rebalance.ended_at >= now - each.storm.window
            for rebalance in by_group.get(each.group, ())
        )
        for each in (spec.fleets if is_read else ())
    }
    return StormRefresh(
        watch=watch, counted=counted, problem=problem, denied=tail.denied, errors=errors
    )
