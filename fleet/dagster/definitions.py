"""Builds the Dagster definitions of a fleet.yaml, or of several: one file for each cluster.

Loading only reads the file: it needs no Kafka, no Spark and no API server. A missing or wrong file
raises ConfigError, and the web page shows its sentence (file, line, key, allowed values): an empty
graph would hide the mistake. Reload the code location after a correction or a new group. Each of
Fleet's jobs names its own executor, so that the team's stays the default. Every name begins with
the cluster's, and there is no resource: a host project may hold other clusters.
"""

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSpec,
    AssetsDefinition,
    AssetSpec,
    Config,
    Definitions,
    map_asset_specs,
    multi_asset_check,
)
from pydantic import Field

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.dagster import asset_keys
from fleet.dagster.change_assets import (
    Execute,
    build_change_assets,
    build_change_jobs,
    execute_rollout,
)
from fleet.dagster.check_outcomes import (
    freshness_outcome,
    lag_outcome,
    receipt_outcome,
    storm_outcome,
)
from fleet.dagster.group_assets import (
    build_group_assets,
    build_topic_assets,
)
from fleet.dagster.history_assets import (
    build_history_assets,
    build_history_job,
    build_history_schedule,
)
from fleet.dagster.reconcile_schedule import (
    build_new_partitions_sensors,
    build_reconcile_schedules,
)
from fleet.dagster.resources import FleetResource, fleet_errors_as_failures, parse_time
from fleet.dagster.scale_schedules import build_scale_schedules
from fleet.dagster.sink_assets import build_sink_assets, depths
from fleet.dagster.watch_sensor import build_watch_sensor, missing_group
from fleet.errors import ConfigError
from fleet.manager.lag_assessment import compute_lag_statuses
from fleet.manager.past import read_last_minutes
from fleet.text import duration

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


# Checks of declared groups that a user may run from the web page.
#
# The sensors store the same outcomes on change, so the checks are current without a run. One op
# serves the checks of all groups, and a run reads only the selected groups.


class CheckConfig(Config):
    """Limits of one run of the checks.

    Args:
        max_lag (Optional[str]): The oldest age of a waiting record, such as `15m`.
    """

    max_lag: str | None = Field(
        default=None, description="oldest age of a waiting record, such as 15m (default: max_lag)"
    )

    def limit(self) -> float | None:
        """Returns the limit in seconds, or None. Raises ConfigError."""
        return None if self.max_lag is None else parse_time("max_lag", self.max_lag)


def check_specs(
    spec: FleetSpec, fleet: GroupSpec, blocking: Collection[str] = ()
) -> list[AssetCheckSpec]:
    """Returns the checks of one group; with a receipt check if it has Fleet workers."""
    key = asset_keys.group_key(spec.cluster.name, fleet.group)
    minutes = f"{fleet.storm.window / 60:g} min"
    texts = {
        asset_keys.LAG: "The group keeps up with its topics.",
        asset_keys.FRESHNESS: "The oldest waiting record is younger than max_lag: "
        f"{duration(spec.max_lag_of(fleet))}.",
        asset_keys.STORM: f"At most {fleet.storm.rebalances} rebalances in {minutes}, not counting "
        "those that a plan of Fleet expects.",
    }
    if fleet.worker is not None:
        texts[asset_keys.RECEIPT] = (
            "The last change succeeded, and each step cost what its plan stated."
        )
    return [
        AssetCheckSpec(name, asset=key, description=text, blocking=name in blocking)
        for name, text in texts.items()
    ]


def build_group_checks(
    fleet: FleetResource, *, blocking: Collection[str] = ()
) -> list[AssetChecksDefinition]:
    """Defines the checks of all declared groups.

    Args:
        fleet (FleetResource): The fleet.yaml.
        blocking (Collection[str]): Checks, such as `lag`, whose failure keeps assets behind the
            group from running in the same job. Defaults to none.

    Returns:
        list[AssetChecksDefinition]: One op evaluates the checks of many groups. Raises ConfigError
            if `blocking` names another check.
    """
    if unknown := sorted({*blocking} - {*asset_keys.CHECKS}):
        raise ConfigError(
            f"no check is called {', '.join(unknown)}, so it cannot block: name "
            f"{', '.join(asset_keys.CHECKS)}"
        )
    spec = fleet.spec
    _, depth = depths(spec)
    ops = asset_keys.split_into_ops(
        (asset_keys.group_key(spec.cluster.name, each.group), depth[each.group], each)
        for each in spec.fleets
    )
    return [
        _check_op(fleet, groups, number, blocking) for number, groups in enumerate(ops, start=1)
    ]


def _check_op(
    fleet: FleetResource, groups: list[GroupSpec], number: int, blocking: Collection[str]
) -> AssetChecksDefinition:
    cluster = fleet.spec.cluster.name
    name = asset_keys.definition_name(cluster, "check_groups")

    @multi_asset_check(
        name=name if number == 1 else f"{name}_{number}",
        can_subset=True,
        specs=[check for group in groups for check in check_specs(fleet.spec, group, blocking)],
    )
    def check(
        context: AssetCheckExecutionContext, config: CheckConfig
    ) -> Iterator[AssetCheckResult]:
        chosen = context.selected_asset_check_keys
        with fleet_errors_as_failures(), fleet.open() as cycle:
            for each in groups:
                key = asset_keys.group_key(cluster, each.group)
                wanted = {check.name for check in chosen if check.asset_key == key}
                limit = config.limit() or cycle.spec.max_lag_of(each)
                yield from check_results(cycle, each.group, wanted, max_lag=limit)

    return check


def check_results(
    cycle: "Fleet", group: str, wanted: set[str], *, max_lag: float
) -> Iterator[AssetCheckResult]:
    """Evaluates these checks of one group now."""
    if not wanted:
        return
    fleet, key = cycle.group(group), asset_keys.group_key(cycle.spec.cluster.name, group)
    if wanted & {asset_keys.LAG, asset_keys.FRESHNESS}:
        snapshot = cycle.snapshot([group])
        snapshot, keep_up = compute_lag_statuses(
            cycle, snapshot, read_last_minutes(cycle, [group]), [group]
        )
    if asset_keys.LAG in wanted:
        seen = snapshot.groups.get(group) or missing_group(group)
        yield lag_outcome(seen, keep_up.get(group)).result(asset_keys.LAG, key)
    if asset_keys.FRESHNESS in wanted:
        figures = snapshot.figures().get(group)
        fresh = freshness_outcome(group, figures and figures.age, max_lag=max_lag)
        yield fresh.result(asset_keys.FRESHNESS, key)
    if asset_keys.STORM in wanted:
        recorded = cycle.rebalances(group, window=fleet.storm.window)
        storm = storm_outcome(fleet, recorded, cycle.storm(group))
        yield storm.result(asset_keys.STORM, key)
    if asset_keys.RECEIPT in wanted:
        last = receipt_outcome(cycle.store.change(group))
        yield last.result(asset_keys.RECEIPT, key)


def build_definitions(*fleets: FleetResource) -> Definitions:
    """Builds the definitions of one cluster or of several.

    Args:
        *fleets (FleetResource): One fleet.yaml each. Defaults to the one of `$FLEET_CONFIG`, or
            fleet.yaml in the current folder.

    Returns:
        Definitions: Assets, checks, jobs, schedules and sensors, without an executor and without
            resources. Raises ConfigError if a file is missing or wrong.

    Examples:
        .. code-block:: python

            from dagster import Definitions
            from fleet.dagster import FleetResource, build_definitions

            defs = Definitions.merge(
                build_definitions(
                    FleetResource(config="shop.yaml"), FleetResource(config="billing.yaml")
                ),
                Definitions(assets=[...]),
            )
    """
    return Definitions.merge(*map(cluster_definitions, fleets or (FleetResource(),)))


def cluster_definitions(
    fleet: FleetResource,
    *,
    execute: Execute = execute_rollout,
    translate: Callable[[AssetSpec], AssetSpec] | None = None,
    blocking: Collection[str] = (),
) -> Definitions:
    """Builds the definitions of one cluster, with a team's own rollout and attributes of assets."""
    assets: list[AssetsDefinition | AssetSpec] = [
        *build_topic_assets(fleet),
        *build_group_assets(fleet),
        *build_sink_assets(fleet),
        *build_change_assets(fleet, execute),
        build_history_assets(fleet),
    ]
    return Definitions(
        assets=map_asset_specs(translate or (lambda spec: spec), assets),
        asset_checks=build_group_checks(fleet, blocking=blocking),
        jobs=[*build_change_jobs(fleet), build_history_job(fleet)],
        schedules=[
            *build_reconcile_schedules(fleet),
            *build_scale_schedules(fleet),
            build_history_schedule(fleet),
        ],
        sensors=[
            build_watch_sensor(fleet),
            *build_new_partitions_sensors(fleet),
        ],
    )
