"""Decides what to do: pure functions from a state snapshot to a plan, a figure or a refusal.

No I/O and no clock: `now` is an argument. Each refusal is a sentence for the user.
"""
