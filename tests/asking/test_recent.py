"""What of the past is believed: tables while somebody writes them, else the log, else nothing."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.errors import Unreachable
from fleet.history.tables import TablePlace, Writer
from fleet.kafka_source.batch_fetcher import FetchedPart
from fleet.kafka_source.bounds import ListedOffset, Where
from fleet.log.records import TOPIC, partition_for
from fleet.manager.lag_assessment import compute_lag_statuses
from fleet.manager.past import LONGEST, read_last_minutes, read_recent
from tests.asking.test_lag_assessment import NOW, commit_row, look
from tests.support.declared import declaration, fleet_spec
from tests.support.written_log import WrittenLog, WrittenPart, batch, of

DAY = 86_400.0


def written(place: Path, *, ago: float, behind: int = 0) -> None:
    """Tables whose writer ended so long ago."""
    clock = ManualClock(at=NOW - ago)
    writer = Writer(TablePlace(place), cluster="main", clock=clock, retention=10 * DAY)
    rows = [commit_row(NOW - ago - 40, 40, 0), commit_row(NOW - ago - 30, 50, 1)]
    files = writer.write("commits", rows)
    writer.commit("batch", files=files, positions={0: 1}, behind=behind)


def fleet(place: Path, **history: Any) -> Any:
    """Open, and its brokers do not answer."""

    def away() -> dict[int, Any]:
        raise Unreachable("no broker of h:1 answers")

    return SimpleNamespace(
        clock=ManualClock(at=NOW), history_path=str(place), offsets_bounds=away,
        client={"bootstrap.servers": "127.0.0.1:1"}, sessions=None, read_on=lambda seen, _: seen,
        spec=fleet_spec(declaration("orders"), history={"batch_interval": "30s", **history}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ago", "history", "expected"),
    [
        (30.0, {}, True),
        (DAY, {}, False),
        (1_000.0, {}, False),
        (1_000.0, {"batch_interval": "10m"}, True),
    ],
)
def test_tables_tell_while_somebody_writes_them(tmp_path, ago, history, expected):
    """A tail that ended a day ago says of nobody that it keeps up since."""
    written(tmp_path, ago=ago)
    here = fleet(tmp_path, **history)
    seen = look(lag=1_000_000, waited=20 * 3600.0, committed=60)
    for recent in (read_recent(here), *([read_last_minutes(here, ["orders"])] if expected else [])):
        assert recent.known
        assert recent.kind == "tables"
        assert recent.old == (not expected)
        assert bool(compute_lag_statuses(here, seen, recent, ["orders"])[1]) == expected


def test_tables_that_are_catching_up_tell_of_no_group_how_it_is_now(tmp_path):
    """Commits that are not in them yet look like silence, whenever they were written."""
    written(tmp_path, ago=0.0, behind=1_000_000)
    here = fleet(tmp_path)
    recent = read_recent(here)
    assert (recent.old, recent.per_hour("orders")) == (True, None)
    assert "lacks 1,000,000 records of the log" in recent.sentence
    assert not compute_lag_statuses(here, look(waited=70.0, committed=5_000), recent, ["orders"])[1]


@pytest.mark.parametrize("schema", [1, 99])
def test_tables_that_cannot_be_read_take_nothing_else_down(tmp_path, schema):
    """Of a newer release, or damaged: the log is asked, and the sentence says why."""
    writer = Writer(TablePlace(tmp_path), cluster="main", clock=ManualClock(at=NOW), retention=DAY)
    writer.commit("batch", schema=schema)
    if schema == 1:
        for job in tmp_path.glob("state/kind=job/*.parquet"):
            job.write_bytes(b"no parquet")
    here = fleet(tmp_path)
    for recent in (read_recent(here), read_last_minutes(here, ["orders"], grace=0.1)):
        assert not recent.known
        assert "; cannot read the history tables: " in recent.sentence
    assert "no broker of h:1 answers" in read_recent(here).sentence


def test_a_place_that_cannot_even_be_opened_takes_nothing_else_down(tmp_path):
    """As S3 is where the region of the bucket cannot be asked."""
    here = fleet(tmp_path)
    here.history_path = "nowhere://bucket/history"
    assert (
        "cannot read the history tables: history.path nowhere://bucket/history"
        in read_recent(here).sentence
    )


def test_commits_that_are_damaged_say_of_no_group_that_it_keeps_up(tmp_path):
    """While the rebalances beside them can be read; groups that nobody doubts are judged."""
    written(tmp_path, ago=30.0)
    here = fleet(tmp_path)
    recent = read_recent(here)
    assert recent.kind == "tables"
    for file in tmp_path.rglob("*.parquet"):
        file.write_bytes(b"no parquet")
    late = look(lag=1_000_000, waited=20 * 3600.0, committed=60)
    assert not compute_lag_statuses(here, late, recent, ["orders"])[1]


class SlowLog(WrittenLog):
    """An offsets topic of two partitions: a second for each 1,000 records, none of a group's."""

    def __init__(self, clock: ManualClock, sizes: dict[int, int]) -> None:
        super().__init__({(TOPIC, number): WrittenPart() for number in sizes})
        self._clock = clock
        for number, count in sizes.items():
            for after in range(1_000, count + 1, 1_000):
                part = self.parts[TOPIC, number]
                part.add(batch(after - 1_000, of(b"nobody's"), after=after), after)

    def partitions(self, topic: str, timeout: float) -> list[int] | int:
        """Its two."""
        return sorted(number for _, number in self.parts)

    def fetch(self, positions: Mapping[Where, int], timeout: float) -> list[FetchedPart]:
        """One batch."""
        self._clock.sleep(1.0)
        self.sizes[:] = [1]
        return super().fetch(positions, timeout)

    def listed(self, wanted: Mapping[Where, int], timeout: float) -> dict[Where, ListedOffset]:
        """The last record is the one of any time."""
        ends = super().listed(wanted, timeout)
        return {
            where: ListedOffset(ends[where].offset - 1) if at >= 0 else ends[where]
            for where, at in wanted.items()
        }


def test_a_partition_that_takes_too_long_costs_its_group_the_verdict_and_no_other(
    tmp_path, monkeypatch
):
    """A tick ends in time; of who was not reached silence is no sign."""
    here = fleet(tmp_path)
    here.sessions = SimpleNamespace(of=lambda *_: None)
    slow = partition_for("slow", 2)
    quick = next(name for name in ("a", "b", "c", "d") if partition_for(name, 2) != slow)
    log = SlowLog(here.clock, {slow: 100_000, 1 - slow: 1_000})
    monkeypatch.setattr("fleet.log.readers.group_log.BatchFetcher", lambda *_, **__: log)
    began = here.clock.monotonic()
    recent = read_last_minutes(here, ["slow", quick])
    assert here.clock.monotonic() - began <= LONGEST + 1
    assert (recent.known, recent.unread) == (True, {"slow"})
    for group, groups in (("slow", set()), (quick, {quick})):
        seen = look(waited=300.0, group=group)
        assert set(compute_lag_statuses(here, seen, recent, [group])[1]) == groups
