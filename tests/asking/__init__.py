"""Asking for the past: rebalances as tables and pictures, and the live view."""
