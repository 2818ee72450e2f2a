"""What only the local store has: a file's schema, and a poller's cheap question."""

import contextlib
import sqlite3

import pytest

from fleet.errors import SchemaTooNew
from fleet.slots import Gate
from tests.slots.opened import GROUP, sqlite


@pytest.fixture
def store(tmp_path):
    return sqlite(tmp_path)


def test_a_newer_schema_is_refused(store, tmp_path):
    """State written by a newer version is left alone, with the version in the message."""
    with store.database.write() as db:
        db.execute("UPDATE meta SET value = 99 WHERE name = 'schema'")
    with pytest.raises(SchemaTooNew, match="schema 99"):
        sqlite(tmp_path)


def test_a_poller_sees_every_change_and_only_changes(store, tmp_path):
    """data_version moves with own and others' writes, and stands still otherwise."""
    other = sqlite(tmp_path)
    at_first = store.data_version()
    assert store.data_version() == at_first
    store.put_note(GROUP, "k", {})
    after_own = store.data_version()
    assert after_own != at_first
    other.put_note(GROUP, "k", {"a": 1})
    assert store.data_version() != after_own


def test_a_file_of_the_release_before_goes_on(tmp_path):
    """It lacks a column: that is added, and who writes only the others still may."""
    made = sqlite(tmp_path)
    path = made.database.path
    made.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE slots DROP COLUMN holder_ended")
        db.commit()
    store = sqlite(tmp_path)
    store.write_gate(Gate(group=GROUP, open=frozenset({0})))
    held = store.take(store.slots(GROUP)[0], worker="w", revision="r", spark_session=None)
    assert held is not None
    assert store.end_holder(held)
    with contextlib.closing(sqlite3.connect(path)) as db:
        columns = "cluster, grp, number, holder, token, counter, phase, clean, batches"
        db.execute(
            f"INSERT OR REPLACE INTO slots ({columns}) VALUES (?, ?, 0, 'old', 2, 0, ?, 0, 0)",
            ("main", GROUP, "active"),
        )
        db.commit()
    (slot,) = store.slots(GROUP)
    assert (slot.holder, slot.holder_ended) == ("old", False)
