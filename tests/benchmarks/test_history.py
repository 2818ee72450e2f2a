"""`benchmarks history`: its commits are true records, its goals are kept apart."""

from dataclasses import replace

import pyarrow as pa
import pytest

from benchmarks.history import HistoryOptions, HistoryResult, RecordingResult, ways
from benchmarks.offset_commits import GROUPS, arrays
from fleet.log.record_columns import columns
from tests.benchmarks.test_commands import bench


def test_synthetic_commits_are_read_without_a_problem():
    """Every version and tombstones, as the coordinator writes them."""
    keys, values = arrays(3 * GROUPS, versions=(0, 1, 2, 3, 4, None))
    rows = len(keys)
    found = columns([0] * rows, range(rows), [0] * rows, keys, values)
    assert found.column("problem").null_count == rows
    assert pa.compute.count_distinct(found.column("group")).as_py() == GROUPS
    assert found.column("version").to_pylist()[:6] == [0, 1, 2, 3, 4, -1]
    assert found.column("topic_id").to_pylist()[4] == bytes(range(16)).hex()


def test_goals():
    """A slow decoder misses its goal, and so does one that was not measured."""
    options = HistoryOptions(commits=10)
    bare = dict.fromkeys(ways("b:1"), 9.0)
    recorded = RecordingResult(commits=10, seconds=5e-5, rows=2, missing=0)
    result = HistoryResult(
        options=options, decoder={"v4": 3e6, "v0": 3e6}, bare=bare, recorded=recorded
    )
    assert result.met
    for changed in (
        {"decoder": {**result.decoder, "v4": 1e6}},
        {"bare": dict.fromkeys(bare, 1e6)},
        {"recorded": replace(recorded, seconds=1.0)},
        {"recorded": replace(recorded, missing=-1)},
        {"recorded": None},
    ):
        assert not replace(result, **changed).met, changed
    assert not HistoryResult(options=options).met


@pytest.mark.long
@pytest.mark.broker
def test_for_real(tmp_path):
    """A small topic; nothing is left."""
    code, told = bench(tmp_path, "history", "--commits", "20000")
    (found,) = told["results"]
    assert code == (0 if found["met"] else 1)
    assert set(found["bare"]) == {"as they come", "with our fetch options"}
    assert not any((tmp_path / "bench").iterdir()), "the home is gone"
