"""What a task makes of decoded records: nothing is lost, and no row reaches over an event."""

from collections import defaultdict
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.offset_commits import key, value
from fleet.config.spec import Selection
from fleet.history.digest import Rollup, decode_last_commits
from fleet.history.tables import days_of
from fleet.log.record_columns import LED, columns
from tests.history.records_made import commit, contract, event


def run(rows, **options):
    """The digest's rows, of records in batches of seven."""
    table = contract(rows)
    digest = Rollup(**{"interval": 1000, **options})
    return listed(digest.run(table.to_batches(max_chunksize=7)))


def listed(found):
    """Rows one by one, with their kind."""
    return [{"kind": kind, **row} for kind, rows in found for row in rows.to_pylist()]


def naive(rows, interval):
    """The same, one by one."""
    seen = defaultdict(int)
    kept = defaultdict(list)
    for row in rows:
        if row["type"] > 1 or row["problem"]:
            seen[row["group"]] += 1
            continue
        key = (row["group"], row["topic"], row["topic_partition"])
        kept[(*key, row["timestamp"] // interval, seen[row["group"]])].append(row)
    return kept


RECORDS = st.lists(
    st.one_of(
        st.builds(
            lambda g, p, gap: ("commit", f"g{g}", p, gap),
            st.integers(0, 2),
            st.integers(0, 2),
            st.integers(0, 700),
        ),
        st.builds(lambda g, gap: ("event", f"g{g}", 0, gap), st.integers(0, 2), st.integers(0, 50)),
    ),
    max_size=60,
)


@given(RECORDS, st.booleans())
def test_rows_are_the_commits_thinned(made, flushing):
    """Last, first, last but one and number, per partition, interval and stretch between events."""
    at, rows = 1_000_000, []
    for offset, (kind, group, partition, gap) in enumerate(made):
        at += gap
        if kind == "commit":
            rows.append(commit(offset, at, group=group, partition=partition))
        else:
            rows.append(event(offset, at, group=group))
    from fleet.history import digest

    before, digest.FLUSH = digest.FLUSH, 10 if flushing else digest.FLUSH
    try:
        got = run(rows)
    finally:
        digest.FLUSH = before
    events = [r["offset"] for r in got if r["kind"] == "events"]
    assert events == [r["offset"] for r in rows if r["type"] == 2]
    commits = [r for r in got if r["kind"] == "commits"]
    assert sum(r["commits"] for r in commits) == len(rows) - len(events)
    if flushing:
        return
    wanted = naive(rows, 1000)
    assert len(commits) == len(wanted)
    found = {r["offset"]: r for r in commits}
    for stretch in wanted.values():
        row = found[stretch[-1]["offset"]]
        assert row["commits"] == len(stretch)
        assert (row["first_offset"], row["first_timestamp"]) == (
            stretch[0]["offset"],
            stretch[0]["timestamp"],
        )
        previous = stretch[-2]["timestamp"] if len(stretch) > 1 else None
        assert row["previous_timestamp"] == previous
        assert row["committed"] == stretch[-1]["committed"]
    assert [r["offset"] for r in commits] == sorted(r["offset"] for r in commits)


def test_interval_0_keeps_every_commit():
    """One row each, and each stands for itself."""
    rows = [commit(n, 1_000_000 + n, group="g", partition=0) for n in range(20)]
    got = run(rows, interval=0)
    assert [(r["offset"], r["commits"], r["first_offset"]) for r in got] == [
        (n, 1, n) for n in range(20)
    ]


def test_days_are_of_the_record():
    """UTC, and what has no time stands in the first day."""
    for table, late in (("commits", 1_790_000_000_000), ("lag", 1_790_000_000.5)):
        name = "timestamp" if table == "commits" else "sampled_at"
        rows = pa.table({name: [-1, late]})
        assert days_of(table, rows).to_pylist() == ["1970-01-01", "2026-09-21"]


@pytest.mark.parametrize(
    ("allow", "deny", "kept"),
    [
        pytest.param((".*",), (), {"a.1", "a\nb", "b"}, id="all, with a line break too"),
        pytest.param(("a.*",), (), {"a.1", "a\nb"}, id="allowed"),
        pytest.param((".*",), (r"a\.1", "a.b"), {"b"}, id="denied"),
    ],
)
def test_groups_are_selected(allow, deny, kept):
    """As the exporter selects them; what could not be decoded is nobody's and is kept."""
    rows = [commit(n, 1_000_000, group=g) for n, g in enumerate(("a.1", "a\nb", "b"))]
    rows.append({**event(3, 1_000_000, group=None), "problem": "record type 99 is not known"})
    assert {r["group"] for r in run(rows, allow=allow, deny=deny)} == {*kept, None}
    takes = Selection(allow=allow, deny=deny).takes
    assert {row["group"] for row in rows[:3] if takes(row["group"])} == kept


RAW = st.lists(
    st.tuples(
        st.sampled_from([*["commit"] * 12, "tombstone", "event", "cut", "not text", "legacy"]),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 700),
    ),
    max_size=60,
)


def raw(kind, group, partition, number):
    """Key and value as the coordinator writes them, or worse."""
    named, told = key(group, partition), value(4, number, number)
    if kind == "tombstone":
        return named, None
    if kind == "event":
        return b"\0\2" + named[2:-4], b"\0\3"
    if kind == "cut":
        return named, told[:-3]
    if kind == "not text":  # metadata of one byte that is no UTF-8
        return named, told[:14] + b"\2\xff" + told[15:]
    if kind == "legacy":
        return key(group, partition, kind=0), value(1, number, number)
    return named, told


@given(RAW)
@example([("commit", 0, 0, 0), ("legacy", 0, 0, 0), ("commit", 0, 0, 0)])
def test_what_is_thinned_before_it_is_decoded_comes_to_the_same(made):
    """Chunk by chunk, whatever stands between the commits."""
    at, records = 1_000_000, []
    for offset, (kind, group, partition, gap) in enumerate(made):
        at += gap
        records.append((offset, at, *raw(kind, group, partition, offset)))

    def rows(decode):
        digest = Rollup(interval=1000)
        chunks = [records[n : n + 7] for n in range(0, len(records), 7)]
        batches = (
            decode(
                [0] * len(chunk),
                [r[0] for r in chunk],
                [r[1] for r in chunk],
                pa.array([r[2] for r in chunk], pa.binary()),
                pa.array([r[3] for r in chunk], pa.binary()),
            )
            for chunk in chunks
        )
        return listed(digest.run(batches))

    assert rows(partial(decode_last_commits, interval=1000)) == rows(partial(columns, events=False))


def test_a_change_of_leader_goes_with_what_was_thinned_before():
    """Its row says nothing of commits, and parts none of them."""
    pairs = [raw("commit", 1, 0, number) for number in range(5)]
    arrays = (pa.array(each, pa.binary()) for each in zip(*pairs, strict=True))
    thin = decode_last_commits([0] * 5, range(5), range(5), *arrays, interval=1000)
    led = {"partition": 0, "offset": 0, "timestamp": 0, "type": LED, "leader_epoch": 3}
    both = [pa.RecordBatch.from_pylist([led], schema=thin.schema), thin]
    rows = listed(Rollup(interval=1000).run([pa.concat_batches(both)]))
    assert [(r["kind"], r["type"], r["commits"]) for r in rows] == [
        ("events", LED, None),
        ("commits", 1, 5),
    ]


def test_only_well_formed_commits_are_thinned_before():
    """Then a chunk has as many rows as keys and intervals, else as many as records."""

    def made(*kinds):
        pairs = [raw(kind, 1, 0, number) for number, kind in enumerate(kinds)]
        arrays = (pa.array(each, pa.binary()) for each in zip(*pairs, strict=True))
        place = [0] * len(kinds), range(len(kinds)), range(len(kinds))
        return decode_last_commits(*place, *arrays, interval=1000).num_rows

    assert made(*["commit"] * 5, "tombstone") == 1
    assert made("legacy", "commit", "commit") == 3
    assert made("legacy", "legacy") == 1
    for odd in ("event", "cut", "not text"):
        assert made(*["commit"] * 5, odd) == 6
