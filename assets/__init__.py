"""The Dagster project of a cluster's fleets: what a team reads and edits.

Judgements and plans are `fleet`'s, assets and events are made by `fleet.dagster`; here stands
which of them this project has. `assets.definitions` is what Dagster loads.
"""
