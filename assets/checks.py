"""Checks of every declared group: whether it keeps up, and whether it is in a storm."""

from dagster import AssetChecksDefinition

from fleet.config.spec import FleetSpec
from fleet.dagster.watch.group_checks import group_checks


def checks(spec: FleetSpec) -> list[AssetChecksDefinition]:
    """Two checks for each group; the third, `receipt`, comes with its rollout."""
    return [group_checks(spec, fleet) for fleet in spec.fleets]
