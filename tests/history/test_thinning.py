"""Lag as it ages: which rows stay, of every partition and case, and how much is left."""

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.clock import ManualClock
from fleet.history import thinning
from fleet.history.compaction import compacted
from fleet.history.job import commit
from fleet.history.job_memory import JobMemory
from fleet.history.tables import Tables
from fleet.history.tables.table_columns import LAG
from fleet.history.tables.table_folder import TableFolder
from fleet.history.thinning import every_of, thinned
from tests.history.test_published import opened, published, recorded
from tests.history.test_tables import DAY, NOW

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


@given(LOOKS, st.booleans())
def test_the_last_row_of_each_partition_and_case_stays(looks, small):
    """Of each minute, in order of time, wherever the rows are cut."""
    at, rows, kept = MIDNIGHT, [], {}
    for gap, told in looks:
        at += gap
        for partition, case, group in told:
            made = row(at, partition, len(rows), case, f"g{group}")
            rows.append(made)
            kept[at // 60, group, partition, case] = len(rows) - 1
    table = pa.Table.from_pylist(rows, schema=LAG)
    before, thinning._HELD = thinning._HELD, 3 if small else thinning._HELD
    try:
        found = list(thinned(table.to_batches(max_chunksize=7), 60))
    finally:
        thinning._HELD = before
    stayed = [each["records"] for part in found for each in part.to_pylist()]
    assert stayed == sorted(kept.values())


@pytest.mark.parametrize(
    ("age", "every"),
    [(0, 0), (DAY, 0), (2 * DAY, 60), (7 * DAY, 60), (8 * DAY, 600), (90 * DAY, 600)],
)
def test_every_row_stays_for_a_day_one_a_minute_for_a_week(age, every):
    """Of days whose last row is as old as that."""
    day = thinning.day_of(MIDNIGHT - age)
    assert every_of("lag", day, now=MIDNIGHT + 1) == every
    assert every_of("commits", day, now=MIDNIGHT + 1) == 0


def test_compaction_thins_each_day_once_and_publishes_it(tmp_path):
    """As days pass: ten seconds, a minute, ten minutes; and other rows are left alone."""
    clock = ManualClock(at=MIDNIGHT + 3600)
    with opened(TableFolder(tmp_path), clock) as writer:
        for number in range(3):
            attempt = writer.attempt()
            ats = (MIDNIGHT + 1200 * number + 10 * look for look in range(120))
            rows = [row(at, partition) for at in ats for partition in range(2)]
            files = writer.write(attempt, "lag", LAG, rows, "sampled_at")
            commit(writer, JobMemory(), attempt, "look", files)
        counts = defaultdict(int)
        for _ in range(10):
            compacted(writer, JobMemory())
            (every,) = {file.every for file in writer.manifest.of("lag")}
            counts[every] += 1
            assert Tables(tmp_path).rows()["lag"] == 2 * 3600 // (every or 10)
            assert published(tmp_path, "lag")[0] == recorded(tmp_path, "lag")
            assert compacted(writer, JobMemory()) == 0
            clock.sleep(DAY)
    assert counts == {0: 2, 60: 6, 600: 2}
