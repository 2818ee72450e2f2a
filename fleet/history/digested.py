"""`consumer_offsets_digest`: the data source `consumer_offsets` with its commits thinned.

Problem: what crosses from a task's Python to Spark costs as much as reading it. Choice: the same
reader and the same options, whose batches go through `fleet.history.digest` where they were
decoded, so that Spark is given the rows of the tables and has only to write them. Cost: a second
format that only the job uses.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from fleet.history.digest import Digest
from fleet.history.source import _SENT as READ
from fleet.history.source import ConsumerOffsets
from fleet.history.table_columns import DIGEST, spark_ddl
from fleet.kafka_source.source import by_value

FORMAT: Final = "consumer_offsets_digest"
_SENT: Final = (
    *READ,
    *(f"fleet.history.{name}" for name in ("digest", "digested", "table_columns")),
)


class DigestedOffsets(DataSource):
    """Options of `consumer_offsets`, and `digest`: what Digest takes, in JSON."""

    @classmethod
    def name(cls) -> str:
        """For spark.read.format."""
        return FORMAT

    def schema(self) -> str:
        """DIGEST's columns."""
        return spark_ddl(DIGEST)

    def reader(self, schema: StructType) -> DataSourceReader:
        """One batch."""
        options = {name: value for name, value in self.options.items() if name != "digest"}
        return DigestReader(
            ConsumerOffsets(options).reader(schema), json.loads(self.options["digest"])
        )


class DigestReader(DataSourceReader):
    """The reader of `consumer_offsets`, and what is made of its batches."""

    def __init__(self, reader: DataSourceReader, digest: Mapping[str, Any]) -> None:
        self._reader = reader
        self._digest = digest

    def partitions(self) -> Sequence[InputPartition]:
        """As it says."""
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On a task."""
        read: Any = self._reader.read(partition)
        yield from Digest(DIGEST, **self._digest).run(read)


def digested(
    spark: Any,
    ranges: Mapping[int, tuple[int, int]],
    *,
    options: Mapping[str, str],
    digest: Mapping[str, Any],
) -> Any:
    """The rows of `commits` and `events` of the ranges, as a DataFrame of DIGEST's columns.

    `options` are those of `consumer_offsets`, without offsets.
    """
    with by_value(_SENT):
        spark.dataSource.register(DigestedOffsets)
    return (
        spark.read.format(FORMAT)
        .options(**options)
        .option("startingOffsets", json.dumps({str(p): start for p, (start, _) in ranges.items()}))
        .option("endingOffsets", json.dumps({str(p): end for p, (_, end) in ranges.items()}))
        .option("digest", json.dumps(dict(digest)))
        .load()
    )
