"""Storms: whether there is one, since when, and who makes it."""
