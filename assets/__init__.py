"""The Dagster project of a cluster's fleets; `assets.definitions` is what Dagster loads."""
