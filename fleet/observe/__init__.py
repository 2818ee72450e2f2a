"""What Kafka says now, and what its coordinator's log says of now."""
