"""Turns records written by hand into the batch that an entrypoint would get.

Problem: an entrypoint takes a DataFrame with the columns of Spark's Kafka source and a BatchContext
with matching ranges, which is too much to write in a test. Choice: a record is a mapping with only
what the test is about. The rest is counted up or has a fixed value, so that a test gets the same
batch every time. Cost: values are bytes in Kafka, so what is neither text nor bytes is written as
JSON.
"""

import base64
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from fleet.broker.jars import find_java
from fleet.errors import ConfigError
from fleet.kafka_source.columns import SCHEMA
from fleet.model.batch_context import BatchContext, BatchRange

# A Spark of one's own, as `worker.spark` has it: `shared` is a Connect server, `local[2]` a classic
# session; both JVMs are children of this process. PySpark's own local Connect server always listens
# on port 15002, so that of two test runs one would fail: here the system chooses the port.


SHARED: Final = "shared"
_CORES: Final = "local[2]"
_SETTINGS: Final[dict[str, Any]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_SERVER: Final = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}


@contextmanager
def local_spark(where: str = SHARED) -> Iterator[Any]:
    """Yields a session that is stopped at the end; `where` as `worker.spark` says it.

    Raises ConfigError for another place, FleetError if Java is missing.
    """
    # 0.3 s that a help text need not take.
    from fleet.worker.batch.spark_link import before_pyspark, forget_connect, own_jvm  # noqa: PLC0415

    if not where.startswith("sc://"):
        find_java()
    before_pyspark()
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if where == SHARED:
        with own_jvm():
            spark = _connected()
    elif where.startswith("sc://"):
        spark = SparkSession.builder.remote(where).getOrCreate()
    elif where.startswith("local["):
        forget_connect()
        with own_jvm():
            spark = SparkSession.builder.master(where).config(map=_SETTINGS).getOrCreate()
    else:
        raise ConfigError(
            f"{where} is not a place of Spark: write shared, local[N] or sc://HOST:PORT"
        )
    try:
        yield spark
    finally:
        spark.stop()


def _connected() -> Any:
    """Yields a session of a Connect server in a JVM of this process.

    It does what PySpark does for `remote("local[2]")`, except for the port. PySpark knows the
    server by these variables: `stop` ends it, and a job's own `getOrCreate` gets this session.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415
    from pyspark.sql.connect.session import SparkSession as Connected  # noqa: PLC0415

    os.environ.setdefault("SPARK_CONNECT_AUTHENTICATE_TOKEN", str(uuid.uuid4()))
    # A former client of Spark may start a server of its own only with this.
    os.environ["SPARK_LOCAL_REMOTE"] = "1"
    conf = SparkConf().setMaster(_CORES).setAll([*_SETTINGS.items(), *_SERVER.items()])
    server = SparkSession(SparkContext.getOrCreate(conf))
    service = "org.apache.spark.sql.connect.service.SparkConnectService$"
    jvm = server._jvm  # noqa: SLF001 - the only way to the port, as PySpark itself asks for it
    port = getattr(getattr(jvm, service), "MODULE$").localPort()
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    return Connected.builder.remote(f"sc://localhost:{port}").getOrCreate()


FIRST_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""Timestamp of the first record without one; each later one is a second after."""
_MOST: Final = {"partition": 2**31 - 1, "offset": 2**63 - 2}
_KEYS: Final = frozenset(
    {"key", "value", "key_base64", "value_base64", "headers", "topic", "partition", "offset"}
    | {"timestamp"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """Records as an Arrow table with the columns of Spark's Kafka source, and their context."""

    table: pa.Table
    context: BatchContext

    def frame(self, spark: Any) -> Any:
        """Returns the records as a DataFrame of that session."""
        from fleet.worker.batch.spark_link import frame_of  # noqa: PLC0415 - loads PySpark's types

        return frame_of(spark, self.table)


def make_batch(
    records: Iterable[Mapping[str, Any]],
    *,
    topic: str = "test",
    cluster: str = "test",
    group: str = "test",
    slot: int | None = 0,
    worker: str = "test-1",
    revision: str = "test",
    attempt: int = 1,
    warm: bool = False,
    trial: bool = False,
) -> SampleBatch:
    """Returns a batch of these records.

    All keys of a record are optional: `key`, `value` (text, bytes, None; anything else is written
    as JSON), `key_base64`, `value_base64`, `headers` (a mapping), `topic`, `partition` (0),
    `offset` (the one after the last of its partition, from 0), `timestamp` (a datetime, or
    milliseconds since the epoch). Offsets may have gaps, and never go back.

    Raises ConfigError, which `fleet test --from` also reports for a line.
    """
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    ends: dict[tuple[str, int], tuple[int, int]] = {}
    """(topic, partition) → the first offset and the one after the last."""
    for number, record in enumerate(records):
        unknown = sorted(set(record) - _KEYS)
        if unknown:
            raise ConfigError(
                f"record {number + 1} has {', '.join(unknown)}; it may have "
                f"{', '.join(sorted(_KEYS))}"
            )
        place = (str(record.get("topic", topic)), _whole(record, "partition", 0, number))
        _encoded(place[0], "topic", number)
        first, after = ends.get(place, (None, 0))
        offset = _whole(record, "offset", after, number)
        if offset < after:
            raise ConfigError(
                f"record {number + 1} has offset {offset}, and partition {place[1]} of {place[0]} "
                f"is at {after} by then: offsets only grow"
            )
        ends[place] = (offset if first is None else first, offset + 1)
        row = {
            "key": _content(record, "key", number),
            "value": _content(record, "value", number),
            "topic": place[0],
            "partition": place[1],
            "offset": offset,
            "timestamp": _time(record, number),
            "timestampType": 0,
            "headers": _headers(record, number),
        }
        for name, value in row.items():
            columns[name].append(value)
    ranges = [
        BatchRange(topic=each, topic_id=each, partition=partition, start=start, end=end)
        for (each, partition), (start, end) in sorted(ends.items())
    ]
    context = BatchContext(
        cluster=cluster,
        group=group,
        slot=slot,
        worker=worker,
        revision=revision,
        attempt=attempt,
        warm=warm,
        ranges=tuple(ranges),
        trial=trial,
    )
    return SampleBatch(table=pa.table(columns, schema=SCHEMA), context=context)


def _whole(record: Mapping[str, Any], name: str, default: int, number: int) -> int:
    value, most = record.get(name, default), _MOST[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ConfigError(f"{name} {value!r} of record {number + 1} is no number from 0 to {most}")
    return value


def _content(record: Mapping[str, Any], name: str, number: int) -> bytes | None:
    coded = record.get(f"{name}_base64")
    if coded is not None:
        try:
            return base64.b64decode(str(coded), validate=True)
        except ValueError as error:
            raise ConfigError(f"{name}_base64 of record {number + 1}: {error}") from error
    return _as_bytes(record.get(name), name, number)


def _as_bytes(value: Any, name: str, number: int) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return _encoded(value if isinstance(value, str) else json.dumps(value), name, number)


def _encoded(text: str, name: str, number: int) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{name} of record {number + 1} is no text ({error.reason}); write bytes as "
            f"{name}_base64"
        ) from error


def _time(record: Mapping[str, Any], number: int) -> datetime:
    given = record.get("timestamp")
    if given is None:
        return FIRST_TIME + timedelta(seconds=number)
    if isinstance(given, datetime):
        return given
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ConfigError(
            f"timestamp {given!r} of record {number + 1}: write milliseconds since the epoch"
        )
    try:
        return datetime.fromtimestamp(given / 1000, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(
            f"timestamp {given!r} of record {number + 1} is no time in milliseconds ({error})"
        ) from error


def _headers(record: Mapping[str, Any], number: int) -> list[dict[str, Any]] | None:
    given = record.get("headers")
    if not given:
        return None
    if not isinstance(given, Mapping):
        raise ConfigError(f"headers of record {number + 1} are no mapping of names to values")
    for key in given:
        _encoded(str(key), "a header's name", number)
    return [{"key": key, "value": _as_bytes(v, "header", number)} for key, v in given.items()]
