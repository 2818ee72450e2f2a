"""What Dagster loads where no project has a module of its own: `-m fleet.dagster.project`."""

from fleet.dagster import build_definitions

defs = build_definitions()
