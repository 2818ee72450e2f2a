"""What Dagster loads: `workspace.yaml` names this module.

A team's own assets, downstream of its group, go beside those of the file:

    @asset(deps=[group_key("main", "orders-enrichment")])
    def enriched_orders() -> None: ...

    defs = Definitions.merge(build_definitions(), Definitions(assets=[enriched_orders]))

with `from fleet.dagster.asset_keys import group_key`.
"""

from fleet.dagster import build_definitions

defs = build_definitions()
