"""`fleet_kafka`: the data source itself, and a DataFrame from named ranges.

Problem: a data source's classes are pickled from the worker to Spark's server and on to its
executors, and on a `sc://` cluster no `fleet` is installed; on the shared server it may be of
another revision. Choice: what a task needs (this module and the ones it names) is pickled by
value, so that a task runs exactly the code of the worker that asked; executors need only
PySpark, pyarrow and confluent-kafka. Cost: 20 KB per session and job.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from fleet.kafka_source import columns, failures, login, pieces, tasks
from fleet.kafka_source.pieces import OffsetRange, shares

FORMAT: Final = "fleet_kafka"
READ_TIMEOUT: Final = 20.0
"""Seconds without progress after which a task gives up."""
_REGISTERED: Final = "_fleet_kafka_cores"


class Share(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[Sequence[Any]]) -> None:
        super().__init__(None)
        self.ranges = [list(each) for each in ranges]


class RangesReader(DataSourceReader):
    """One batch: its shares as Spark's partitions."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._shares = json.loads(options["shares"])
        self._login = json.loads(options["login"])
        self._group = options["group"]
        self._isolation = options["isolation"]
        self._read_timeout = float(options["read_timeout"])

    def partitions(self) -> Sequence[InputPartition]:
        """One per share."""
        return [Share(each) for each in self._shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On a task."""
        from confluent_kafka import Consumer  # noqa: PLC0415 - only where the task runs

        if not isinstance(partition, Share):  # Spark's own, where there is no share at all
            return
        try:
            found = login.resolved(self._login, os.environ)
        except ValueError as error:
            raise failures.RangeUnread(str(error)) from None
        options = tasks.options_of(found, group=self._group, isolation=self._isolation)
        wanted = [OffsetRange(*each) for each in partition.ranges]
        yield from tasks.read_ranges(Consumer(options), wanted, read_timeout=self._read_timeout)


class FleetKafka(DataSource):
    """Registered as `fleet_kafka`; its options are made by `frame_of_ranges`."""

    @classmethod
    def name(cls) -> str:
        """For spark.read.format."""
        return FORMAT

    def schema(self) -> StructType:
        """Columns of Spark's own Kafka source."""
        return cast("StructType", columns.spark_schema())

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - PySpark's signature
        """See RangesReader."""
        return RangesReader(self.options)


def frame_of_ranges(
    spark: Any,
    ranges: Sequence[OffsetRange],
    *,
    login: login.References,
    group: str,
    isolation: str = "read_committed",
    read_timeout: float = READ_TIMEOUT,
) -> Any:
    """The records of the ranges as a DataFrame, read by about as many tasks as Spark has cores.

    group: a name that the principal may read with; nothing is joined or committed.
    """
    options = {
        "shares": json.dumps(shares(ranges, _prepared(spark))),
        "login": json.dumps(login),
        "group": group,
        "isolation": isolation,
        "read_timeout": f"{read_timeout:g}",
    }
    return spark.read.format(FORMAT).options(**options).load()


def _prepared(spark: Any) -> int:
    """Register the source, once per session; how many tasks Spark runs at once."""
    cores = getattr(spark, _REGISTERED, None)
    if cores is None:
        sent = (columns, failures, login, pieces, tasks, __import__(__name__, fromlist=["_"]))
        for module in sent:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        try:
            spark.dataSource.register(FleetKafka)
        finally:
            for module in sent:
                cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
        # A leaf of a plan has as many partitions as there are cores, on every kind of Spark.
        rows = spark.range(0, 100_000).selectExpr("spark_partition_id() AS p").distinct().count()
        cores = max(1, int(rows))
        setattr(spark, _REGISTERED, cores)
    return int(cores)
