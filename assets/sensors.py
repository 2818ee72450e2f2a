"""What observes the cluster: the state of every group, and storms of rebalances."""

from assets.fleets import FLEETS
from fleet.dagster import storm_sensor, watch_sensor

sensors = [each for fleet in FLEETS for each in (watch_sensor(fleet), storm_sensor(fleet))]
