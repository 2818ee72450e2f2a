"""The assignors that a coordinator has for KIP-848 groups: uniform and range, as Kafka's."""
