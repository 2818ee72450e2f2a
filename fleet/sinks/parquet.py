"""A Parquet sink: one folder per batch, renamed into place with its offsets.

Problem: after a kill the same offsets come again, and an append would store their rows twice [4]. A
folder per range and batch would be hundreds a minute. Choice: the worker writes one file below a
temporary name as rows come and adds `_written.json` (spans of offsets per partition). Then it
renames the folder to `batch-<hash of its ranges>`: it exists whole or not at all. The written
offsets are known from these files, read once each. A lock of the file system (`flock`) makes
reading and renaming one step, even for a former owner that wakes up. Readers ignore names with `_`.
Cost: many small folders, until `compact_parquet` merges them.

Limits: `path` is a folder that the workers share (this machine, or a mount with locks). An object
store has no rename: use Delta Lake or Iceberg there.
"""

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fleet.clock import SystemClock
from fleet.errors import FleetError
from fleet.model.batch_context import BatchContext, BatchRange
from fleet.sinks.arrow_rows import arrow_schema, open_reader
from fleet.sinks.batch_rows import (
    Span,
    Spans,
    Transform,
    format_spans,
    key,
    merge_spans,
    missing,
    new_ranges,
    new_rows,
    parse_spans,
)
from fleet.system.home import locked

TEMPORARY: Final = "_fleet-"
WRITTEN: Final = "_written.json"
_STALE_SECONDS: Final = 3600.0
_TRIES: Final = 5
_GROUP_ROWS: Final = 100_000
"""Rows that are gathered before they are written as one row group."""
_FOLDERS: Final = ("batch-", "merged-", "_merged-")


@dataclass(frozen=True, slots=True)
class BatchFolder:
    """A folder of the table: its name, its offsets, and the folders that it replaces."""

    name: str
    written: Mapping[str, Spans]
    replaces: frozenset[str] = frozenset()


_known: dict[Path, dict[str, BatchFolder]] = {}
"""Folders never change: each is read once in a process."""


def write_parquet(
    rows: Any,
    path: str | Path,
    context: BatchContext,
    *,
    transform: Transform | None = None,
    name: str = "",
) -> int:
    """Writes a batch's rows once, however often it is repeated; returns how many of its ranges were
    new.

    rows: the batch's DataFrame, or a `pyarrow.Table` of it. transform: makes rows of the records
    that are not written yet (aggregates need it). name: tells apart two writes of one batch to one
    folder. In the empty batch that warms a worker it writes nothing, and removes temporary names of
    crashed workers after more than an hour. Raises FleetError if `path` is no local folder, or rows
    cannot be left out or stored.
    """
    root = local_folder(path, "write_parquet")
    if context.warm:
        _sweep(root)
    if context.warm or context.trial:
        return 0
    for _ in range(_TRIES):
        written = _written(root, context, name)
        new = new_ranges(written)
        if not new:
            return 0
        left = new_rows(rows, written, transform, sink="write_parquet")
        spans = {each: missing(each.start, each.end, written[each]) for each in new}
        if _write(root, left, context, spans, name):
            return len(new)
    raise FleetError(
        f"write_parquet: others wrote offsets of this batch into {root} {_TRIES} times meanwhile: "
        "look for another worker that writes the same partitions"
    )


def _write(
    root: Path, rows: Any, context: BatchContext, spans: Mapping[BatchRange, Spans], name: str
) -> bool:
    """Writes one folder; False if others wrote some of it meanwhile."""
    temporary = root / f"{TEMPORARY}{uuid.uuid4().hex}"
    temporary.mkdir(parents=True)
    try:
        if not _write_file(temporary, rows):  # no row remained
            return True
        mine = {key(context, each, name): each_spans for each, each_spans in spans.items()}
        write_marker(temporary, mine)
        with locked(root / f"{TEMPORARY}lock"):
            now = _written(root, context, name)
            if any(missing(a, b, now[each]) != ((a, b),) for each in spans for a, b in spans[each]):
                return False
            temporary.rename(root / _name("batch", mine))
        return True
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_file(folder: Path, rows: Any) -> int:
    """Writes the rows as they come; returns how many there were.

    In this thread: pyarrow's dataset writer reads rows in threads of its own, and has ended the
    process after a refused row.
    """
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write
    import pyarrow.parquet as pq  # noqa: PLC0415

    count = 0
    schema = arrow_schema(rows, nanoseconds=True)
    for field in schema:
        if pa.types.is_interval(field.type):
            raise FleetError(
                f"write_parquet: column {field.name} is {field.type}, which Parquet does not have"
            )
    with (
        open_reader(rows, schema, sink="write_parquet") as reader,
        pq.ParquetWriter(folder / "part-0.parquet", schema) as writer,
    ):
        gathered: list[Any] = []
        for batch in reader:
            gathered.append(batch)
            count += batch.num_rows
            if sum(each.num_rows for each in gathered) >= _GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(gathered))
                gathered.clear()
        if gathered:
            writer.write_table(pa.Table.from_batches(gathered))
    return count


def _written(root: Path, context: BatchContext, name: str) -> dict[BatchRange, Spans]:
    """Returns the written offsets of each range's partition."""
    keys = {key(context, each, name): each for each in context.ranges}
    found: dict[str, list[Span]] = {each: [] for each in keys}
    for held in folders(root).values():
        for mine in held.written.keys() & keys.keys():
            found[mine] += held.written[mine]
    return {each: merge_spans(found[mine]) for mine, each in keys.items()}


def folders(root: Path) -> dict[str, BatchFolder]:
    """Returns the table's folders by name, as of now."""
    for _ in range(_TRIES):
        known = _known.get(root, {})
        names: set[str] = set()
        with contextlib.suppress(FileNotFoundError), os.scandir(root) as entries:
            names = {e.name for e in entries if e.name.startswith(_FOLDERS)}
        with contextlib.suppress(FileNotFoundError):  # merged since it was read: read again
            _known[root] = {name: known.get(name) or _held(root, name) for name in names}
            return _known[root]
    raise FleetError(f"folders of {root} lack their {WRITTEN}: were they copied in part?")


def _held(root: Path, name: str) -> BatchFolder:
    told = json.loads((root / name / WRITTEN).read_text())
    spans = {each: parse_spans(text) for each, text in told["written"].items()}
    return BatchFolder(name, spans, frozenset(told["replaces"]))


def write_marker(folder: Path, written: Mapping[str, Spans], replaces: Iterable[str] = ()) -> None:
    """Writes the offsets of a folder."""
    told = {
        "v": 1,
        "written": {each: format_spans(spans) for each, spans in sorted(written.items())},
        "replaces": sorted(replaces),
    }
    (folder / WRITTEN).write_text(json.dumps(told))


def local_folder(path: str | Path, sink: str) -> Path:
    """Returns the path; FleetError for an object store, or a path that depends on the process."""
    text = str(path).removeprefix("file://").removeprefix("file:")
    if "://" in text or not text.startswith("/"):
        raise FleetError(
            f"{sink} writes to an absolute local path, not to {path}: object stores have no "
            "rename; use write_delta or write_iceberg there"
        )
    return Path(text)


def _name(kind: str, written: Mapping[str, Spans]) -> str:
    told = "|".join(f"{each}:{format_spans(spans)}" for each, spans in sorted(written.items()))
    return f"{kind}-{hashlib.sha256(told.encode()).hexdigest()[:32]}"


def _sweep(root: Path) -> None:
    old = SystemClock().now() - _STALE_SECONDS  # against the file system's own times
    for each in root.glob(f"{TEMPORARY}*"):
        if each.is_dir() and each.stat().st_mtime < old:
            shutil.rmtree(each, ignore_errors=True)


# Merged rows appear as `_merged-<hash>`, which names the folders that it replaces; `parquet_files`
# uses it instead of them at once. `keep` seconds later those are removed, and the merged folder
# gets its plain name, `merged-<hash>`. Readers without `parquet_files` see the old folders until
# then: never a row twice, and for the milliseconds of that change none of these rows.


KEEP_SECONDS: Final = 600.0
MERGED_BYTES: Final = 128 << 20
"""Folders are merged up to this size; larger ones stay as they are."""


def parquet_files(path: str | Path) -> list[str]:
    """Returns the files that hold each row once, as of now.

    Files stay for `keep` seconds of `compact_parquet` after they were merged; read them within that
    time.
    """
    root = local_folder(path, "parquet_files")
    return _files(root, _current(root))


def read_parquet(spark: Any, path: str | Path) -> Any:
    """Returns the table as a DataFrame. Raises PySpark's AnalysisException for an empty one."""
    root = local_folder(path, "read_parquet")
    files = _files(root, _current(root))
    return spark.read.option("mergeSchema", "true").parquet(*(files or [str(root)]))


def compact_parquet(path: str | Path, *, keep: float = KEEP_SECONDS) -> int:
    """Merges small folders, removes those merged `keep` seconds ago; returns how many were merged.

    Call it now and then from any process that may write there: a schedule, or a job between
    batches.
    """
    root = local_folder(path, "compact_parquet")
    with locked(root / f"{TEMPORARY}compacting"):
        _show(root, keep)
        small: dict[Any, list[BatchFolder]] = {}
        for held in _current(root):
            if _bytes(root, held) < MERGED_BYTES:
                small.setdefault(_schema(root, held), []).append(held)
        return sum(_merge(root, part) for alike in small.values() for part in _shares(root, alike))


def _current(root: Path) -> list[BatchFolder]:
    """Returns folders that hold each row once."""
    there = folders(root)
    replaced = {name for held in there.values() for name in held.replaces}
    replaced |= {f"_{name}" for name in replaced | there.keys() if name.startswith("merged-")}
    return [held for name, held in sorted(there.items()) if name not in replaced]


def _files(root: Path, current: Sequence[BatchFolder]) -> list[str]:
    return [
        str(root / held.name / file)
        for held in current
        for file in sorted(os.listdir(root / held.name))  # noqa: PTH208 - tells what is gone
        if file.endswith(".parquet")
    ]


def _merge(root: Path, part: Sequence[BatchFolder]) -> int:
    """Merges these into one folder, under a name that only `_current` reads."""
    if len(part) < 2:
        return 0
    import pyarrow.parquet as pq  # noqa: PLC0415 - only who merges

    names = [held.name.removeprefix("_") for held in part]
    digest = hashlib.sha256("|".join(sorted(names)).encode()).hexdigest()[:32]
    temporary = root / f"{TEMPORARY}{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        files = _files(root, part)
        with pq.ParquetWriter(temporary / "merged.parquet", pq.read_schema(files[0])) as writer:
            for file in files:
                for batch in pq.ParquetFile(file).iter_batches():
                    writer.write_batch(batch)
        spans: dict[str, list[Span]] = {}
        for held in part:
            for key, each in held.written.items():
                spans.setdefault(key, []).extend(each)
        written = {key: merge_spans(each) for key, each in spans.items()}
        # With the existing folders that they replaced: all are removed in one step.
        before = {name for held in part for name in held.replaces if _is_there(root, name)}
        write_marker(temporary, written, before.union(names))
        temporary.rename(root / f"_merged-{digest}")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return len(part)


def _show(root: Path, keep: float) -> None:
    """Gives folders merged `keep` seconds ago their plain name, and removes what they replace."""
    old = SystemClock().now() - keep  # against the file system's own times
    for name, held in sorted(folders(root).items()):
        if not (name.startswith("_merged-") and _is_older(root / name, old)):
            continue
        plain = name.removeprefix("_")
        temporary = root / f"{TEMPORARY}{uuid.uuid4().hex}"
        temporary.mkdir()
        if (root / plain).exists():
            if _is_older(root / plain, old):
                (root / name).rename(temporary / name)
        else:
            # Links: readers of the other name go on.
            shutil.copytree(root / name, temporary / plain, copy_function=os.link)
            os.utime(temporary / plain)
            for replaced in held.replaces:
                for each in (replaced, f"_{replaced}"):
                    if (root / each).exists():
                        (root / each).rename(temporary / each)
            (temporary / plain).rename(root / plain)
        shutil.rmtree(temporary, ignore_errors=True)


def _is_there(root: Path, name: str) -> bool:
    return (root / name).exists() or (root / f"_{name}").exists()


def _is_older(folder: Path, than: float) -> bool:
    try:
        return folder.stat().st_mtime <= than
    except FileNotFoundError:  # another folder replaced it a moment ago
        return False


def _shares(root: Path, alike: Sequence[BatchFolder]) -> list[list[BatchFolder]]:
    """Yields folders in order, each share up to MERGED_BYTES."""
    shares: list[list[BatchFolder]] = [[]]
    size = 0
    for held in sorted(alike, key=lambda h: (root / h.name).stat().st_mtime):
        size += _bytes(root, held)
        if size > MERGED_BYTES and shares[-1]:
            shares.append([])
            size = _bytes(root, held)
        shares[-1].append(held)
    return shares


def _bytes(root: Path, held: BatchFolder) -> int:
    return sum(file.stat().st_size for file in (root / held.name).glob("*.parquet"))


def _schema(root: Path, held: BatchFolder) -> str:
    import pyarrow.parquet as pq  # noqa: PLC0415 - only who merges

    first = next((root / held.name).glob("*.parquet"))
    return str(pq.read_schema(first).remove_metadata())
