"""What happens by the clock: reconcile every minute, history every ten, sizes at times of day.

`scale_at` of a group in fleet.yaml makes a schedule. The same in Python, as one more item:

    scale_at(fleet, "orders-enrichment", wanted=12, cron="0 7 * * 1-5", pin="2h")
"""

from assets.fleets import FLEETS
from fleet.dagster import (
    build_history_schedule,
    build_reconcile_schedules,
    build_scale_schedules,
)

reconcile = [each for fleet in FLEETS for each in build_reconcile_schedules(fleet)]
mornings = [each for fleet in FLEETS for each in build_scale_schedules(fleet)]
history = [build_history_schedule(fleet) for fleet in FLEETS]
