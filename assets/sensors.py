"""What observes the cluster: the state of every group, and storms of rebalances."""

from assets.fleets import FLEETS
from fleet.dagster import build_storm_sensor, build_watch_sensor

watches = [build_watch_sensor(fleet) for fleet in FLEETS]
storms = [build_storm_sensor(fleet) for fleet in FLEETS]
