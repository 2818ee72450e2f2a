"""What happens by the clock: reconcile every minute, history every ten, sizes at times of day.

`scale_at` of a group in fleet.yaml makes a schedule. The same in Python, as one more item:

    scale_at(fleet, "orders-enrichment", wanted=12, cron="0 7 * * 1-5", pin="2h")
"""

from assets.fleets import FLEETS
from fleet.dagster import history_schedule, reconcile_schedules, scale_schedules

schedules = [
    each
    for fleet in FLEETS
    for each in (*reconcile_schedules(fleet), *scale_schedules(fleet), history_schedule(fleet))
]
