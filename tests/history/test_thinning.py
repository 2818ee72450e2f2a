"""Lag as it ages: which rows stay, of every partition and case, and how much is left."""

from collections import Counter, defaultdict

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from fleet.clock import ManualClock
from fleet.history.retention import thin_rows, tidy
from fleet.history.tables import LAG, Tables
from tests.history.test_published import published, recorded
from tests.history.test_tables import DAY, NOW, opened

MIDNIGHT = NOW - NOW % DAY


def row(at, partition=0, records=1, case="ok", group="g"):
    return {
        "cluster": "main", "sampled_at": at, "group_id": group, "topic": "t",
        "topic_partition": partition, "committed": 1, "log_end": 1 + records, "records": records,
        "lag_case": case, "known": "commits",
    }  # fmt: skip


LOOKS = st.lists(
    st.tuples(
        st.integers(1, 50),
        st.lists(
            st.tuples(st.integers(0, 2), st.sampled_from(["ok", "unknown"]), st.integers(0, 1)),
            max_size=4,
        ),
    ),
    max_size=30,
)


@given(LOOKS)
def test_the_last_row_of_each_partition_and_case_stays(looks):
    """Of each minute, in order of time."""
    at, rows, kept = MIDNIGHT, [], {}
    for gap, told in looks:
        at += gap
        for partition, case, group in told:
            made = row(at, partition, len(rows), case, f"g{group}")
            rows.append(made)
            kept[at // 60, group, partition, case] = len(rows) - 1
    table = pa.Table.from_pylist(rows, schema=LAG)
    stayed = thin_rows(table, 60)["records"].to_pylist()
    assert stayed == sorted(kept.values())


def test_each_day_is_thinned_once_and_published(tmp_path):
    """As days pass: ten seconds, a minute, ten minutes; and other rows are left alone."""
    clock = ManualClock(at=MIDNIGHT + 3600)
    writer = opened(tmp_path, clock, retention=20 * DAY)
    for number in range(3):
        ats = (MIDNIGHT + 1200 * number + 10 * look for look in range(120))
        rows = [row(at, partition) for at in ats for partition in range(2)]
        writer.commit("look", files=writer.write("lag", rows))
    counts = defaultdict(int)
    for _ in range(10):
        tidy(writer)
        every = max(writer.state.thinned, default=10)
        counts[every] += 1
        assert Tables(tmp_path).rows()["lag"] == 2 * 3600 // every
        assert published(tmp_path, "lag") == recorded(tmp_path, "lag")
        number = writer.state.number
        tidy(writer)
        assert writer.state.number == number, "nothing is due"
        clock.sleep(DAY)
    assert counts == {10: 2, 60: 6, 600: 2}


def test_days_are_thinned_the_oldest_first_and_none_is_left_out(tmp_path):
    """One at a time; a day that is a week old by then goes to ten minutes at once."""
    clock = ManualClock(at=MIDNIGHT + 3600)
    writer = opened(tmp_path, clock, retention=20 * DAY)
    rows = [row(MIDNIGHT - day * DAY + 10 * look) for day in range(12) for look in range(120)]
    writer.commit("look", files=writer.write("lag", rows))
    for _ in range(12):
        tidy(writer)
    held = Counter(int((MIDNIGHT - at) // -DAY) for at in times(tmp_path))
    assert held == {-day: 2 if day > 7 else 20 if day > 1 else 120 for day in range(12)}


def times(path):
    """Of all rows."""
    return Tables(path).read("lag")["sampled_at"].to_pylist()
