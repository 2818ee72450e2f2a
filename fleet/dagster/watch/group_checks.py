"""Checks a person may run from the web page: lag and storms of a declared group.

The sensor stores the same judgements on change, so these need not be run to be current. The
third check, `receipt`, is part of the rollout: only a change makes receipts.
"""

from collections.abc import Iterator

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSpec,
    multi_asset_check,
)

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.dagster import asset_keys
from fleet.dagster.judgements import lag_judgement
from fleet.dagster.resources import FleetResource, told
from fleet.dagster.watch.cluster_tick import budget_of
from fleet.dagster.watch.recent_rebalances import from_tables
from fleet.decide.slugs import slug
from fleet.decide.storms.storm_watch import watch_reach
from fleet.manager.keeping_up import judged
from fleet.manager.recent import minutes_of


def group_checks(spec: FleetSpec, fleet: GroupSpec) -> AssetChecksDefinition:
    """The two checks of one group; they share a look at it."""
    cluster, group = spec.cluster.name, fleet.group
    key = asset_keys.group_key(cluster, group)
    minutes = f"{fleet.storm.window / 60:g} min"

    @multi_asset_check(
        name=f"check_{slug(cluster, group)}".replace("-", "_"),
        can_subset=True,
        specs=[
            AssetCheckSpec(asset_keys.LAG, asset=key, description="The group keeps up."),
            AssetCheckSpec(
                asset_keys.STORM,
                asset=key,
                description=f"At most {fleet.storm.rebalances} rebalances in {minutes}, "
                "without what changes of ours were to cost.",
            ),
        ],
    )
    def check(
        context: AssetCheckExecutionContext, fleet: FleetResource
    ) -> Iterator[AssetCheckResult]:
        wanted = {key.name for key in context.selected_asset_check_keys}
        with told(), fleet.open() as cycle:
            declared = cycle.group(group)
            if asset_keys.LAG in wanted:
                snapshot = cycle.snapshot([group])
                seen = snapshot.groups[group]
                keeps_up = judged(cycle, snapshot, minutes_of(cycle, [group]), [group]).get(group)
                yield lag_judgement(declared, seen, keeps_up).result(asset_keys.LAG, key)
            if asset_keys.STORM in wanted:
                now = cycle.clock.now()
                history = from_tables(cycle, since=now - watch_reach(cycle.spec), now=now)
                known = None if history is None else history.of(group)
                yield budget_of(cycle, declared, known, now=now).result(asset_keys.STORM, key)

    return check
