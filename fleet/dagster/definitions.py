"""Everything that a fleet.yaml is in Dagster: one file, one cluster, one code location.

Loading reads the file and nothing else: no Kafka, no Spark, no API server. A missing or wrong file
is a ConfigError, whose sentence (file, line, key, what is allowed) the web page shows for the
location: with no fleets to show, an empty graph would only hide it. Correct the file, then reload
the location; groups that are new in the file need the same. The code location's executor stays the
team's: each job of Fleet names its own, and `fleet` is the only resource.
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
from fleet.dagster.group_assets import group_assets, history_assets, history_job, history_schedule
from fleet.dagster.judgements import lag_judgement, receipt_judgement, storm_judgement
from fleet.dagster.reconcile_schedule import reconcile_schedule
from fleet.dagster.resources import FleetResource, declared, told
from fleet.dagster.storm_sensor import from_tables, storm_sensor
from fleet.dagster.watch_sensor import missing, watch_sensor
from fleet.decide.storms import watch_reach
from fleet.manager.keeping_up import judged
from fleet.manager.past import minutes_of

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


# Checks of declared groups that a person may run from the web page: lag, storms, last receipt.
#
# The sensors store the same judgements on change, so these need not be run to be current. One op
# serves the checks of all groups, and a run of some of them looks at their groups only. Dagster
# names an op's outputs in [A-Za-z0-9_], and drops one of two that it calls the same without a
# word: of `orders.v1` and `orders-v1` the second is in another op.


def check_specs(spec: FleetSpec, fleet: GroupSpec) -> list[AssetCheckSpec]:
    """What is checked of one group; the receipt where there are workers of ours."""
    key = asset_keys.group_key(spec.cluster.name, fleet.group)
    minutes = f"{fleet.storm.window / 60:g} min"
    said = {
        asset_keys.LAG: "The group keeps up.",
        asset_keys.STORM: f"At most {fleet.storm.rebalances} rebalances in {minutes}, "
        "without what changes of ours were to cost.",
    }
    if fleet.worker is not None:
        said[asset_keys.RECEIPT] = (
            "The last change ended well, and every step of it cost what its plan said."
        )
    return [AssetCheckSpec(name, asset=key, description=text) for name, text in said.items()]


def group_checks(spec: FleetSpec) -> list[AssetChecksDefinition]:
    """The checks of all declared groups."""
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
        with told(), fleet.open() as cycle:
            for each in fleets:
                key = asset_keys.group_key(cluster, each.group)
                wanted = {check.name for check in chosen if check.asset_key == key}
                yield from results(cycle, each.group, wanted)

    return check


def results(cycle: "Fleet", group: str, wanted: set[str]) -> Iterator[AssetCheckResult]:
    """These checks of one group, looked at now."""
    if not wanted:
        return
    fleet, key = cycle.group(group), asset_keys.group_key(cycle.spec.cluster.name, group)
    if asset_keys.LAG in wanted:
        snapshot = cycle.snapshot([group])
        snapshot, keep_up = judged(cycle, snapshot, minutes_of(cycle, [group]), [group])
        seen = snapshot.groups.get(group) or missing(group)
        yield lag_judgement(fleet, seen, keep_up.get(group)).result(asset_keys.LAG, key)
    if asset_keys.STORM in wanted:
        now = cycle.clock.now()
        history = from_tables(cycle, since=now - watch_reach(cycle.spec), now=now)
        known = None if history is None else history.of(group)
        window = fleet.storm.window
        recorded = (
            cycle.rebalances(group, window=window)
            if known is None
            else sum(each.ended_at >= now - window for each in known)
        )
        storm = storm_judgement(fleet, recorded, cycle.storm(group, known))
        yield storm.result(asset_keys.STORM, key)
    if asset_keys.RECEIPT in wanted:
        last = receipt_judgement(cycle.store.change(group))
        yield last.result(asset_keys.RECEIPT, key)


def build_definitions(spec: FleetSpec | None = None) -> Definitions:
    """The definitions of one cluster's fleets; `spec` None: of `$FLEET_CONFIG` or ./fleet.yaml.

    A team's own assets go beside them:
    `Definitions.merge(build_definitions(), Definitions(assets=[...]))`.
    Raises ConfigError where the file is missing or wrong.
    """
    spec = declared() if spec is None else spec
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


# One fleet.yaml as a Dagster component, for projects that are made of `defs.yaml` files.
#
# (`type: fleet.dagster.FleetComponent`, `attributes: {config: fleet.yaml}`)
#
# Problem: a project under `dg` has no module to write `build_definitions` in. Choice: the same
# definitions as a component; its path is the project's, not the current folder's. Cost:
# ticks and runs find the file by `$FLEET_CONFIG`, which this sets for the code location's process.


@dataclass
class FleetComponent(Component, Resolvable):
    """Assets, checks, jobs, schedules and sensors of a fleet.yaml."""

    config: str = "fleet.yaml"
    """Path of the file, from the folder of the Dagster project."""

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Raises ConfigError where the file is missing or wrong."""
        os.environ["FLEET_CONFIG"] = str(Path(context.project_root, self.config))
        return build_definitions()
