"""What Dagster loads: `workspace.yaml` names this module.

Each module beside it declares one part with `fleet.dagster`. `build_definitions()` declares all of
them in one call, for a project that changes none.
"""

from dagster import Definitions

from assets import changes, checks, groups, history, schedules, sensors, sinks, topics

defs = Definitions(
    assets=[
        *topics.topics,
        *groups.groups,
        *sinks.tables,
        *sinks.downstream,
        *changes.changes,
        *history.history,
    ],
    asset_checks=checks.checks,
    jobs=[*changes.jobs, *history.jobs],
    schedules=[*schedules.reconcile, *schedules.mornings, *schedules.history],
    sensors=[*sensors.watches, *sensors.partitions],
)
