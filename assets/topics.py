"""The topics that the groups read and write."""

from assets.fleets import FLEETS
from fleet.dagster import build_topic_assets

topics = [each for fleet in FLEETS for each in build_topic_assets(fleet)]
