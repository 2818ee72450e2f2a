"""What the driver makes of a batch's files does not depend on where batches are cut."""

import json
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fleet.history.batch_tables import Batch, BatchFiles
from fleet.history.job_memory import JobMemory
from fleet.history.prefilter import decoded_last
from fleet.history.rollup import Rollup
from fleet.history.tables.table_columns import DIGEST, TABLES, decoded
from fleet.history.tables.table_folder import TableFolder
from fleet.history.tables.table_manifests import DataFile
from fleet.log.record_columns import columns
from tests.history.making import key
from tests.history.records_made import group_metadata, offset_commit

INTERVAL = 1000
GROUP = "g"


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
        self.folder, self.records, self.decode = folder, records, decode
        self.memory, self.rebalances, self.place = JobMemory(), [], TableFolder(folder)

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
        rows = pa.Table.from_batches(Rollup(DIGEST, interval=INTERVAL).run([made]), DIGEST)
        files = []
        for table in ("commits", "events"):
            mine = rows.filter(pc.equal(rows["kind"], table))
            kept = {
                name: mine[decoded(name)]
                for name in TABLES[table].names
                if decoded(name) in mine.column_names
            }
            name = f"{start}-{end}-{table}.parquet"
            pq.write_table(pa.table(kept), self.folder / name)
            files.append(DataFile(name=name, table=table, day="", rows=len(mine), bytes=1))
        batch = Batch(
            BatchFiles(self.place, files),
            self.memory,
            cluster="main",
            names=lambda _: {},
            topics={},
            led={},
            read={},
        )
        batch.replay()
        batch.remember_commits(waiting={})
        self.rebalances += batch.rebalances
        return self


def test_offsets_that_expire_between_two_events_leave_the_replay(tmp_path):
    """Topics come and go in a group whose members stay: it remembers those that are there."""
    at, records, cuts = 1_700_000_000_000, [], []
    for number in range(4):
        at += 1000
        records.append((at, *group_metadata(GROUP, number + 1, ["m"], at)))
        where = key(1, GROUP, f"day-{number}", 0)
        records.append((at + 1, where, offset_commit(GROUP, 0, 10, at)[1]))
        records.append((at + 2, *group_metadata(GROUP, number + 2, ["m"], at)))
        cuts.append(len(records))
        if number < 3:
            records.append((at + 3, where, None))
            cuts.append(len(records))
    driver, start = Driver(tmp_path, records, columns), 0
    for end in cuts:
        driver, start = driver.take(start, end), end
    kept = json.loads(driver.memory.groups[GROUP].state)
    assert list(driver.memory.commits) == [(GROUP, "day-3", 0)]
    assert len(kept["group"]["commits"]) == 1
    whole = Driver(tmp_path, records, columns).take(0, len(records))
    assert json.loads(whole.memory.groups[GROUP].state) == kept


@pytest.mark.parametrize(
    "decode",
    [
        pytest.param(columns, id="decoded whole"),
        pytest.param(partial(decoded_last, interval=INTERVAL), id="thinned early"),
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
