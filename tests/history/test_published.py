"""The tables as Delta Lake: each log says what the state says, whatever ended the writer.

What docs/how-to/history.md shows is run here.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from fleet.clock import ManualClock
from fleet.history import tables
from fleet.history.retention import MANY, tidy
from fleet.history.tables import REBALANCES, TABLES, Tables, row_of
from tests.history.test_tables import DAY, NOW, membership, opened, rebalance
from tests.sinks.test_s3 import BUCKET, LOGIN, endpoint

__all__ = ["endpoint"]
ROOT = Path(__file__).parents[2]


def add(writer, number, at=NOW):
    """One batch: two rebalances and a membership."""
    rows = [row_of(rebalance(2 * number + each, at)) for each in range(2)]
    files = writer.write("rebalances", rows) + writer.write("memberships", [row_of(membership(at))])
    writer.commit("batch", files=files, positions={0: number})


def published(path, table):
    """A table's rows by its log alone, in order."""
    rows = pa.table(DeltaTable(f"{path}/{table}").to_pyarrow_table()).select(TABLES[table].names)
    return sorted(rows.to_pylist(), key=str)


def recorded(path, table):
    """The same by the state."""
    return sorted(Tables(path).read(table).to_pylist(), key=str)


def changes(path, table):
    """Whether the last commit of a log says that rows changed."""
    last = max((path / table / "_delta_log").glob("*[0-9].json")).read_text().splitlines()
    actions = [action for line in last for action in json.loads(line).values()]
    return {action["dataChange"] for action in actions if "dataChange" in action}


@pytest.fixture
def clock():
    return ManualClock(at=NOW)


@pytest.fixture
def lake(endpoint, unique, monkeypatch):
    """A path in an object store; the login is in the environment."""
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": LOGIN["LAKE_REGION"],
        "AWS_ACCESS_KEY_ID": LOGIN["LAKE_KEY"],
        "AWS_SECRET_ACCESS_KEY": LOGIN["LAKE_SECRET"],
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{unique}"


def test_a_log_says_what_the_state_says(tmp_path, clock):
    """After batches, compaction, retention and a new writer; days are a column."""
    writer = opened(tmp_path, clock)
    add(writer, 0, NOW - 9 * DAY)
    for number in range(1, MANY + 1):
        add(writer, number)
    assert published(tmp_path, "rebalances") == recorded(tmp_path, "rebalances")
    before = DeltaTable(str(tmp_path / "rebalances"))
    assert tidy(writer) == 2 * MANY
    assert changes(tmp_path, "rebalances") == {False}
    assert len(DeltaTable(str(tmp_path / "rebalances")).file_uris()) == 2
    assert before.count() == 2 * MANY + 2, "a reader under way has its files"
    clock.sleep(2 * DAY)
    tidy(writer)
    assert changes(tmp_path, "rebalances") == {True}
    add(opened(tmp_path, clock), 51, NOW + DAY)
    for table in TABLES:
        assert published(tmp_path, table) == recorded(tmp_path, table), table
    days = pa.table(DeltaTable(str(tmp_path / "rebalances")).to_pyarrow_table())["day"]
    assert sorted({str(day) for day in days.to_pylist()}) == ["2026-09-21", "2026-09-22"]
    lowest = DeltaTable(str(tmp_path / "rebalances")).protocol()
    assert (lowest.min_reader_version, lowest.min_writer_version) == (1, 2)


# A writer that kills itself before its so manieth commit to any log.
KILLED = """
import os, signal, sys
from fleet.clock import ManualClock
from fleet.history import retention, tables
from tests.history.test_published import NOW, add, opened

left, number, real = int(sys.argv[2]), int(sys.argv[3]), tables.once


def once():
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real()


tables.once = retention.once = once
writer = opened(sys.argv[1], ManualClock(at=NOW))
add(writer, number)
retention.tidy(writer, thoroughly=True)
add(writer, number + 1)
"""


@pytest.mark.parametrize("kind", ["disk", "store"])
def test_killed_before_any_commit_nothing_is_lost_or_twice(request, tmp_path, clock, kind):
    """Of a batch, of compaction, of what a start takes back: the next start makes up for it."""
    path = str(tmp_path) if kind == "disk" else request.getfixturevalue("lake")
    ended, least = -signal.SIGKILL, 0
    for left in range(0, 60, 2 if kind == "disk" else 5):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, path, str(left), str(100 * left)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
            capture_output=True,
            text=True,
        )
        ended = done.returncode
        assert ended in {0, -signal.SIGKILL}, done.stderr
        held = recorded(path, "rebalances")
        opened(path, clock)
        for table in TABLES:
            assert published(path, table) == recorded(path, table), (table, left)
        assert recorded(path, "rebalances") == held, "by the state nothing changes at a start"
        numbers = sorted(row["number"] for row in held)
        assert len(set(numbers)) == len(numbers) >= least
        assert all(number + 1 in numbers for number in numbers[::2]), "a batch is there whole"
        assert len(numbers) == 2 * len(recorded(path, "memberships"))
        least = len(numbers)
        if not ended:
            break
    assert ended == 0


def test_a_column_that_a_release_adds_is_published(tmp_path, clock, monkeypatch):
    """Rows of before have nulls in it, in files that were merged too."""
    with monkeypatch.context() as before:
        fewer = pa.schema([field for field in REBALANCES if field.name != "aborted"])
        before.setitem(tables.TABLES, "rebalances", fewer)
        add(opened(tmp_path, clock), 0)
    writer = opened(tmp_path, clock)
    add(writer, 1)
    for merged in (0, 2):
        assert tidy(writer, thoroughly=bool(merged)) == 2 * merged  # of two tables
        held = published(tmp_path, "rebalances")
        assert held == recorded(tmp_path, "rebalances")
        assert sorted(str(row["aborted"]) for row in held) == ["0", "0", "None", "None"]
        assert [each.aborted for each in Tables(tmp_path).rebalances()] == [0, 0, 0, 0]
