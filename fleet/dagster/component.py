"""One fleet.yaml as a Dagster component, for projects that are made of `defs.yaml` files.

    type: fleet.dagster.FleetComponent
    attributes:
      config: fleet.yaml

Problem: a project under `dg` has no module to write `build_definitions` in. Choice: the same
definitions as a component; its path is the project's, not the current folder's. Cost:
ticks and runs find the file by `$FLEET_CONFIG`, which this sets for the code location's process.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from dagster import Component, ComponentLoadContext, Definitions, Resolvable

from fleet.dagster.definitions import build_definitions


@dataclass
class FleetComponent(Component, Resolvable):
    """Assets, checks, jobs, schedules and sensors of a fleet.yaml."""

    config: str = "fleet.yaml"
    """Path of the file, from the folder of the Dagster project."""

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Raises ConfigError where the file is missing or wrong."""
        os.environ["FLEET_CONFIG"] = str(Path(context.project_root, self.config))
        return build_definitions()
