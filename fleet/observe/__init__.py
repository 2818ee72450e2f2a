"""What Kafka says now (AdminClient) and what its coordinator recorded (`__consumer_offsets`)."""
