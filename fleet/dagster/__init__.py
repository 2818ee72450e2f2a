"""The Dagster integration: assets, checks, schedules and sensors of declared fleets."""

from fleet.dagster.definitions import FleetComponent, build_definitions

__all__ = ["FleetComponent", "build_definitions"]
