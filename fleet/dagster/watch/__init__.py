"""What looks at a cluster for Dagster: ticks, checks, sensors, and what they remember."""
