"""The history of every group, from the coordinator's own records in `__consumer_offsets`."""
