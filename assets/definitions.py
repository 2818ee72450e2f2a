"""Everything Dagster loads: `workspace.yaml` names this module.

One fleet.yaml, one cluster, one code location. A missing or wrong file is a ConfigError here,
whose sentence (file, line, key, what is allowed) the web page shows for the location: with
no fleets to show, an empty graph would only hide it. Correct the file, then reload the
location; groups that are new in the file need the same.

This folder is the project that a team edits: one short module for each family, which declares
with `fleet.dagster`. Leave out what is not wanted, add what is.
"""

from dagster import Definitions, in_process_executor

from assets import checks, downstream, groups, history, rollouts, schedules, sensors
from fleet.config.spec import FleetSpec
from fleet.dagster.history_assets import pipes_client
from fleet.dagster.resources import FleetResource, declared


def build(spec: FleetSpec) -> Definitions:
    """The definitions of one cluster."""
    changing, recording = rollouts.jobs(spec), history.job(spec)
    return Definitions(
        assets=[
            *groups.assets(spec),
            *rollouts.assets(spec),
            *history.assets(spec),
            *downstream.assets(spec),
        ],
        asset_checks=checks.checks(spec),
        jobs=[*changing, recording],
        schedules=schedules.schedules(spec, changing, recording),
        sensors=sensors.sensors(spec),
        resources={"fleet": FleetResource(), "pipes": pipes_client()},
        executor=in_process_executor,
    )


defs = build(declared())
