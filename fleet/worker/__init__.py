"""The group member: reads a batch, runs it on Spark, commits exactly what was written."""
