"""What a job's own outputs are: assets downstream of its group. None until a team names one.

    @asset(deps=[asset_keys.group_key(spec.cluster.name, "orders-enrichment")])
    def enriched_orders() -> None: ...

with `from fleet.dagster import asset_keys`, and `return [enriched_orders]` below.
"""

from dagster import AssetsDefinition

from fleet.config.spec import FleetSpec


def assets(spec: FleetSpec) -> list[AssetsDefinition]:  # noqa: ARG001 - keys are made of it
    """A team's own assets."""
    return []
