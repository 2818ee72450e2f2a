"""fleet.yaml as values, what it refers to, and what is written from it."""
