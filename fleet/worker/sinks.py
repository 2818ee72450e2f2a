"""The name of `fleet.sinks.write_parquet` in the last release, for its jobs."""

from fleet.sinks import write_parquet

__all__ = ["write_parquet"]
