"""What Spark does for a batch: tasks read their ranges, digest them, and write the tables' files.

Problem: rows that go from a task's Python to Spark's JVM to be written there cost a second of CPU
a batch, and a data source is asked for its schema and its partitions in Python processes of its
own before a task begins. Choice: a task is a function over a share of the ranges
(`mapInArrow`): it reads with the reader of `consumer_offsets`, digests (`fleet.history.rollup`)
and writes Parquet by pyarrow; to Spark it gives the names, rows and sizes of its files. Spark
deals the shares, runs a task again where its executor died, and hands on what those that
succeeded have told. Every attempt of a task takes names of its own, and only files that are told
count: what a killed or a second attempt left is named by no manifest. Cost: executors reach an
object store by pyarrow, so its credentials have to be in their environment.

The code travels by value, as that of the data source does.
"""

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fleet.errors import Unreachable
from fleet.history.prefilter import decoded_last
from fleet.history.read_options import ReadOptions, read_options
from fleet.history.rollup import Rollup
from fleet.history.source import _SENT as READ
from fleet.history.source import read_share
from fleet.history.tables.table_columns import DIGEST, TABLES, decoded, spark_ddl
from fleet.history.tables.table_folder import TableFolder, data_name
from fleet.kafka_source.failures import RangeUnread
from fleet.kafka_source.pieces import OffsetRange, shares
from fleet.kafka_source.source import by_value
from fleet.log.record_columns import columns

ROWS: Final = 100_000
"""Rows that a task holds at most before it writes them: a file for each table and day."""
FILES: Final = pa.schema(
    [
        ("name", pa.string()),
        ("table", pa.string()),
        ("day", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
"""What a task tells of the files that it has written, whole and closed."""
_SENT: Final = (
    *READ,
    "fleet.errors",
    *(
        "fleet.history.rollup",
        "fleet.history.rollup_tasks",
        "fleet.history.prefilter",
        "fleet.history.tables.table_folder",
        "fleet.history.tables.table_columns",
    ),
)


class Task:
    """One batch, as its tasks know it: a function for `mapInArrow` over numbers of shares.

    `options` are those of `consumer_offsets` without offsets, `digest` what Rollup takes;
    `place` and `attempt` say where the files go, `cluster` is their first column.
    """

    def __init__(
        self,
        dealt: Sequence[Sequence[OffsetRange]],
        *,
        options: Mapping[str, str],
        digest: Mapping[str, Any],
        place: str,
        attempt: str,
        cluster: str,
    ) -> None:
        self._dealt = dealt
        self._options = dict(options)
        self._digest = dict(digest)
        self._place = place
        self._attempt = attempt
        self._cluster = cluster

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """FILES of the shares that the rows name."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                found = list(self.files(self._dealt[number]))
                yield pa.RecordBatch.from_pylist(found, schema=FILES)

    def files(self, ranges: Sequence[OffsetRange]) -> Iterator[dict[str, Any]]:
        """Read, digest and write these ranges."""
        for which in (None, True, False):
            mine = [each for each in ranges if each.transactions is which]
            if mine:
                yield from self._files(mine, self._wish(which))

    def _wish(self, transactions: bool | None) -> ReadOptions:
        """What is outside of transactions is read to the log's end; what is in them comes after
        its neighbours, of which gaps and leaders were told.
        """
        parsed = read_options(self._options)
        if transactions is None:
            return parsed
        if transactions:
            return parsed._replace(epochs=None, gaps=None)
        return parsed._replace(isolation="read_uncommitted")

    def _files(
        self, ranges: Sequence[OffsetRange], parsed: ReadOptions
    ) -> Iterator[dict[str, Any]]:
        interval = self._digest["interval"]
        decode = partial(decoded_last, interval=interval) if interval else columns
        read = read_share(parsed, ranges, decode)
        held, count = [], 0
        for rows in Rollup(DIGEST, **self._digest).run(read):
            held.append(rows)
            count += rows.num_rows
            if count >= ROWS:
                yield from self._write(held)
                held, count = [], 0
        yield from self._write(held)

    def _write(self, held: Sequence[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        """A file for each table and day of the rows."""
        for table, schema in TABLES.items():
            mine = [batch for batch in held if batch.column("kind")[0].as_py() == table]
            if not mine:
                continue
            rows = pa.Table.from_batches(mine)
            for day in pc.unique(rows["day"]).to_pylist():
                of_day = rows.filter(pc.equal(rows["day"], day))
                own = {"cluster": pa.repeat(self._cluster, of_day.num_rows)}
                data = pa.Table.from_arrays(
                    [own[name] if name in own else of_day[decoded(name)] for name in schema.names],
                    schema=schema,
                )
                name = data_name(table, self._attempt, day, uuid.uuid4().hex)
                size = self._put(name, data)
                yield {
                    "name": name,
                    "table": table,
                    "day": day,
                    "rows": data.num_rows,
                    "bytes": size,
                }

    def _put(self, name: str, data: pa.Table) -> int:
        """One file; its size. A place that is away is told so that the driver knows it again."""
        try:
            place = TableFolder(self._place)
            with place.answering():
                place.fs.create_dir(place.full(name.rpartition("/")[0]), recursive=True)
                with place.fs.open_output_stream(place.full(name)) as out:
                    pq.write_table(data, out, compression="zstd")
                    return int(out.tell())
        except Unreachable as error:
            raise RangeUnread(str(error)) from error


def rolled_up(
    spark: Any, ranges: Iterable[OffsetRange], *, options: Mapping[str, str], **batch: Any
) -> list[dict[str, Any]]:
    """Have the ranges read and written; what the tasks tell of their files, as FILES.

    As many tasks as the option `tasks` says, else as this machine has cores; `batch` is what Task
    takes.
    """
    parsed = read_options(options)
    dealt = shares(ranges, parsed.tasks or os.cpu_count() or 1)
    task = Task(dealt, options=options, **batch)
    numbers = spark.range(0, len(dealt), 1, len(dealt))
    with by_value(_SENT):
        told = numbers.mapInArrow(task, spark_ddl(FILES)).toArrow()
    return list(told.to_pylist())
