"""The Dagster room: assets, checks, the watching sensor and the reconciling schedule.

The only room that imports dagster. It holds no logic of its own: what a group is, what is
to be done and what it cost come from `fleet.manager.cycle`; here that becomes assets and events.
"""
