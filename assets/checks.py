"""The checks of every declared group: lag, storm, receipt.

`group_checks(fleet, blocking={"lag"})` keeps an asset behind a group from running in the same job
while the group lags.
"""

from assets.fleets import FLEETS
from fleet.dagster import group_checks

checks = [each for fleet in FLEETS for each in group_checks(fleet)]
