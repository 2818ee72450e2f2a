"""Merging the Parquet sink's folders: readers see each row once at every moment."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from fleet.errors import FleetError
from fleet.sinks import compact_parquet, parquet_files, write_parquet
from fleet.sinks.parquet import KEEP_SECONDS
from tests.sinks.cases import batch, parquet, range_of, records
from tests.support.needs import repository

STEP = 10


def write(root: Path, number: int) -> int:
    """The batch of this number."""
    rows, context = batch(range_of(number * STEP, (number + 1) * STEP))
    return write_parquet(rows, root, context)


def plainly(root: Path) -> list[int]:
    """What a reader finds who takes every file, as Spark does: without dots and underscores."""
    found = ds.dataset(str(root), format="parquet").to_table()["offset"].to_pylist()
    return sorted(found)


def offsets(root: Path) -> list[int]:
    return parquet({"path": str(root)}).offsets()


def test_a_batch_is_one_file_however_many_ranges_it_has(tmp_path: Path):
    """Not a folder for each of twelve partitions."""
    rows, context = batch(*(range_of(0, 5, partition) for partition in range(12)))
    assert write_parquet(rows, tmp_path, context) == 12
    assert len(parquet_files(tmp_path)) == 1


def test_merged_folders_replace_theirs_for_who_asks_and_later_for_all(tmp_path: Path):
    """Both readers see each row once before, between and after; repetitions write nothing."""
    for number in range(5):
        write(tmp_path, number)
    every = list(range(5 * STEP))
    assert compact_parquet(tmp_path) == 5
    assert len(parquet_files(tmp_path)) == 1, "who asks reads one file at once"
    assert offsets(tmp_path) == plainly(tmp_path) == every
    assert len(list(tmp_path.glob("batch-*"))) == 5, "readers under way have theirs"
    write(tmp_path, 5)
    every = list(range(6 * STEP))
    assert compact_parquet(tmp_path, keep=0) == 2, "the merged one and the new one"
    assert plainly(tmp_path) == offsets(tmp_path) == every
    under_way = parquet_files(tmp_path)
    assert compact_parquet(tmp_path, keep=KEEP_SECONDS) == 0
    compact_parquet(tmp_path, keep=0)
    assert all(Path(file).exists() for file in under_way) or len(under_way) == 1
    assert plainly(tmp_path) == offsets(tmp_path) == every
    for number in range(6):
        assert write(tmp_path, number) == 0
    compact_parquet(tmp_path, keep=0)
    assert [each.name[:7] for each in tmp_path.glob("[!_]*")] == ["merged-"]
    assert not list(tmp_path.glob("_merged-*"))


def test_readers_count_the_same_while_batches_come_and_are_merged(tmp_path: Path):
    """No row twice, none missing that was there before."""
    write(tmp_path, 0)
    written, enough, failures = [1], threading.Event(), []

    def work() -> None:
        try:
            for number in range(1, 60):
                write(tmp_path, number)
                written.append(number + 1)
                if number % 5 == 0:
                    compact_parquet(tmp_path, keep=0.2)
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)
        finally:
            enough.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    looks = 0
    while not enough.is_set():
        least = written[-1] * STEP
        try:
            found = offsets(tmp_path)
        except FileNotFoundError:  # slower than `keep`, which is short here: told, and nothing read
            continue
        assert sorted(found) == list(range(len(found)))
        assert len(found) >= least
        looks += 1
    thread.join()
    assert not failures
    assert looks > 3
    assert offsets(tmp_path) == list(range(60 * STEP))


KILLED = """
import sys
from pathlib import Path
from fleet.sinks import compact_parquet
from tests.sinks.killed_writer import Steps

sys.setprofile(Steps(int(sys.argv[2])))
compact_parquet(sys.argv[1], keep=0)
"""


def test_killed_while_merging(tmp_path: Path):
    """At steps of it: who asks sees all at once, all others after the next merging."""
    for number in range(4):
        write(tmp_path, number)
    for at in (60, 250, 400):
        subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path), str(at)], cwd=repository(), check=False,
            env={**os.environ, "PYTHONPATH": str(repository())},
        )  # fmt: skip
        assert offsets(tmp_path) == list(range(4 * STEP))
    for _ in range(3):
        compact_parquet(tmp_path, keep=0)
    assert plainly(tmp_path) == offsets(tmp_path) == list(range(4 * STEP))


def test_a_store_is_no_folder():
    """It has no rename."""
    with pytest.raises(FleetError, match="object stores have no rename; use write_delta"):
        write_parquet(records(), "s3://bucket/table", batch(range_of(0, 1))[1])
