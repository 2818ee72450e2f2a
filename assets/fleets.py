"""Which clusters this project shows: a line, and a fleet.yaml, for each."""

from fleet.dagster import FleetResource

FLEETS = [
    FleetResource(),  # $FLEET_CONFIG, or fleet.yaml in the folder where Dagster starts
]
