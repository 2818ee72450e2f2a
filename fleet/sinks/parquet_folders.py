"""Reading the Parquet sink's folders and merging them, without a row twice or not at all.

Problem: merging replaces many folders by one, a file system renames one at a time, and who began
to read has names that must stay. Choice: merged rows appear as `_merged-<hash>`, which names what
it takes the place of: `parquet_files` takes it instead, in one look. What it replaces goes only
`keep` seconds later, when those who looked before are done, and then the merged folder also gets
its plain name, `merged-<hash>`. Who reads the folder without asking (`read.parquet(path)`) sees
the old ones until then and the new one afterwards: never a row twice, and for the milliseconds of
that change (or until the next compaction, where it was killed there) those rows not at all.
"""

import hashlib
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fleet.clock import SystemClock
from fleet.sinks.parquet import TEMPORARY, BatchFolder, folders, local_folder, locked, put_written
from fleet.sinks.written import Span, joined

KEEP_SECONDS: Final = 600.0
MERGED_BYTES: Final = 128 << 20
"""Folders become one up to this size; larger ones stay as they are."""


def parquet_files(path: str | Path) -> list[str]:
    """The files that hold each row once, as of now.

    Files stay for `keep` seconds of `compact_parquet` after they were merged: read meanwhile.
    """
    root = local_folder(path, "parquet_files")
    return _files(root, _current(root))


def read_parquet(spark: Any, path: str | Path) -> Any:
    """The table as a DataFrame.

    Raises PySpark's AnalysisException where there is nothing yet.
    """
    root = local_folder(path, "read_parquet")
    files = _files(root, _current(root))
    return spark.read.option("mergeSchema", "true").parquet(*(files or [str(root)]))


def compact_parquet(path: str | Path, *, keep: float = KEEP_SECONDS) -> int:
    """Merge small folders, and remove what was merged `keep` seconds ago; how many were merged.

    To be called now and then by anybody who may write there: a schedule, or a job between batches.
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
    """Folders that hold each row once."""
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
    """One folder of these, under a name that only `_current` reads."""
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
        written = {key: joined(each) for key, each in spans.items()}
        # Those too that they took the place of and that are there still: in one step, all go.
        before = {name for held in part for name in held.replaces if _is_there(root, name)}
        put_written(temporary, written, before.union(names))
        temporary.rename(root / f"_merged-{digest}")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return len(part)


def _show(root: Path, keep: float) -> None:
    """What was merged `keep` seconds ago gets its plain name, and what it replaces goes."""
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
            # Links: who reads by the other name goes on.
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
    except FileNotFoundError:  # another one took its place a moment ago
        return False


def _shares(root: Path, alike: Sequence[BatchFolder]) -> list[list[BatchFolder]]:
    """In order, each up to MERGED_BYTES."""
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
