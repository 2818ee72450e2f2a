"""`benchmarks history`: its commits are true records, its answer is the documented one."""

from dataclasses import replace

import pyarrow as pa
import pytest

from benchmarks.command import answer
from benchmarks.history import HistoryOptions, HistoryResult, RecordingResult, ways
from benchmarks.offset_commits import GROUPS, arrays
from fleet.log.record_columns import columns
from tests.benchmarks.test_commands import bench
from tests.support.json_contract import BENCHMARKS, documented, shape


def test_synthetic_commits_are_read_without_a_problem():
    """Every version and tombstones, as the coordinator writes them."""
    keys, values = arrays(3 * GROUPS, versions=(0, 1, 2, 3, 4, None))
    rows = len(keys)
    found = columns([0] * rows, range(rows), [0] * rows, keys, values)
    assert found.column("problem").null_count == rows
    assert pa.compute.count_distinct(found.column("group")).as_py() == GROUPS
    assert found.column("version").to_pylist()[:6] == [0, 1, 2, 3, 4, -1]
    assert found.column("topic_id").to_pylist()[4] == bytes(range(16)).hex()


def test_the_answer_is_the_documented_one():
    """benchmarks/json.md; a slow decoder misses its goal, and so does one that was not measured."""
    options = HistoryOptions(commits=10)
    bare = dict.fromkeys(ways("b:1"), 9.0)
    document = documented("python -m benchmarks history -o json", BENCHMARKS)
    names = list(document["decoder_records_per_second"])
    memory = {"job": 1.0, "Spark": 1.0, "Spark's Python": 1.0}
    recorded = RecordingResult(
        commits=10, seconds=5e-5, rows=2, missing=0, memory=memory, cpu={**memory, "broker": 1.0}
    )
    result = HistoryResult(
        options=options,
        decoder=dict.fromkeys(names, 3e6),
        bare=bare,
        bare_cpu={way: {"consumers": 1.0, "broker": 1.0} for way in bare},
        recorded=recorded,
    )
    assert shape(answer("history", result)) == shape(document)
    assert result.met
    for changed in (
        {"decoder": {**result.decoder, names[0]: 1e6}},
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
    assert code == (0 if told["met"] else 1)
    assert set(told["bare_records_per_second"]) == {"as they come", "with our fetch options"}
    assert not any((tmp_path / "bench").iterdir()), "the home is gone"
