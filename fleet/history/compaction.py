"""Small files merged into large ones, and the memory into one file: a manifest of its own.

Problem: a batch every ten seconds leaves some 20,000 files a day, and every reader pays for
each. Choice: where a table's day has 16 small files or more they become one, read and written
row group by row group, so that memory is bounded by one of them; files of 32 MB stay as they
are. What has to be rewritten anyway goes the same way, the newest day first and a limited size
at a time: lag that has come of age (fleet.history.thinning), and files of the first layout.
Nothing of Spark is needed. Readers see the old files or the new one; the old ones stay until
nobody reads them. Cost: a row is rewritten some four times before its file is large.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.history.job_memory import JobMemory
from fleet.history.tables import day_of
from fleet.history.tables.table_columns import STATE, TABLES, before
from fleet.history.tables.table_folder import data_name
from fleet.history.tables.table_manifests import DataFile
from fleet.history.tables.writing import Writer, with_files
from fleet.history.thinning import every_of, thinned

MANY: Final = 16
SMALL: Final = 32 << 20
AT_ONCE: Final = 128 << 20
"""Bytes of aged and old files that one call rewrites; the next one goes on."""
_LARGE: Final = 128 << 20
_ROWS: Final = 100_000


class _Rewrite(NamedTuple):
    """Files of one table and day that become one, with a row for `every` seconds (0: all)."""

    files: Sequence[DataFile]
    every: int


def compacted(writer: Writer, memory: JobMemory, *, thoroughly: bool = False) -> int:
    """Merge what is due and commit it; how many files were merged into fewer.

    `thoroughly`: wherever there are two. Until it is 0 there may be more to rewrite.
    """
    attempt = writer.attempt()
    many = 2 if thoroughly else MANY
    todo = list(_runs(writer, many))
    added = [_merged(writer, attempt, number, run) for number, run in enumerate(todo)]
    gone = {f.name for run in todo for f in run.files}
    for table in STATE:
        mine = writer.manifest.of(table)
        if len(mine) >= many:
            gone |= {f.name for f in mine}
            added += [writer.write_memory(attempt, table, each) for each in memory.whole(table)]
    if not gone and not _too_old(writer):
        return 0
    files = with_files(writer.manifest, added, gone=lambda f: f.name in gone)
    writer.commit(replace(writer.manifest, what="compaction", files=files))
    return len(gone)


def _too_old(writer: Writer) -> bool:
    """Whether a day has passed out of retention."""
    oldest = day_of(writer.clock.now() - writer.retention)
    return any(f.day and f.day < oldest for f in writer.manifest.files)


def _runs(writer: Writer, many: int) -> Iterator[_Rewrite]:
    """What is to be rewritten, each run of at most 128 MB; of aged and old files AT_ONCE."""
    by_day: dict[tuple[str, str], list[DataFile]] = {}
    for each in writer.manifest.files:
        if each.table in TABLES:
            by_day.setdefault((each.day, each.table), []).append(each)
    now, taken = writer.clock.now(), 0
    for (day, table), files in sorted(by_day.items(), reverse=True):
        every = every_of(table, day, now=now)
        due = [f for f in files if f.old or f.every < every]
        small = [f for f in files if f.bytes < SMALL]
        if due:
            for run in _parts(due):
                if taken >= AT_ONCE:
                    break
                taken += sum(f.bytes for f in run)
                yield _Rewrite(run, every)
        elif len(small) >= many:
            for run in _parts(small):
                if len(run) > 1:
                    yield _Rewrite(run, every)


def _parts(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """In order, each of at most 128 MB or one file."""
    run: list[DataFile] = []
    for each in files:
        if run and sum(f.bytes for f in run) + each.bytes > _LARGE:
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def _merged(writer: Writer, attempt: str, number: int, run: _Rewrite) -> DataFile:
    table, day = run.files[0].table, run.files[0].day
    name = data_name(table, attempt, day, str(number))
    rows: Iterable[Any] = _batches(writer, run.files)
    if any(f.every < run.every for f in run.files):
        rows = thinned(rows, run.every)
    count = 0
    with writer.writing(name, TABLES[table]) as out:
        for each in rows:
            out.write(each)
            count += each.num_rows
    return writer.file(name, table=table, day=day, rows=count, every=run.every)


def _batches(writer: Writer, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
    """Their rows, with the columns of today."""
    for each in files:
        schema = TABLES[each.table]
        stored = before(each.table) if each.old else schema
        with (
            writer.place.reading(),
            writer.place.fs.open_input_file(writer.place.full(each.name)) as source,
        ):
            for batch in pq.ParquetFile(source).iter_batches(_ROWS):
                yield pa.RecordBatch.from_arrays(
                    [
                        _column(batch, name, kind)
                        for name, kind in zip(stored.names, schema.types, strict=True)
                    ],
                    schema=schema,
                )


def _column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    """A column; null where the file is older than it."""
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, kind)
    return batch.column(name).cast(kind)
