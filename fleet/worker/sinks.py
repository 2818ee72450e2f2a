"""A Parquet sink that removes repetition: one directory per range, renamed into place.

Problem: after a crash between writing and committing, the successor repeats the same ranges
[4], and an append would hold their records twice. Choice: rows are written under a temporary
name, then each partition's part is renamed to `topic=…/partition=…/range=<range id>`; rename is
atomic, and a range that is there already is left as it is. A failing batch is narrowed to parts
of its ranges, whose rows may be there as a whole; or the whole comes after its parts: what other
ranges cover is left out by the column `offset`, or parts are replaced by the whole. Spark reads
the result as a table partitioned by topic, partition and range; temporary names begin with `_`,
which it ignores.

Limits: the DataFrame keeps the columns `topic` and `partition` of its records (rows made from
several partitions, such as aggregates, belong to no range: write those to a sink of your own);
`path` is a folder that Spark's tasks and this worker share (this machine, or a mount), not an
object store, which has no rename; rows that Spark wrote and that are not seen here fail the batch;
a range in which no row was left writes nothing. Every batch adds a directory per partition:
compact old ones by copying, not by moving, while fleets run.
"""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from fleet.clock import SystemClock
from fleet.errors import FleetError
from fleet.kafka_source.observed import observed
from fleet.worker.context import BatchContext, BatchRange

_TEMPORARY: Final = "_fleet-"
_STALE_SECONDS: Final = 3600.0
Span = tuple[int, int]
"""First offset, next after the last."""


def write_parquet(df: Any, path: str | Path, context: BatchContext) -> int:
    """Write a batch's rows once, however often the batch is repeated; how many ranges are new.

    In the dummy batch that warms a worker it writes nothing and removes what crashed workers
    left under temporary names for more than an hour. Raises FleetError where `path` is no local
    folder, the columns are missing, rows belong to no range of this batch, or some are not here.
    """
    folder = _local(path)
    if context.warm:
        _sweep(folder)
        return 0
    missing = {"topic", "partition"} - set(df.columns)
    if missing:
        raise FleetError(
            f"write_parquet needs the columns topic and partition of the records; the DataFrame "
            f"lacks {', '.join(sorted(missing))} (it has {', '.join(df.columns)})"
        )
    there = {each: _there(folder, each) for each in context.ranges}
    new = [each for each in context.ranges if _uncovered(each, there[each])]
    if not new:
        return 0
    replaced = _replaced(df.columns, {each: there[each] for each in new})
    temporary = folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
    try:
        covered = {each: there[each] for each in context.ranges if not replaced.get(each)}
        frame, counted = observed(_left_out(df, covered))
        frame.write.partitionBy("topic", "partition").parquet(str(temporary))
        _refuse_missing(temporary, written=counted())
        _refuse_strange(temporary, context)
        return sum(_place(temporary, folder, each, replaced.get(each, ())) for each in new)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _there(folder: Path, each: BatchRange) -> tuple[Span, ...]:
    """Offsets of this topic's partition that other ranges (or this one) have written."""
    prefix = f"range={each.topic_id}-{each.partition}-"
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(_partition(folder, each)) as entries:
        for entry in entries:
            start, dash, end = entry.name.removeprefix(prefix).partition("-")
            if entry.name.startswith(prefix) and dash and start.isdigit() and end.isdigit():
                span = (int(start), int(end))
                if span[0] < each.end and each.start < span[1]:
                    found.append(span)
    return tuple(sorted(found))


def _uncovered(each: BatchRange, there: Iterable[Span]) -> bool:
    """Whether some offset of the range is in none of these (by their starts)."""
    at = each.start
    for start, end in there:
        if start > at:
            break
        at = max(at, end)
    return at < each.end


def _replaced(
    columns: Sequence[str], there: Mapping[BatchRange, tuple[Span, ...]]
) -> dict[BatchRange, tuple[Span, ...]]:
    """Which parts a range that is written whole takes the place of: where rows have no offset.

    Those parts are committed nowhere, else the range began behind them.
    """
    if "offset" in columns:
        return {}
    for each, spans in there.items():
        odd = [s for s in spans if not each.start <= s[0] < s[1] <= each.end]
        if odd:
            raise FleetError(
                f"offsets {each.start} to {each.end - 1} of {each.tp} overlap {odd[0][0]} to "
                f"{odd[0][1] - 1}, which are written already: keep the column offset in the "
                "DataFrame, so that write_parquet can leave those rows out"
            )
    return {each: spans for each, spans in there.items() if spans}


def _left_out(df: Any, covered: Mapping[BatchRange, tuple[Span, ...]]) -> Any:
    """Without the rows that are there."""
    for each, spans in covered.items():
        if "offset" in df.columns and spans:
            inside = " OR ".join(f"(offset >= {a} AND offset < {b})" for a, b in spans)
            df = df.where(
                f"NOT (topic = '{each.topic}' AND partition = {each.partition} AND ({inside}))"
            )
    return df


def _place(temporary: Path, folder: Path, each: BatchRange, replaced: Iterable[Span]) -> bool:
    """Rename one partition's rows into place; False where they are there or there are none."""
    source = _partition(temporary, each)
    final = _final(folder, each)
    if final.exists() or not source.is_dir():
        return False
    final.parent.mkdir(parents=True, exist_ok=True)
    for start, end in replaced:  # gone for a moment, and written nowhere twice
        part = _final(folder, replace(each, start=start, end=end))
        with contextlib.suppress(FileNotFoundError):
            part.rename(temporary / f"replaced-{each.partition}-{start}")
    try:
        source.rename(final)
    except OSError:
        if final.exists():  # a former holder of the slot was a moment quicker, with the same rows
            return False
        raise
    return True


def _refuse_missing(temporary: Path, *, written: int) -> None:
    """FleetError where executors wrote to a disk of their own under the same name."""
    here = sum(pq.read_metadata(file).num_rows for file in temporary.rglob("*.parquet"))
    if here != written:
        raise FleetError(
            f"Spark wrote {written} rows into {temporary}, and this worker sees {here} of them: "
            "write_parquet needs a folder that Spark's driver, its executors and this worker share"
        )


def _refuse_strange(temporary: Path, context: BatchContext) -> None:
    """FleetError where a row belongs to no range of the batch."""
    expected = {_partition(temporary, each) for each in context.ranges}
    strange = set(temporary.glob("topic=*/partition=*")) - expected
    if strange:
        names = ", ".join(sorted(str(each.relative_to(temporary)) for each in strange))
        raise FleetError(f"rows of {names} belong to no range of this batch: nothing was written")


def _partition(root: Path, each: BatchRange) -> Path:
    return root / f"topic={each.topic}" / f"partition={each.partition}"


def _final(root: Path, each: BatchRange) -> Path:
    return _partition(root, each) / f"range={each.id}"


def _local(path: str | Path) -> Path:
    text = str(path).removeprefix("file://").removeprefix("file:")
    if "://" in text or not text.startswith("/"):
        raise FleetError(
            f"write_parquet writes to an absolute local path, not to {path}: object stores have no "
            "rename; use a table format there"
        )
    return Path(text)


def _sweep(folder: Path) -> None:
    old = SystemClock().now() - _STALE_SECONDS  # against the file system's own times
    for each in folder.glob(f"{_TEMPORARY}*"):
        if each.stat().st_mtime < old:
            shutil.rmtree(each, ignore_errors=True)
