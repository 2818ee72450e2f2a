"""Observes, decides, acts and reports. The only package that imports all others."""
