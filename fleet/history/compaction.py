"""Small files merged into large ones, and the memory into one file: a manifest of its own.

Problem: a batch every ten seconds leaves some 20,000 files a day, and every reader pays for
each. Choice: where a table's day has 16 small files or more they become one, read and written
row group by row group, so that memory is bounded by one of them; files of 32 MB stay as they
are. Nothing of Spark is needed. Readers see the old files or the new one; the old ones stay
until nobody reads them. Cost: a row is rewritten some four times before its file is large.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow.parquet as pq

from fleet.history.job_memory import JobMemory
from fleet.history.tables import day_of
from fleet.history.tables.table_columns import STATE, TABLES
from fleet.history.tables.table_manifests import DataFile
from fleet.history.tables.writing import Writer, with_files

MANY: Final = 16
SMALL: Final = 32 << 20
_LARGE: Final = 128 << 20
_ROWS: Final = 100_000


def compacted(writer: Writer, memory: JobMemory, *, thoroughly: bool = False) -> int:
    """Merge what is due and commit it; how many files were merged into fewer.

    `thoroughly`: wherever there are two.
    """
    folder = writer.attempt()
    runs = list(_runs(writer, 2 if thoroughly else MANY))
    added = [_merged(writer, f"{folder}/{number}", run) for number, run in enumerate(runs)]
    gone = {f.name for run in runs for f in run}
    for table in STATE:
        mine = writer.manifest.of(table)
        if len(mine) >= (2 if thoroughly else MANY):
            gone |= {f.name for f in mine}
            for whole in memory.whole(table):
                name = f"{folder}/{table[1:]}.parquet"
                added.append(writer.write_table(name, whole, table=table, day=""))
    if not gone and not _too_old(writer):
        return 0
    files = with_files(writer.manifest, added, gone=lambda f: f.name in gone)
    writer.commit(replace(writer.manifest, what="compaction", files=files))
    return len(gone)


def _too_old(writer: Writer) -> bool:
    """Whether a day has passed out of retention."""
    oldest = day_of(writer.clock.now() - writer.retention)
    return any(f.day and f.day < oldest for f in writer.manifest.files)


def _runs(writer: Writer, many: int) -> Iterator[list[DataFile]]:
    """Files to merge, each run of one table and day and at most 128 MB."""
    by_day: dict[tuple[str, str], list[DataFile]] = {}
    for each in writer.manifest.files:
        if each.table in TABLES and each.bytes < SMALL:
            by_day.setdefault((each.table, each.day), []).append(each)
    for files in by_day.values():
        run: list[DataFile] = []
        for each in files if len(files) >= many else ():
            if sum(f.bytes for f in run) + each.bytes > _LARGE:
                yield run
                run = []
            run.append(each)
        if len(run) > 1:
            yield run


def _merged(writer: Writer, folder: str, run: Sequence[DataFile]) -> DataFile:
    table, day = run[0].table, run[0].day
    schema = TABLES[table]
    name = f"{folder}/{table}/day={day}/0.parquet"
    with writer.writing(name, schema) as out:
        for each in run:
            with writer.place.fs.open_input_file(writer.place.full(each.name)) as source:
                for batch in pq.ParquetFile(source).iter_batches(_ROWS, columns=schema.names):
                    out.write_batch(batch.cast(schema))
    return writer.file(name, table=table, day=day, rows=sum(f.rows for f in run))
