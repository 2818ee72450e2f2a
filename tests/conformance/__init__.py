"""The simulated coordinator against Kafka's own code, event by event."""
