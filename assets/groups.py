"""Topics and groups: external assets, which Kafka makes and a sensor observes."""

from dagster import AssetSpec

from fleet.config.spec import FleetSpec
from fleet.dagster.group_assets import discovered_spec, group_spec, topic_specs


def assets(spec: FleetSpec) -> list[AssetSpec]:
    """Every topic and group that fleet.yaml names, and one asset for all other groups."""
    named = [group_spec(spec, fleet) for fleet in spec.fleets]
    return [*topic_specs(spec), discovered_spec(spec), *named]
