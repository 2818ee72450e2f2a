"""What looks at the cluster every few seconds: groups that changed, and storms."""

from dagster import SensorDefinition

from fleet.config.spec import FleetSpec
from fleet.dagster.watch.storm_sensor import storm_sensor
from fleet.dagster.watch.watch_sensor import watch_sensor


def sensors(spec: FleetSpec) -> list[SensorDefinition]:
    """Both change nothing in Kafka, and run from the start."""
    return [watch_sensor(spec), storm_sensor(spec)]
