"""Whole groups on simulated time: clients beside the coordinator, and what a story cost."""
