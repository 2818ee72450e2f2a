"""The model of Kafka's coordinator, by itself."""
