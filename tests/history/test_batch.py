"""What the driver makes of a batch's files does not depend on where batches are cut."""

import json
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from fleet.history.digest import RETURNED, Task, decode_last_commits
from fleet.history.memory import JobMemory
from fleet.history.pipeline import Batch
from fleet.history.tables import State
from fleet.log.record_columns import columns
from fleet.log.records import record_key
from tests.history.records_made import group_metadata, offset_commit

INTERVAL = 1000
DIGEST = {"interval": INTERVAL}
GROUP = "g"
WHOLE = partial(columns, events=False)


def log():
    """(time, key, value): a member that commits two partitions, and is gone a session later."""
    at, made = 1_700_000_000_237, []
    for generation in (1, 2):
        made.append((at, *group_metadata(GROUP, generation, ["m"], at)))
        for number in range(100):
            at += 14
            made.append((at, *offset_commit(GROUP, number % 2, generation * 100 + number, at)))
    at += 50_000
    made.append((at, *group_metadata(GROUP, 3, [], at)))
    return made


class Driver:
    """Batch after batch of one log, as the job's driver sees them."""

    def __init__(self, folder, records, decode):
        self.records, self.decode = records, decode
        self.memory, self.rebalances = JobMemory(), []
        self.task = Task([], options={}, digest=DIGEST, place=str(folder), cluster="main")

    def take(self, start, end):
        """One batch of these offsets."""
        times, keys, values = zip(*self.records[start:end], strict=True)
        made = self.decode(
            np.full(end - start, 7),
            np.arange(start, end),
            np.array(times),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
        )
        returned = pa.Table.from_pylist(list(self.task.returned([made])), schema=RETURNED)
        state = State(number=0, cluster="main", at=0.0, what="none")
        batch = Batch(returned, self.memory, state=state, names=lambda _: {})
        for _ in batch.replayed(waiting={}):
            pass
        self.rebalances += batch.rebalances
        return self


def test_offsets_that_expire_between_two_events_leave_the_replay(tmp_path):
    """Topics come and go in a group whose members stay: it remembers those that are there."""
    at, records, cuts = 1_700_000_000_000, [], []
    for number in range(4):
        at += 1000
        records.append((at, *group_metadata(GROUP, number + 1, ["m"], at)))
        where = record_key(1, GROUP, f"day-{number}", 0)
        records.append((at + 1, where, offset_commit(GROUP, 0, 10, at)[1]))
        records.append((at + 2, *group_metadata(GROUP, number + 2, ["m"], at)))
        cuts.append(len(records))
        if number < 3:
            records.append((at + 3, where, None))
            cuts.append(len(records))
    driver, start = Driver(tmp_path, records, WHOLE), 0
    for end in cuts:
        driver, start = driver.take(start, end), end
    kept = json.loads(driver.memory.groups[GROUP].state)
    assert list(driver.memory.commits) == [(GROUP, "day-3", 0)]
    assert len(kept["group"]["commits"]) == 1
    whole = Driver(tmp_path, records, WHOLE).take(0, len(records))
    assert json.loads(whole.memory.groups[GROUP].state) == kept


@pytest.mark.parametrize(
    "decode",
    [
        pytest.param(WHOLE, id="decoded whole"),
        pytest.param(partial(decode_last_commits, interval=INTERVAL), id="thinned early"),
    ],
)
def test_a_cause_is_the_same_wherever_batches_are_cut(tmp_path, decode):
    """Also where a batch begins with too few commits to show their rhythm, or with none."""
    records = log()
    end = len(records)
    whole = Driver(tmp_path, records, decode).take(0, end).rebalances
    assert [row["cause"] for row in whole] == ["created", "leader rejoin", "expiry"]
    for cut in (1, 50, 102, *range(end - 5, end)):
        parts = Driver(tmp_path, records, decode).take(0, cut).take(cut, end)
        assert parts.rebalances == whole, cut
