"""The group coordinator of Kafka 4.3.1: groups, their timers, and the records they write."""
