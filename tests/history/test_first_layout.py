"""Tables of the release before: read as they are, and brought into the present layout."""

import json
import time

import pyarrow.parquet as pq
import pytest

from fleet import cli
from fleet.clock import ManualClock
from fleet.history import compaction
from fleet.history.compaction import compacted
from fleet.history.job import commit
from fleet.history.job_memory import JobMemory, LastCommit
from fleet.history.lag_rows import lag_rows
from fleet.history.tables import Tables
from fleet.history.tables.table_columns import LAG, TABLES, before
from fleet.history.tables.table_folder import TableFolder
from fleet.history.tables.table_manifests import latest, name_of
from fleet.history.tables.writing import KEPT_SECONDS
from fleet.lag.snapshot import Logs
from tests.history.test_published import add, changes, opened, published, recorded
from tests.history.test_tables import DAY, NOW, T0


def told(path):
    """What our readers make of it."""
    tables = Tables(path)
    lag = tables.lag(group="g", since=NOW - 20 * DAY)
    others = tables.rebalances(group="h")
    return tables.rebalances(), others, tables.memberships(group="g"), lag, tables.rows()


def aged(path):
    """The same files and manifest as the first layout had them."""
    place = TableFolder(path)
    manifest = latest(place)
    assert manifest is not None
    rows = []
    for file in manifest.files:
        name = f"data/{file.name.split('/')[1]}/{file.table}-{len(rows)}.parquet"
        table = pq.read_table(path / file.name)
        if file.table in TABLES:
            table = table.rename_columns(before(file.table).names)
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path / name)
        rows.append([name, file.table, file.day, file.rows, (path / name).stat().st_size])
        (path / file.name).unlink()
    for log in path.glob("*/_delta_log/*"):
        log.unlink()
    state = json.loads(place.read(name_of(manifest.number)))
    place.put(name_of(manifest.number), json.dumps({**state, "schema": 1, "files": rows}).encode())


def test_columns_that_needed_quotes_had_their_names():
    """As a release before wrote them: no part of this may change."""
    assert before("commits").names[:4] == ["cluster", "group", "topic", "topic_partition"]
    assert before("commits").names[-3:] == ["partition", "offset", "first_offset"]
    assert before("events").names[:3] == ["cluster", "partition", "offset"]
    assert {"group", "left"} < set(before("rebalances").names)
    assert before("memberships").names[1:3] == ["group", "at"]
    assert {"at", "group", "case"} < set(before("lag").names)


@pytest.fixture
def clock():
    return ManualClock(at=NOW)


def test_tables_of_before_are_read_and_moved_with_every_row(tmp_path, clock, monkeypatch):
    """The newest day first, a limited size at a time; new rows are published meanwhile."""
    memory = JobMemory()
    memory.commit(("g", "t", 0), LastCommit(10, int(NOW * 1000), 0, None, 0, 1))
    with opened(TableFolder(tmp_path), clock) as writer:
        for number in range(3):
            add(writer, number, NOW - number * DAY)
        rows = list(lag_rows(memory, Logs(at=NOW, starts={T0: 0}, ends={T0: 15}), cluster="main"))
        attempt = writer.attempt()
        files = writer.write(attempt, "lag", LAG, rows, "sampled_at")
        commit(writer, memory, attempt, "look", files)
    whole = told(tmp_path)
    aged(tmp_path)
    assert told(tmp_path) == whole
    monkeypatch.setattr(compaction, "AT_ONCE", 1)
    with opened(TableFolder(tmp_path), clock) as writer:
        back = JobMemory.read(writer.place, writer.manifest)
        assert back.commits == memory.commits
        moved = 0
        while compacted(writer, back):
            moved += 1
            assert told(tmp_path) == whole
            if moved == 2:
                (row,) = published(tmp_path, "memberships")[0]
                assert row["changed_at"] == NOW, "the newest day first"
                assert changes(tmp_path, "memberships") == {True}
        assert moved == 7
        assert all(name.table.startswith("_") or not name.old for name in writer.manifest.files)
        clock.sleep(KEPT_SECONDS + 1)
        add(writer, 7, NOW)
        clock.sleep(KEPT_SECONDS + 1)
        writer.clear_away()
        assert len(writer.place.folders("data")) == 1, "that of the memory's own file"
    for table in TABLES:
        assert published(tmp_path, table)[0] == recorded(tmp_path, table), table


def test_one_command_moves_all_of_them(tmp_path, clock, monkeypatch):
    """However much it is."""
    path = tmp_path / "tables"
    with opened(TableFolder(path), clock) as writer:
        for number in range(3):
            add(writer, number, time.time() - number * DAY)
    aged(path)
    (tmp_path / "fleet.yaml").write_text(
        f'cluster: {{name: main, bootstrap_servers: "127.0.0.1:1"}}\nhistory: {{path: {path}}}\n'
    )
    monkeypatch.setenv("FLEET_CONFIG", str(tmp_path / "fleet.yaml"))
    monkeypatch.setenv("FLEET_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(compaction, "AT_ONCE", 1)
    assert cli.run(["history", "compact"]) == 0
    now = latest(TableFolder(path))
    assert now is not None
    assert (len(now.files), now.old()) == (6, frozenset())
