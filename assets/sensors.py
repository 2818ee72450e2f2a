"""What observes the cluster: the state of every group, storms of rebalances, new partitions."""

from assets.fleets import FLEETS
from fleet.dagster import build_new_partitions_sensors, build_watch_sensor

watches = [build_watch_sensor(fleet) for fleet in FLEETS]
partitions = [each for fleet in FLEETS for each in build_new_partitions_sensors(fleet)]
