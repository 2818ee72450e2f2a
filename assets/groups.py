"""The declared groups, and one asset for all others of the cluster."""

from assets.fleets import FLEETS
from fleet.dagster import build_group_assets

groups = [each for fleet in FLEETS for each in build_group_assets(fleet)]
