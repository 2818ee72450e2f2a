"""The history tables, and the job that updates them."""

from assets.fleets import FLEETS
from fleet.dagster import history_assets, history_job

history = [history_assets(fleet) for fleet in FLEETS]
jobs = [history_job(fleet) for fleet in FLEETS]
