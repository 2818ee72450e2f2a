"""End-offset samples are bounded, survive restarts, and start again with a recreated topic."""

import sqlite3

import pytest

from fleet.errors import FleetError
from fleet.lag.end_history import KEEP, PORTION, EndStore
from fleet.model import TopicPartition

TP = TopicPartition("t", 0)


def rows(samples: EndStore) -> list[tuple[float, int]]:
    return samples._db.execute("SELECT at, end FROM sample ORDER BY at").fetchall()


def test_samples_tell_the_age_after_a_restart(tmp_path):
    """What one process sampled, the next one uses."""
    path = tmp_path / "deep" / "samples.db"
    first = EndStore(path)
    first.record("c", 100.0, {TP: 0})
    first.record("c", 110.0, {TP: 100})
    first.close()
    again = EndStore(path)
    again.record("c", 120.0, {TP: 200})
    found = again.around("c", [(TP, 150), (TopicPartition("other", 1), 5)])
    assert found == {(TP, 150): ((110.0, 100), (120.0, 200))}


def test_looks_less_than_a_second_apart_leave_one_sample():
    """A status polled in a loop does not fill the file."""
    samples = EndStore(None)
    assert samples.record("c", 100.0, {TP: 1})
    assert not samples.record("c", 100.5, {TP: 2})
    assert samples.record("d", 100.5, {TP: 2})
    assert samples.around("c", [(TP, 0)]) == {(TP, 0): (None, (100.0, 1))}


def test_a_partition_that_stands_still_keeps_two_rows():
    """The first and the last time that its end was seen, whatever lies between."""
    samples = EndStore(None)
    for at in range(100, 160, 5):
        samples.record("c", float(at), {TP: 7})
    assert rows(samples) == [(100.0, 7), (155.0, 7)]
    samples.record("c", 160.0, {TP: 17})
    assert samples.around("c", [(TP, 7)]) == {(TP, 7): ((155.0, 7), (160.0, 17))}


def test_a_recreated_topic_starts_again():
    """An end offset that went down belongs to another log."""
    samples = EndStore(None)
    samples.record("c", 100.0, {TP: 500})
    samples.record("c", 110.0, {TP: 3})
    assert rows(samples) == [(110.0, 3)]


def test_samples_are_thinned_and_forgotten():
    """Every 5 s for three hours, and one look after all of it is too old: few rows, then two."""
    samples = EndStore(None)
    for step in range(3 * 720):
        samples.record("c", 1e6 + 5.0 * step, {TP: step * 10})
    assert len(rows(samples)) < 180
    ((last, first),) = samples.around("c", [(TP, 14_400)]).values()
    assert last[0] <= 1e6 + 7200 <= first[0] <= last[0] + 300.0
    newest = rows(samples)[-1]
    samples.record("c", newest[0] + KEEP + 1.0, {TP: 99_999})
    assert rows(samples) == [(newest[0] + KEEP + 1.0, 99_999)]


def test_thinning_looks_at_what_grew_old_since_the_last_time():
    """And at no row for each row before it: a status of thousands of partitions waits for it."""
    samples = EndStore(None)
    steps = 0

    def counted() -> int:
        nonlocal steps
        steps += 1
        return 0

    samples._db.set_progress_handler(counted, 100)
    for step in range(720):
        samples.record("c", 1e6 + 5.0 * step, {TP: step * 10})
    assert steps * 100 / 720 < 500


def test_no_process_thins_what_another_thinned_within_the_minute(tmp_path):
    """A command lives for one look: it goes by what the file says, as the next one does."""
    one, two, lines = EndStore(tmp_path / "s.db"), EndStore(tmp_path / "s.db"), []
    for step in range(200):
        one.record("c", 1e6 + 5.0 * step, {TP: step})
    two._db.set_trace_callback(lines.append)
    assert two.record("c", 1e6 + 1000.0, {TP: 1000})
    assert not [each for each in lines if each.startswith("DELETE")]
    assert two.record("c", 1e6 + 1021.0, {TP: 1001})
    assert [each for each in lines if each.startswith("DELETE")]
    assert len(rows(two)) < 200


def test_one_look_thins_a_few_portions_and_the_next_goes_on():
    """Another process does not wait until all partitions are done."""
    samples = EndStore(None)
    many = [TopicPartition("t", number) for number in range(5 * PORTION - 1)]
    of_portion = "SELECT partition / ? AS p, COUNT(*) / COUNT(DISTINCT partition) FROM sample"
    left = []
    for look, at in enumerate((1e6, 1e6 + 10.0, 1e6 + 15.0, 1e6 + 400.0, 1e6 + 401.0)):
        samples.record("c", at, dict.fromkeys(many, look))
        left.append(dict(samples._db.execute(f"{of_portion} GROUP BY p", (PORTION,)).fetchall()))
    assert left[2] == dict.fromkeys(range(5), 3)
    assert sorted(left[3].values()) == [3, 3, 3, 3, 4]
    assert left[4] == dict.fromkeys(range(5), 4)


def test_a_look_waits_for_nobody_in_order_to_thin(tmp_path):
    """What it saw is kept by then: a file that is locked is no problem, the next look thins."""
    samples, begun = EndStore(tmp_path / "s.db"), []
    other = sqlite3.connect(tmp_path / "s.db", isolation_level=None)

    def locks(statement: str) -> None:
        if statement == "BEGIN IMMEDIATE":
            begun.append(statement)
            if len(begun) == 2:
                other.execute("BEGIN IMMEDIATE")

    samples._db.set_trace_callback(locks)
    assert samples.record("c", 100.0, {TP: 1})
    assert (len(begun), samples.problem) == (2, None)
    assert other.execute("SELECT COUNT(*) FROM thinned").fetchone() == (0,)
    other.execute("COMMIT")
    assert samples.record("c", 101.0, {TP: 2})
    assert other.execute("SELECT at FROM thinned").fetchall() == [(101.0,)]
    other.close()


def test_a_partition_that_no_look_sees_any_more_is_forgotten(tmp_path):
    """By any process; one that remembers its number writes to no other partition."""
    path, gone, new = tmp_path / "s.db", TopicPartition("gone", 0), TopicPartition("new", 0)
    one, two, later = EndStore(path), EndStore(path), 100.0 + KEEP + 1.0
    assert one.record("c", 100.0, {gone: 5, TP: 7})
    assert two.record("c", later, {TP: 8})
    assert two._db.execute("SELECT topic FROM partition").fetchall() == [("t",)]
    assert one.around("c", [(gone, 5)]) == {}
    assert two.record("c", later + 10.0, {new: 3})
    assert one.record("c", later + 20.0, {gone: 6})
    ends = {TP: ((later, 8),), new: ((later + 10.0, 3),), gone: ((later + 20.0, 6),)}
    assert dict(EndStore(path).stored("c")) == ends


def test_a_newer_releases_file_is_left_as_it_is(tmp_path):
    """It is a cache: who was gone back to a release looks on, and says what is not known."""
    path = tmp_path / "samples.db"
    EndStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")
    store = EndStore(path)
    assert store.record("c", 100.0, {TP: 7})
    assert "has schema 99, but this version knows 1" in (store.problem or "")
    assert dict(store.stored("c")) == {TP: ((100.0, 7),)}
    store.close()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM sample").fetchone() == (0,)
        assert db.execute("PRAGMA user_version").fetchone() == (99,)


def test_a_file_that_is_no_database_is_said(tmp_path):
    """The sentence names the file and what to do."""
    path = tmp_path / "samples.db"
    path.write_text("not a database " * 100)
    with pytest.raises(FleetError, match="delete the file"):
        EndStore(path)


def test_two_processes_share_the_file(tmp_path):
    """A look in between another's looks loses nothing."""
    one, two = EndStore(tmp_path / "s.db"), EndStore(tmp_path / "s.db")
    one.record("c", 100.0, {TP: 10})
    two.record("c", 101.5, {TP: 20})
    one.record("c", 101.2, {TP: 15})
    one.record("c", 103.0, {TP: 30})
    assert [end for _, end in rows(two)] in ([10, 20, 30], [10, 15, 20, 30])


def test_a_full_disk_ends_no_look_and_mixes_no_partitions(tmp_path):
    """What was undone is forgotten: the number of a partition that was not stored is another's."""
    path = tmp_path / "s.db"
    one, late = EndStore(path), TopicPartition("late", 0)
    assert one.record("c", 100.0, {TP: 1})
    (pages,) = one._db.execute("PRAGMA page_count").fetchone()
    one._db.execute(f"PRAGMA max_page_count={pages}")
    many = {TopicPartition("t" * 200, number): number for number in range(500)}
    assert not one.record("c", 110.0, {late: 111} | many)
    assert f"cannot be stored in {path} (database or disk is full)" in (one.problem or "")
    assert not one.record("c", 110.5, {late: 111} | many)
    one._db.execute("PRAGMA max_page_count=1000000")
    two, others = EndStore(path), [TopicPartition("other", number) for number in range(9)]
    assert two.record("c", 120.0, dict.fromkeys(others, 5))
    assert one.record("c", 130.0, {late: 222})
    assert one.problem is None
    ends = dict.fromkeys(others, ((120.0, 5),))
    assert dict(two.stored("c")) == {TP: ((100.0, 1),), late: ((130.0, 222),), **ends}


def test_a_locked_file_is_told_and_done_without(tmp_path):
    """Writing, and reading; what was stored before is there again when the lock is gone."""
    path = tmp_path / "s.db"
    samples = EndStore(path)
    samples._db.execute("PRAGMA busy_timeout=20")
    assert samples.record("c", 100.0, {TP: 1})
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert not samples.record("c", 110.0, {TP: 2})
    assert "database is locked" in (samples.problem or "")
    assert dict(samples.stored("c")) == {TP: ((100.0, 1),)}
    other.execute("COMMIT")
    assert samples.record("c", 110.5, {TP: 3})
    assert samples.problem is None
    samples._db.execute("DROP TABLE sample")
    assert (dict(samples.stored("c")), samples.around("c", [(TP, 1)])) == ({}, {})
    assert "no such table" in (samples.problem or "")
    other.close()
