"""The checks of every declared group: lag, freshness, storm, receipt.

`build_group_checks(fleet, blocking={"freshness"})` keeps assets behind a group from running in the
same job while its oldest record is older than max_lag.
"""

from assets.fleets import FLEETS
from fleet.dagster import build_group_checks

checks = [each for fleet in FLEETS for each in build_group_checks(fleet)]
