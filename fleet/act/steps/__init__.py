"""Performs the steps of a plan: one module for each kind of step.

A step that another actor repeats does only what is missing. The change stores what it must know, as
the memory of its kind. Decisions over slots and slot targets are functions without I/O. `handover`
and `rolling_batch` roll through `membership`, `leave_slots` and `canary`; `receipts` computes the
cost of a step; all of them work through `work`.
"""
