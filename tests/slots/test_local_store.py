"""What only the local store has: a file's schema, and a poller's cheap question."""

import contextlib
import sqlite3

import pytest

from fleet.errors import SchemaTooNew, Unreachable
from fleet.slots import Gate
from tests.slots.opened import GROUP, sqlite
from tests.support.plans import plan_of


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


def stored_by_a_newer_release(path, table, column, before, after):
    """A word of one kind, as a release that knows more of them writes it."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        done = db.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (before, after))
        assert done.rowcount == 1
        db.commit()


def test_what_only_a_newer_release_can_read_is_no_answer(store):
    """Its name is told with what to do; who holds a slot works on, as where a store is silent."""
    store.write_gate(Gate(group=GROUP, open=frozenset({0})))
    held = store.take(store.slots(GROUP)[0], worker="w", revision="r", spark_session=None)
    path = store.database.path
    assert store.begin_change(plan_of(group=GROUP), actor="a", started_at=0.0)
    stored_by_a_newer_release(path, "changes", "body", '"state":"running"', '"state":"dancing"')
    for ask in (store.change, store.changes):
        with pytest.raises(
            Unreachable, match=rf"a change of group {GROUP} cannot be read.*dancing"
        ):
            ask(GROUP)
    stored_by_a_newer_release(path, "slots", "phase", "joining", "dancing")
    with pytest.raises(Unreachable, match=f"slot 0 of group {GROUP} cannot be read.*newer fleet"):
        store.slots(GROUP)
    with pytest.raises(Unreachable):
        store.renew(held)
    assert store.gate(GROUP).open == {0}
