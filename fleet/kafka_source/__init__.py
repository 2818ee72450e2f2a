"""Offset ranges of Kafka as a DataFrame, read by Spark's tasks through our Python data source."""
