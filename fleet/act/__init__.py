"""Instructions become facts here: slots, leases, batched leave, runtimes, the performer."""
