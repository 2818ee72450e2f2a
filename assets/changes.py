"""The plan and the rollout of each group with workers, and the job of both."""

from assets.fleets import FLEETS
from fleet.dagster import build_change_assets, build_change_jobs

changes = [each for fleet in FLEETS for each in build_change_assets(fleet)]
jobs = [each for fleet in FLEETS for each in build_change_jobs(fleet)]
