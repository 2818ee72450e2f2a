"""What Kafka says now (AdminClient), and what its coordinator's log says of now."""
