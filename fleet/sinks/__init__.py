"""Sinks that write a batch once, however often the batch is repeated.

Each sink is a function of the batch's rows, a place and the batch's context; each keeps the
offsets that it holds beside the rows, in the same transaction (docs/how-to/sinks.md).
"""

from fleet.sinks.delta import read_delta_version, write_delta
from fleet.sinks.iceberg import read_iceberg_snapshot, write_iceberg
from fleet.sinks.kafka_topic import write_kafka
from fleet.sinks.parquet import compact_parquet, parquet_files, read_parquet, write_parquet

__all__ = [
    "compact_parquet",
    "parquet_files",
    "read_delta_version",
    "read_iceberg_snapshot",
    "read_parquet",
    "write_delta",
    "write_iceberg",
    "write_kafka",
    "write_parquet",
]
