"""The topics that the groups read and write."""

from assets.fleets import FLEETS
from fleet.dagster import topic_assets

topics = [each for fleet in FLEETS for each in topic_assets(fleet)]
