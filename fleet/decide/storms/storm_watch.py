"""All groups of a cluster, watched for storms look after look. Pure.

Problem: an exporter, a sensor and a schedule each look every few seconds at thousands of
groups, most of which are calm, and a restart must not forget a storm. Choice: one value holds
the storms there are; a look takes the last rebalances of all groups and gives the next value.
Groups without rebalances and without a storm cost nothing. Detected at the first look after
the rebalance above the budget, so within two intervals whatever the phase.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.config.spec import StormSpec as Budget
from fleet.decide.storms.assessment import (
    ClusterStorm,
    Excused,
    Storm,
    assess,
    assess_cluster,
    excused,
    reach,
)
from fleet.model.rebalances import CoordinatorMove, Rebalance
from fleet.slots import Change

_KEPT_UNREAD: Final = 3600.0
"""Seconds for which a storm is believed that is not seen: tables may be written every 10 min."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StormWatch:
    """The storms of one cluster as they were last seen."""

    storms: Mapping[str, Storm] = field(default_factory=dict)
    """By group."""
    cluster: ClusterStorm | None = None

    def look(
        self,
        spec: FleetSpec,
        rebalances: Iterable[Rebalance],
        *,
        now: float,
        changes: Mapping[str, Sequence[Change]] | None = None,
        moves: Sequence[CoordinatorMove] = (),
        clients: Mapping[str, str] | None = None,
        is_read: Callable[[str], bool] = lambda _: True,
    ) -> "StormWatch":
        """The next state.

        `rebalances` are those of all groups within `watch_reach(spec)` seconds, in any order;
        `changes` by group are what our own changes were to cost; `moves` are new ones;
        `clients` gives client ids by member id. A group that is not read is no calm one: its
        storm stays as it was, for as long as it may be read again.
        """
        by_group: dict[str, list[Rebalance]] = defaultdict(list)
        for rebalance in rebalances:
            by_group[rebalance.group].append(rebalance)
        declared = {fleet.group: fleet for fleet in spec.fleets}
        storms = {}
        for group in by_group.keys() | self.storms.keys():
            known = self.storms.get(group)
            if not is_read(group):
                if known is not None and abs(now - known.seen_at) <= _KEPT_UNREAD:
                    storms[group] = known
                continue
            storm = assess(
                by_group[group],
                cluster=spec.cluster.name,
                group=group,
                budget=_budget(spec, declared.get(group)),
                now=now,
                before=known,
                excuses=_excuses(declared.get(group), (changes or {}).get(group, ())),
                clients=clients,
            )
            if storm is not None:
                storms[group] = storm
        cluster = assess_cluster(
            storms.values(),
            cluster=spec.cluster.name,
            budget=spec.storm,
            now=now,
            moves=moves,
            before=self.cluster,
        )
        return StormWatch(storms=storms, cluster=cluster)


def budget_of(spec: FleetSpec, group: str) -> Budget:
    """The group's own, or the file's for groups that no fleet declares."""
    return _budget(spec, spec.fleet(group))


def excuses_of(spec: FleetSpec, group: str, changes: Sequence[Change]) -> tuple[Excused, ...]:
    """What the group's changes were to cost."""
    return _excuses(spec.fleet(group), changes)


def _budget(spec: FleetSpec, declared: GroupSpec | None) -> Budget:
    return declared.storm if declared is not None else spec.storm


def _excuses(declared: GroupSpec | None, changes: Sequence[Change]) -> tuple[Excused, ...]:
    worker = declared.worker if declared is not None else None
    return excused(changes, static=worker is None or worker.membership == "static")


def watch_most(spec: FleetSpec) -> int:
    """The largest budget of rebalances: that many of a group tell a storm."""
    return max(spec.storm.rebalances, *(fleet.storm.rebalances for fleet in spec.fleets), 0)


def watch_reach(spec: FleetSpec) -> float:
    """How many seconds of rebalances `StormWatch.look` wants to see."""
    return max(reach(spec.storm), *(reach(fleet.storm) for fleet in spec.fleets), 0.0)
