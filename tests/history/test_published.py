"""The tables as Delta Lake: each log says what the manifest says, whatever ended the writer.

What docs/history.md shows is run here.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from itertools import cycle
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from fleet.act import spark_server
from fleet.clock import ManualClock
from fleet.errors import FleetError, LostLease
from fleet.history.compaction import MANY, compacted
from fleet.history.job import commit
from fleet.history.job_memory import JobMemory
from fleet.history.tables import Tables
from fleet.history.tables.publishing import APPLICATION, EXTRA, Published
from fleet.history.tables.table_columns import DAY as COLUMN
from fleet.history.tables.table_columns import MEMBERSHIPS, REBALANCES, TABLES
from fleet.history.tables.table_folder import TableFolder
from fleet.history.tables.table_rows import membership_row, rebalance_row
from fleet.history.tables.writing import KEPT_SECONDS, Writer
from tests.history.test_tables import DAY, NOW, Store, membership, rebalance

ROOT = Path(__file__).parents[2]


def add(writer, number, at=NOW):
    """One batch: two rebalances and a membership."""
    attempt = writer.attempt()
    rows = [rebalance_row(rebalance(2 * number + each, at)) for each in range(2)]
    files = writer.write(attempt, "rebalances", REBALANCES, rows, "ended_at")
    rows = [membership_row(membership(at))]
    files += writer.write(attempt, "memberships", MEMBERSHIPS, rows, "changed_at")
    commit(writer, JobMemory(), attempt, "batch", files, positions={0: number})


def opened(place, clock):
    return Writer(place, cluster="main", clock=clock, retention=10 * DAY)


def published(path, table):
    """A table's rows by its log, in order, and the manifest's number that it stands for."""
    log = DeltaTable(str(path / table))
    rows = pa.table(log.to_pyarrow_table()).select(TABLES[table].names)
    return sorted(rows.to_pylist(), key=str), log.transaction_version(APPLICATION)


def changes(path, table):
    """Whether the last commit of a log says that rows changed."""
    last = max((path / table / "_delta_log").glob("*[0-9].json")).read_text().splitlines()
    actions = [action for line in last for action in json.loads(line).values()]
    return {action["dataChange"] for action in actions if "dataChange" in action}


def recorded(path, table):
    """The same by the manifest."""
    return sorted(Tables(path).read(table).to_pylist(), key=str)


@pytest.fixture
def clock():
    return ManualClock(at=NOW)


@pytest.mark.parametrize("kind", [TableFolder, Store], ids=["disk", "store"])
def test_a_log_says_what_the_manifest_says(tmp_path, clock, kind):
    """After batches, compaction, retention and a new writer; days are a column."""
    (tmp_path / "manifests").mkdir()
    with opened(kind(tmp_path), clock) as writer:
        add(writer, 0, NOW - 9 * DAY)
        for number in range(1, MANY + 1):
            add(writer, number)
            assert published(tmp_path, "rebalances")[1] == writer.manifest.number
        assert published(tmp_path, "rebalances")[0] == recorded(tmp_path, "rebalances")
        before = DeltaTable(str(tmp_path / "rebalances"))
        assert compacted(writer, JobMemory()) == 2 * MANY
        assert changes(tmp_path, "rebalances") == {False}
        assert len(DeltaTable(str(tmp_path / "rebalances")).file_uris()) == 2
        assert before.count() == 2 * MANY + 2, "a reader under way has its files"
        clock.sleep(2 * DAY)
        add(writer, 50, NOW + DAY)
    with opened(kind(tmp_path), clock) as writer:
        clock.sleep(KEPT_SECONDS + 1)
        add(writer, 51, NOW + DAY)
        assert changes(tmp_path, "rebalances") == {True}
        assert writer.clear_away()
    for table in TABLES:
        assert published(tmp_path, table)[0] == recorded(tmp_path, table), table
    days = pa.table(DeltaTable(str(tmp_path / "rebalances")).to_pyarrow_table())["day"]
    assert sorted({str(day) for day in days.to_pylist()}) == ["2026-09-21", "2026-09-22"]


# A writer that kills itself after so many tables' logs.
KILLED = """
import os, signal, sys
from fleet.clock import ManualClock
from fleet.history.compaction import compacted
from fleet.history.job_memory import JobMemory
from fleet.history.tables import publishing
from fleet.history.tables.table_folder import TableFolder
from tests.history.test_published import NOW, add, opened

left = int(sys.argv[2])
real = publishing._Log.follow


def follow(*arguments):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*arguments)


publishing._Log.follow = follow
with opened(TableFolder(sys.argv[1]), ManualClock(at=NOW)) as writer:
    add(writer, int(sys.argv[2]))
    compacted(writer, JobMemory(), thoroughly=True)
    left = 0
    add(writer, 1000 + int(sys.argv[2]))
"""


def test_killed_between_manifest_and_logs_nothing_is_lost_or_twice(tmp_path, clock):
    """At each log of a batch and of a compaction: the next writer makes up for it first."""
    for logs in (0, 3, 7, 12):  # 5 for the manifest that is found, 5 for each that is made
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path), str(logs)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
    with opened(TableFolder(tmp_path), clock):
        pass
    for table in TABLES:
        assert published(tmp_path, table)[0] == recorded(tmp_path, table), table
    numbers = [row["number"] for row in recorded(tmp_path, "rebalances")]
    assert len(set(numbers)) == len(numbers) == 6


def test_who_was_overtaken_publishes_nothing(tmp_path, clock):
    """A lease ran out while its holder was silent between its manifest and the logs."""
    (tmp_path / "manifests").mkdir()
    with opened(Store(tmp_path), clock) as one:
        stale = Published(Store(tmp_path))
        stale.follow(one.manifest)
        add(one, 1)
        overtaken = one.manifest
        clock.sleep(301)
        with opened(Store(tmp_path), clock) as other:
            add(other, 2)
            compacted(other, JobMemory(), thoroughly=True)
            for late in (stale, Published(Store(tmp_path))):
                with pytest.raises(LostLease, match="somebody else writes there"):
                    late.follow(overtaken)
    assert published(tmp_path, "rebalances")[0] == recorded(tmp_path, "rebalances")


def test_without_the_package_tables_are_recorded_and_a_published_one_is_not_left_behind(
    tmp_path, clock, monkeypatch
):
    """Its log would name files that are deleted later."""
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "deltalake", None)
        with opened(TableFolder(tmp_path), clock) as writer:
            add(writer, 1)
    assert not (tmp_path / "rebalances" / "_delta_log").exists()
    with opened(TableFolder(tmp_path), clock):
        pass
    assert published(tmp_path, "rebalances")[0] == recorded(tmp_path, "rebalances") != []
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(FleetError, match="is published as Delta tables") as told:
        opened(TableFolder(tmp_path), clock)
    assert EXTRA in str(told.value)


@pytest.fixture
def spark(spark_home, monkeypatch):
    """A session on the shared server; one that is not stopped waits for it at the end."""
    from pyspark.sql import SparkSession

    monkeypatch.setenv(spark_server.TOKEN_ENV, spark_server.token(spark_home))
    made = SparkSession.builder.remote(spark_server.connect_url(spark_home)).create()
    yield made
    made.stop()


def test_a_column_that_a_release_adds_is_published(tmp_path, clock):
    """Rows of before have nulls in it, in files that were merged too."""
    fewer = pa.schema([field for field in REBALANCES if field.name != "aborted"])
    DeltaTable.create(
        str(tmp_path / "rebalances"), schema=fewer.append(COLUMN), partition_by=[COLUMN.name]
    )
    with opened(TableFolder(tmp_path), clock) as writer:
        attempt = writer.attempt()
        rows = [rebalance_row(rebalance(0))]
        rows[0].pop("aborted")
        files = writer.write(attempt, "rebalances", fewer, rows, "ended_at")
        commit(writer, JobMemory(), attempt, "batch", files)
        add(writer, 1)
        for merged in (0, 2):
            assert compacted(writer, JobMemory(), thoroughly=bool(merged)) == merged
            held, _ = published(tmp_path, "rebalances")
            assert held == recorded(tmp_path, "rebalances")
            assert sorted(str(row["aborted"]) for row in held) == ["0", "0", "None"]


@pytest.mark.spark
def test_every_reader_counts_the_same_rows_during_compaction(tmp_path, clock, spark):
    """DuckDB, pandas and Spark, again and again, while batches come and are merged."""
    import duckdb

    path = str(tmp_path / "rebalances")

    def by_duckdb():
        rows = DeltaTable(path).to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by its name
        asked = "SELECT count(*), count(DISTINCT number) FROM rows"
        return duckdb.connect().execute(asked).fetchone()

    def by_pandas():
        rows = DeltaTable(path).to_pandas()
        return len(rows), rows.number.nunique()

    def by_spark():
        rows = spark.read.parquet(*DeltaTable(path).file_uris())
        return rows.selectExpr("count(*)", "count(DISTINCT number)").first()

    readers, written, enough = (by_spark, by_duckdb, by_pandas), [2], threading.Event()
    with opened(TableFolder(tmp_path), clock) as writer:
        add(writer, 0)

        def write():
            while not enough.is_set():
                written.append(written[-1] + 2)
                add(writer, len(written) - 1)
                compacted(writer, JobMemory())

        work = threading.Thread(target=write, daemon=True)
        work.start()
        try:
            for turn, count in enumerate(cycle(readers)):
                if turn >= 4 * len(readers) and len(written) > 2 * MANY:
                    break  # compaction ran
                assert work.is_alive(), "the writer failed"
                least = written[-1] - 2
                rows, distinct = count()
                assert rows == distinct, f"{count.__name__} counts rows twice"
                assert least <= rows <= written[-1], count.__name__
        finally:
            enough.set()
            work.join()
    assert {tuple(count()) for count in readers} == {(written[-1], written[-1])}
