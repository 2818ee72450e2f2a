"""The Dagster integration: assets, checks, schedules and sensors of declared fleets."""
