"""fleet.yaml as objects of a cluster. Pure."""
