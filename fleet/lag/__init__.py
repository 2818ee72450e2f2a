"""Lag, in columns: commits, the ends of logs over time, and all groups at one moment."""
