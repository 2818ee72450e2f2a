"""The history tables, and the job that updates them."""

from assets.fleets import FLEETS
from fleet.dagster import build_history_assets, build_history_job

history = [build_history_assets(fleet) for fleet in FLEETS]
jobs = [build_history_job(fleet) for fleet in FLEETS]
