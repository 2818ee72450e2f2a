"""`fleet simulate`."""
