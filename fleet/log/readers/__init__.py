"""Readers of the log through a Kafka client that joins nothing and commits nothing."""
