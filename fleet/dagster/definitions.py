"""Builds the Dagster definitions of a fleet.yaml: one file, one cluster, one code location.

Loading only reads the file: it needs no Kafka, no Spark and no API server. A missing or wrong file
raises ConfigError, and the web page shows its sentence (file, line, key, allowed values): an empty
graph would hide the mistake. Reload the code location after a correction or a new group. Each of
Fleet's jobs names its own executor, so that the team's stays the default. `fleet` is the only
resource.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSpec,
    Component,
    ComponentLoadContext,
    Definitions,
    Resolvable,
    multi_asset_check,
)

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.dagster import asset_keys
from fleet.dagster.change_assets import change_assets, change_jobs
from fleet.dagster.check_outcomes import (
    freshness_outcome,
    lag_outcome,
    receipt_outcome,
    storm_outcome,
)
from fleet.dagster.group_assets import group_assets, history_assets, history_job, history_schedule
from fleet.dagster.reconcile_schedule import reconcile_schedule
from fleet.dagster.resources import FleetResource, fleet_errors_as_failures, load_declared_spec
from fleet.dagster.storm_sensor import storm_sensor
from fleet.dagster.watch_sensor import missing_group, watch_sensor
from fleet.manager.lag_assessment import compute_lag_statuses
from fleet.manager.past import read_last_minutes
from fleet.text import duration

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


# Checks of declared groups that a user may run from the web page.
#
# The sensors store the same outcomes on change, so the checks are current without a run. One op
# serves the checks of all groups, and a run reads only the selected groups. Dagster names an op's
# outputs with [A-Za-z0-9_] and silently drops one of two equal names. So a second op holds
# `orders-v1` beside `orders.v1`.


def check_specs(spec: FleetSpec, fleet: GroupSpec) -> list[AssetCheckSpec]:
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
    return [AssetCheckSpec(name, asset=key, description=text) for name, text in texts.items()]


def group_checks(spec: FleetSpec) -> list[AssetChecksDefinition]:
    """Builds the checks of all declared groups."""
    ops: list[list[GroupSpec]] = []
    seen: Counter[str] = Counter()
    for fleet in spec.fleets:
        called = asset_keys.group_key(spec.cluster.name, fleet.group).to_python_identifier()
        if seen[called] == len(ops):
            ops.append([])
        ops[seen[called]].append(fleet)
        seen[called] += 1
    return [_check_op(spec, fleets, number) for number, fleets in enumerate(ops, start=1)]


def _check_op(spec: FleetSpec, fleets: list[GroupSpec], number: int) -> AssetChecksDefinition:
    cluster = spec.cluster.name

    @multi_asset_check(
        name="check_groups" if number == 1 else f"check_groups_{number}",
        can_subset=True,
        specs=[each for fleet in fleets for each in check_specs(spec, fleet)],
    )
    def check(
        context: AssetCheckExecutionContext, fleet: FleetResource
    ) -> Iterator[AssetCheckResult]:
        chosen = context.selected_asset_check_keys
        with fleet_errors_as_failures(), fleet.open() as cycle:
            for each in fleets:
                key = asset_keys.group_key(cluster, each.group)
                wanted = {check.name for check in chosen if check.asset_key == key}
                yield from check_results(cycle, each.group, wanted)

    return check


def check_results(cycle: "Fleet", group: str, wanted: set[str]) -> Iterator[AssetCheckResult]:
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
        figures, limit = snapshot.figures().get(group), cycle.spec.max_lag_of(fleet)
        fresh = freshness_outcome(group, figures and figures.age, max_lag=limit)
        yield fresh.result(asset_keys.FRESHNESS, key)
    if asset_keys.STORM in wanted:
        recorded = cycle.rebalances(group, window=fleet.storm.window)
        storm = storm_outcome(fleet, recorded, cycle.storm(group))
        yield storm.result(asset_keys.STORM, key)
    if asset_keys.RECEIPT in wanted:
        last = receipt_outcome(cycle.store.change(group))
        yield last.result(asset_keys.RECEIPT, key)


def build_definitions(spec: FleetSpec | None = None) -> Definitions:
    """Builds the definitions of one cluster; `spec` None: of `$FLEET_CONFIG` or ./fleet.yaml.

    Add a team's own assets with
    `Definitions.merge(build_definitions(), Definitions(assets=[...]))`.
    Raises ConfigError if the file is missing or wrong.
    """
    spec = load_declared_spec() if spec is None else spec
    changing, recording = change_jobs(spec), history_job(spec)
    return Definitions(
        assets=[*group_assets(spec), *change_assets(spec), history_assets(spec)],
        asset_checks=group_checks(spec),
        jobs=[*changing, recording],
        schedules=[
            *(reconcile_schedule(spec, job) for job in changing),
            history_schedule(spec, recording),
        ],
        sensors=[watch_sensor(spec), storm_sensor(spec)],
        resources={"fleet": FleetResource()},
    )


# One fleet.yaml as a Dagster component, for projects that consist of `defs.yaml` files.
#
# (`type: fleet.dagster.FleetComponent`, `attributes: {config: fleet.yaml}`)
#
# Problem: a `dg` project has no module that could call `build_definitions`. Choice: a component
# builds the same definitions, with a path relative to the project. Cost: ticks and runs find the
# file by `$FLEET_CONFIG`, which the component sets for the code location's process.


@dataclass
class FleetComponent(Component, Resolvable):
    """Assets, checks, jobs, schedules and sensors of a fleet.yaml."""

    config: str = "fleet.yaml"
    """Path of the file, relative to the folder of the Dagster project."""

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Builds the definitions. Raises ConfigError if the file is missing or wrong."""
        os.environ["FLEET_CONFIG"] = str(Path(context.project_root, self.config))
        return build_definitions()
