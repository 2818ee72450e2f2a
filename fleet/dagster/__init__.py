"""The Dagster integration: assets, checks, schedules and sensors of declared fleets."""

from fleet.dagster.component import FleetComponent
from fleet.dagster.definitions import build_definitions

__all__ = ["FleetComponent", "build_definitions"]
