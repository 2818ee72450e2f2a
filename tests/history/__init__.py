"""The history of every group."""
