"""One fleet.yaml as a Dagster component, for projects that consist of `defs.yaml` files.

Problem: a `dg` project has no module that could call `build_definitions`. Choice: a component
builds the same definitions. A path is relative to the `defs.yaml` that names it. Cost: none; the
definitions keep the file's absolute path, so ticks and runs need no environment variable.
"""

from dataclasses import dataclass
from pathlib import Path

from dagster import Component, ComponentLoadContext, Definitions, Resolvable

from fleet.dagster.definitions import build_definitions
from fleet.dagster.resources import FleetResource


@dataclass
class FleetComponent(Component, Resolvable):
    """Assets, checks, jobs, schedules and sensors of a fleet.yaml."""

    config: str = "fleet.yaml"

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Builds the definitions. Raises ConfigError if the file is missing or wrong."""
        folder = context.path if context.path.is_dir() else context.path.parent
        return build_definitions(FleetResource(config=str(Path(folder, self.config))))
