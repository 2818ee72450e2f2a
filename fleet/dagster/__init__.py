"""The Dagster integration: assets, checks, schedules and sensors of declared fleets."""

from fleet.dagster.component import FleetComponent
from fleet.dagster.definitions import build_definitions
from fleet.dagster.resources import FleetResource

__all__ = ["FleetComponent", "FleetResource", "build_definitions"]
