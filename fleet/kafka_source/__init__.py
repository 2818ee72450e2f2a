"""Reads offset ranges of Kafka as a DataFrame, by Spark's tasks through a Python data source."""
