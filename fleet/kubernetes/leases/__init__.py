"""Slots, gates and changes as Lease objects."""
