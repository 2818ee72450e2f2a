"""What only the local store has: a file's schema, and a poller's cheap question."""

import pytest

from fleet.errors import SchemaTooNew
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
