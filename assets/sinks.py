"""Where the data goes: the tables of `writes:` in fleet.yaml, and what is computed from them."""

import os
from pathlib import Path

from dagster import AutomationCondition, MaterializeResult, asset

from assets.fleets import FLEETS
from fleet.dagster import build_sink_assets, group_key

GROUP = "orders-enrichment"  # of `fleet demo` and fleet.example.yaml

tables = [each for fleet in FLEETS for each in build_sink_assets(fleet)]


@asset(
    deps=[group_key(fleet.spec.cluster.name, GROUP) for fleet in FLEETS if fleet.spec.fleet(GROUP)],
    automation_condition=AutomationCondition.eager(),
    group_name="orders",
)
def processed_orders() -> MaterializeResult[None]:
    """Counts the orders that the demo's job processed, by its journal."""
    from fleet.demo import coverage  # noqa: PLC0415 - loading the project needs no pyarrow

    folder = os.environ.get(coverage.FOLDER_VARIABLE)
    entries = coverage.read(Path(folder)) if folder else []
    return MaterializeResult(
        metadata={
            "orders": sum(entry.records for entry in entries),
            "batches": len(entries),
            "workers": len({entry.worker for entry in entries}),
        }
    )


downstream = [processed_orders] if any(fleet.spec.fleet(GROUP) for fleet in FLEETS) else []
