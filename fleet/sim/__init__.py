"""Kafka's group coordinator and its members as a deterministic model: no I/O, simulated time."""
