"""Carries plans out: slots, leases, batched leaves, runtimes, the performer."""
