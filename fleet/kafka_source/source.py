"""The data source `fleet_kafka`, and a DataFrame from offset ranges.

Problem: a data source's classes are pickled from the worker to Spark's server and to its executors.
A `sc://` cluster has no `fleet` installed, and the shared server may have another revision. Choice:
what a task needs (this module and the ones it names) is pickled by value, so that a task runs
exactly the code of its worker. Executors need only PySpark, pyarrow, numpy, kafka-python and
google-crc32c. Cost: 120 KB per session and job.
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
from fleet.kafka_source.login import References, resolve
from fleet.kafka_source.pieces import OffsetRange, shares
from fleet.kafka_source.tasks import READ_TIMEOUT, read_ranges, reading

FORMAT: Final = "fleet_kafka"
_REGISTERED: Final = "_fleet_kafka_cores"
_OURS: Final = (
    *("arrow_arrays", "batch_fetcher", "bounds", "columns", "connections", "failures", "login"),
    *("pieces", "record_batches", "record_fields", "source", "tasks"),
)
SENT: Final = ("fleet.system.closing", *(f"{__package__}.{name}" for name in _OURS))
"""Modules of this room that a task runs. None of them may be named as a module by another: a
function takes along what it uses, a module everything that stands in it."""


class Share(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: Sequence[Sequence[Any]]) -> None:
        super().__init__(None)
        self.ranges = [list(each) for each in ranges]


class RangesReader(DataSourceReader):
    """Reads one batch: its shares are Spark's partitions."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._shares = json.loads(options["shares"])
        self._login = json.loads(options["login"])
        self._isolation = options["isolation"]
        self._read_timeout = float(options["read_timeout"])

    def partitions(self) -> Sequence[InputPartition]:
        """Returns one partition per share."""
        return [Share(each) for each in self._shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one share, on a task."""
        if not isinstance(partition, Share):  # Spark passes its own if there is no share
            return
        try:
            found = resolve(self._login, os.environ)
        except ValueError as error:
            raise RangeUnread(str(error)) from None
        wanted = [OffsetRange(*each) for each in partition.ranges]
        fetching = reading(found, isolation=self._isolation)
        make = partial(batch_of_pieces, tell=to_stderr())
        yield from read_ranges(fetching, wanted, read_timeout=self._read_timeout, make=make)


class FleetKafka(DataSource):
    """The data source `fleet_kafka`; `frame_of_ranges` makes its options."""

    @classmethod
    def name(cls) -> str:
        """Returns the name for spark.read.format."""
        return FORMAT

    def schema(self) -> StructType:
        """Returns the columns of Spark's own Kafka source."""
        return cast("StructType", spark_schema())

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - PySpark's signature
        """Returns a RangesReader for the options."""
        return RangesReader(self.options)


def frame_of_ranges(
    spark: Any,
    ranges: Sequence[OffsetRange],
    *,
    login: References,
    isolation: str = "read_committed",
    read_timeout: float = READ_TIMEOUT,
) -> Any:
    """Returns the records of the ranges as a DataFrame, read by about one task per core.

    It joins no group and needs none: the login reads with its rights on the topic.
    """
    options = {
        "shares": json.dumps(shares(ranges, _prepared(spark))),
        "login": json.dumps(login),
        "isolation": isolation,
        "read_timeout": f"{read_timeout:g}",
    }
    return spark.read.format(FORMAT).options(**options).load()


def _prepared(spark: Any) -> int:
    """Registers the source, once per session; returns how many tasks Spark runs at once."""
    cores = getattr(spark, _REGISTERED, None)
    if cores is None:
        with by_value():
            spark.dataSource.register(FleetKafka)
        cores = cores_of(spark)
        setattr(spark, _REGISTERED, cores)
    return int(cores)


def cores_of(spark: Any) -> int:
    """Returns how many tasks Spark runs at once; waits until one runs.

    A leaf of a plan has as many partitions as there are cores, on every kind of Spark.
    """
    rows = spark.range(0, 100_000).selectExpr("spark_partition_id() AS p").distinct().count()
    return max(1, int(rows))


@contextmanager
def by_value(names: Sequence[str] = SENT) -> Iterator[None]:
    """Inside the block cloudpickle sends the code of these modules, not their names."""
    modules = [import_module(name) for name in names]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
