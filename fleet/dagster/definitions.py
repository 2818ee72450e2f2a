"""Everything that a fleet.yaml is in Dagster: one file, one cluster, one code location.

Loading reads the file and nothing else: no Kafka, no Spark, no API server. A missing or wrong file
is a ConfigError, whose sentence (file, line, key, what is allowed) the web page shows for the
location: with no fleets to show, an empty graph would only hide it. Correct the file, then reload
the location; groups that are new in the file need the same. The code location's executor stays the
team's: each job of Fleet names its own, and `fleet` is the only resource.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from dagster import Component, ComponentLoadContext, Definitions, Resolvable

from fleet.config.spec import FleetSpec
from fleet.dagster.change_assets import change_assets, change_jobs
from fleet.dagster.group_assets import group_assets, history_assets, history_job, history_schedule
from fleet.dagster.reconcile_schedule import reconcile_schedule
from fleet.dagster.resources import FleetResource, declared
from fleet.dagster.watch.group_checks import group_checks
from fleet.dagster.watch.storm_sensor import storm_sensor
from fleet.dagster.watch.watch_sensor import watch_sensor


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
