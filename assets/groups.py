"""The declared groups, and one asset for all others of the cluster."""

from assets.fleets import FLEETS
from fleet.dagster import group_assets

groups = [each for fleet in FLEETS for each in group_assets(fleet)]
