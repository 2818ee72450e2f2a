"""Offsets that were gone before they were read: named once, with topic, partition and offsets."""

import json
from contextlib import nullcontext

import pyarrow as pa
import pytest

from fleet import cli
from fleet.clock import ManualClock
from fleet.history.digest import RETURNED, Task
from fleet.history.pipeline import Recorder
from fleet.history.source import _gone
from fleet.kafka_source.pieces import LogBounds, OffsetRange
from fleet.lag.snapshot import Logs
from fleet.log.record_columns import COLUMNS, columns
from tests.history.records_made import group_metadata
from tests.history.test_tables import NOW, opened

PARTITION = 7
TOLD = "__consumer_offsets-7: Kafka deleted offsets from {} to {} before the history read them"


class Topic:
    """One partition of the topic, which a coordinator's compaction may have taken parts of."""

    def __init__(self, end):
        self.first, self.end = 0, end
        self.missed = {}
        """Offset → the end of what the reader finds missing there."""

    def bounds(self):
        """What may be read."""
        return {PARTITION: LogBounds(self.first, self.end, self.end)}

    def digest(self, ranges, *, led, since, place, cluster):
        """The range's first and last record, and what is missing, as a task writes them."""
        self.since = since
        ((_, _, start, end, _),) = ranges
        rows = [
            columns([PARTITION], [at], [int(NOW * 1000)], *record(at), events=False)
            for at in (start, end - 1)
        ]
        for at, until in self.missed.items():
            if start <= at < end:
                lost = _gone(OffsetRange("__consumer_offsets", PARTITION, at, until), 5)
                rows.append(pa.RecordBatch.from_pylist([lost], schema=COLUMNS))
        task = Task([], options={}, digest={"interval": 1000}, place=place, cluster=cluster)
        return pa.Table.from_pylist(list(task.returned(rows)), schema=RETURNED)

    def bounded(self, offsets):
        """In any time."""
        return nullcontext()

    def names(self, ids):
        """None."""
        return {}

    def ends(self, tps):
        """Nobody asks."""
        return Logs(at=NOW, starts={}, ends={})


def record(at):
    pair = group_metadata("g", at + 1, ["m"], int(NOW * 1000))
    return (pa.array([each], pa.binary()) for each in pair)


@pytest.fixture
def path(tmp_path, monkeypatch):
    (tmp_path / "fleet.yaml").write_text(
        'cluster: {name: main, bootstrap_servers: "127.0.0.1:1"}\n'
        f"history: {{path: {tmp_path / 'tables'}}}\n"
    )
    monkeypatch.setenv("FLEET_CONFIG", str(tmp_path / "fleet.yaml"))
    monkeypatch.setenv("FLEET_HOME", str(tmp_path / "home"))
    return tmp_path / "tables"


def test_what_compaction_took_is_named_with_its_place(path, capsys):
    """Before a batch and inside of one; a first run has lost nothing that it was to read."""
    topic, said = Topic(100), []
    topic.missed[10] = 20
    writer = opened(path, ManualClock(at=NOW))
    recorder = Recorder(writer, topic, say=said.append, batch=50)
    stops = iter((False, True, True, True))
    recorder.catch_up(stopped=lambda: next(stops))
    assert writer.state.positions == {PARTITION: 50}
    recorder.batch = 1000
    done = recorder.catch_up()
    assert (done.lost, writer.state.lost) == ([], ())
    assert topic.since == writer.state.since == {PARTITION: 100}
    topic.first, topic.end = 150, 400
    topic.missed[300] = 320
    done = recorder.catch_up()
    assert done.lost == [(7, 100, 150), (7, 300, 320)]
    assert writer.state.lost == tuple(done.lost)
    assert not done.problems
    assert recorder.catch_up().lost == []
    assert topic.since == writer.state.since == {PARTITION: 100}
    assert [each for each in said if "deleted" in each] == [
        TOLD.format(100, 149),
        TOLD.format(300, 319),
    ]
    assert cli.run(["history", "status"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-2:] == [TOLD.format(100, 149), TOLD.format(300, 319)]
    assert cli.run(["history", "status", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)["lost"]
    assert told[-1] == {"partition": 7, "from": 300, "to": 320}
    assert cli.run(["rebalances"]) == 0
    assert "last in __consumer_offsets-7: offsets 300 to 319" in capsys.readouterr().out
