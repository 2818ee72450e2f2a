"""`fleet_kafka`: the data source itself, and a DataFrame from named ranges.

Problem: a data source's classes are pickled from the worker to Spark's server and on to its
executors, and on a `sc://` cluster no `fleet` is installed; on the shared server it may be of
another revision. Choice: what a task needs (this module and the ones it names) is pickled by
value, so that a task runs exactly the code of the worker that asked; executors need only
PySpark, pyarrow, numpy, kafka-python and google-crc32c. Cost: 120 KB per session and job.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Final, cast

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from fleet.kafka_source.columns import batch_of_pieces, spark_schema, to_stderr
from fleet.kafka_source.failures import RangeUnread
from fleet.kafka_source.login import References, resolved
from fleet.kafka_source.pieces import OffsetRange, shares
from fleet.kafka_source.tasks import READ_TIMEOUT, read_ranges, reading

FORMAT: Final = "fleet_kafka"
_REGISTERED: Final = "_fleet_kafka_cores"
_OURS: Final = (
    *("arrow_arrays", "batch_fetcher", "bounds", "columns", "connections", "failures", "login"),
    *("pieces", "record_batches", "record_fields", "source", "tasks", "transactions"),
)
SENT: Final = ("fleet.system.closing", *(f"{__package__}.{name}" for name in _OURS))
"""Modules of this room that a task runs. None of them may be named as a module by another: a
function takes along what it uses, a module everything that stands in it."""


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
        self._isolation = options["isolation"]
        self._read_timeout = float(options["read_timeout"])

    def partitions(self) -> Sequence[InputPartition]:
        """One per share."""
        return [Share(each) for each in self._shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On a task."""
        if not isinstance(partition, Share):  # Spark's own, where there is no share at all
            return
        try:
            found = resolved(self._login, os.environ)
        except ValueError as error:
            raise RangeUnread(str(error)) from None
        wanted = [OffsetRange(*each) for each in partition.ranges]
        fetching = reading(found, isolation=self._isolation)
        make = partial(batch_of_pieces, tell=to_stderr())
        yield from read_ranges(fetching, wanted, read_timeout=self._read_timeout, make=make)


class FleetKafka(DataSource):
    """Registered as `fleet_kafka`; its options are made by `frame_of_ranges`."""

    @classmethod
    def name(cls) -> str:
        """For spark.read.format."""
        return FORMAT

    def schema(self) -> StructType:
        """Columns of Spark's own Kafka source."""
        return cast("StructType", spark_schema())

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - PySpark's signature
        """See RangesReader."""
        return RangesReader(self.options)


def frame_of_ranges(
    spark: Any,
    ranges: Sequence[OffsetRange],
    *,
    login: References,
    isolation: str = "read_committed",
    read_timeout: float = READ_TIMEOUT,
) -> Any:
    """The records of the ranges as a DataFrame, read by about as many tasks as Spark has cores.

    No group is joined, and none is needed: the login reads with its rights on the topic.
    """
    options = {
        "shares": json.dumps(shares(ranges, _prepared(spark))),
        "login": json.dumps(login),
        "isolation": isolation,
        "read_timeout": f"{read_timeout:g}",
    }
    return spark.read.format(FORMAT).options(**options).load()


def _prepared(spark: Any) -> int:
    """Register the source, once per session; how many tasks Spark runs at once."""
    cores = getattr(spark, _REGISTERED, None)
    if cores is None:
        with by_value():
            spark.dataSource.register(FleetKafka)
        cores = cores_of(spark)
        setattr(spark, _REGISTERED, cores)
    return int(cores)


def cores_of(spark: Any) -> int:
    """How many tasks Spark runs at once; waits until one runs.

    A leaf of a plan has as many partitions as there are cores, on every kind of Spark.
    """
    rows = spark.range(0, 100_000).selectExpr("spark_partition_id() AS p").distinct().count()
    return max(1, int(rows))


@contextmanager
def by_value(names: Sequence[str] = SENT) -> Iterator[None]:
    """Meanwhile cloudpickle sends the code of these modules itself, not their names."""
    modules = [import_module(name) for name in names]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
