"""Each sink as tests ask it: write a batch, read the offsets that are there."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.demo.coverage import read_topics
from fleet.model.batch_context import BatchContext, BatchRange
from fleet.sinks import parquet_files, write_delta, write_iceberg, write_kafka, write_parquet
from tests.support.batch_parts import context_of

TOPIC_ID = "a-topic_id-00"
GROUP = "g"
Place = Mapping[str, str]
"""What a sink needs to be found again, as JSON takes it: to a child process and back."""


@dataclass(frozen=True)
class Case:
    """One sink at one place."""

    write: Callable[..., int]
    """(rows, context, **more)."""
    rows: Callable[[], list[dict[str, Any]]]

    def offsets(self, partition: int = 3) -> list[int]:
        """Of one partition, in order; a row that is there twice is there twice."""
        return sorted(row["offset"] for row in self.rows() if row.get("partition") == partition)


def delta(place: Place) -> Case:
    """Delta Lake in a folder or a store."""
    from deltalake import DeltaTable

    where, store = place["path"], json.loads(place.get("store", "{}"))

    def write(rows: Any, context: BatchContext, **more: Any) -> int:
        return write_delta(rows, where, context, store=store, **more)

    def read() -> list[dict[str, Any]]:
        from fleet.sinks.delta import delta_options

        options = delta_options(store) if "://" in where else None
        if not DeltaTable.is_deltatable(where, options):
            return []
        found: list[dict[str, Any]] = pa.table(
            DeltaTable(where, storage_options=options).to_pyarrow_table()
        ).to_pylist()
        return found

    return Case(write, read)


def parquet(place: Place) -> Case:
    """Plain Parquet in a folder."""
    where = Path(place["path"])

    def write(rows: Any, context: BatchContext, **more: Any) -> int:
        return write_parquet(rows, where, context, **more)

    def read() -> list[dict[str, Any]]:
        return [row for f in parquet_files(where) for row in pq.ParquetFile(f).read().to_pylist()]

    return Case(write, read)


def iceberg(place: Place) -> Case:
    """Iceberg with a catalog in SQLite."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import NoSuchTableError

    folder = Path(place["path"])
    folder.mkdir(parents=True, exist_ok=True)
    where = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    catalog = SqlCatalog("test", **where | json.loads(place.get("catalog", "{}")))
    catalog.create_namespace_if_not_exists("ns")

    def write(rows: Any, context: BatchContext, **more: Any) -> int:
        return write_iceberg(rows, "ns.table", context, catalog=catalog, **more)

    def read() -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = (
                catalog.load_table("ns.table").scan().to_arrow().to_pylist()
            )
        except NoSuchTableError:
            return []
        return found

    return Case(write, read)


def kafka(place: Place) -> Case:
    """A topic, read as those do who read what is committed; a row is JSON."""
    client, topic = {"bootstrap.servers": place["bootstrap"]}, place["topic"]

    def write(rows: Any, context: BatchContext, **more: Any) -> int:
        if (made := more.pop("transform", None)) is not None:
            return write_kafka(
                rows, topic, context, client=client, transform=lambda r: as_values(made(r)), **more
            )
        return write_kafka(as_values(rows), topic, context, client=client, **more)

    def read() -> list[dict[str, Any]]:
        found: list[bytes] = []
        read_topics(client, [topic], number=lambda message: found.append(message.value()))
        return [json.loads(each) for each in found]

    return Case(write, read)


def made_topics(bootstrap: str, topic: str) -> Place:
    """The place of a new topic; the records' own topic is there, too."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic("t", 5, 1), NewTopic(topic, 3, 1)]).values():
        try:
            made.result(120)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    return {"bootstrap": bootstrap, "topic": topic}


def as_values(rows: Any) -> Any:
    """Rows with all that they hold in `value`, beside where they come from."""
    place = ("topic", "partition", "offset")
    if not isinstance(rows, pa.Table):
        names = [name for name in place if name in rows.columns]
        return rows.selectExpr(*names, "to_json(struct(*)) AS value")
    names = [name for name in place if name in rows.column_names]
    return rows.select(names).append_column("value", [[json.dumps(r) for r in rows.to_pylist()]])


SINKS: dict[str, Callable[[Place], Case]] = {
    "delta": delta,
    "iceberg": iceberg,
    "kafka": kafka,
    "parquet": parquet,
}


def range_of(start: int, end: int, partition: int = 3) -> BatchRange:
    """Of topic t."""
    return BatchRange(topic="t", topic_id=TOPIC_ID, partition=partition, start=start, end=end)


def records(*ranges: BatchRange) -> pa.Table:
    """One record per offset."""
    rows = [
        {"topic": r.topic, "partition": r.partition, "offset": at, "n": at}
        for r in ranges
        for at in range(r.start, r.end)
    ]
    kinds = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
    return pa.Table.from_pylist(rows, pa.schema([*kinds, ("n", pa.int64())]))


def batch(*ranges: BatchRange) -> tuple[pa.Table, BatchContext]:
    """The arguments of a write."""
    return records(*ranges), context_of(ranges, group=GROUP)


def counted(rows: Any) -> pa.Table:
    """Rows that belong to no offset: how many records, per parity of n."""
    found = Counter(n % 2 for n in rows["n"].to_pylist())
    return pa.table({"odd": list(found), "records": list(found.values())})


def sums(rows: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """What rows of `counted` say in all."""
    total: Counter[int] = Counter()
    for row in rows:
        if row.get("odd") is not None:
            total[row["odd"]] += row["records"]
    return dict(total)
