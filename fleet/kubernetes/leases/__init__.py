"""Slots, slot targets and changes as Lease objects."""
