"""Reads fleet.yaml and the files that belong to it, and writes files from it."""
