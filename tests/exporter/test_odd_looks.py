"""A look that fails in a way that nobody thought of costs that look: the next one is taken."""

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleet.clock import ManualClock
from fleet.errors import Unreachable
from fleet.exporter import Exporter
from fleet.lag.end_history import EndHistory, EndStore
from fleet.log.readers.tail import Tail
from fleet.manager.cycle import Fleet
from fleet.model import TopicPartition
from tests.observe.answered import Answered

TP = TopicPartition("t", 0)


class Odd(Answered):
    """Looks go wrong while `why` is set, and that ends the run."""

    why: Exception | None = None

    def refresh(self):
        """As it is, but for that."""
        if self.why is not None:
            self.stop.set()
            raise self.why
        return super().refresh()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Fleet]:
    config = tmp_path / "fleet.yaml"
    config.write_text('cluster: {name: c, bootstrap_servers: "127.0.0.1:1"}\n')
    with Fleet.open(config, home=tmp_path / "home", clock=ManualClock(1_000_000.0)) as fleet:
        yield fleet


def exporter_of(fleet: Fleet, watcher: Answered, lines: list[str]) -> Exporter:
    """It has the tail of a cluster that is not there, and what the watcher is told."""
    watcher.answers.committed, watcher.answers.at = {"g": {TP: 5}}, {TP: 10}
    tail = Tail(fleet.client, cluster="c", clock=fleet.clock)
    return Exporter(fleet, listen="127.0.0.1:0", tail=tail, watcher=watcher, say=lines.append)


def sample(exporter: Exporter, name: str, **labels: str) -> float | None:
    """Of what it tells now."""
    for family in text_string_to_metric_families(exporter.text()):
        for each in family.samples:
            if each.name == name and labels.items() <= each.labels.items():
                return each.value
    return None


def test_a_defect_is_told_and_counted_and_the_next_look_is_taken(opened):
    """Not only what Fleet itself says of a cluster that is away."""
    watcher, lines = Odd(opened.clock), []
    with exporter_of(opened, watcher, lines) as exporter:
        watcher.stop, watcher.why = threading.Event(), KeyError("x")
        exporter.run(watcher.stop)
        watcher.stop.clear()
        exporter.run(watcher.stop)
        assert lines == ["refresh failed by a defect: KeyError: 'x'; report it"]
        assert sample(exporter, "fleet_exporter_refreshes_total", result="failed") == 2
        watcher.why = None
        exporter.refresh()
        assert "resolved: refresh failed by a defect: KeyError: 'x'; report it" in lines


def test_a_look_that_failed_says_of_nothing_that_it_is_well(opened):
    """It saw nothing: what was told before stands until a look goes well."""
    watcher, lines = Odd(opened.clock), []
    with exporter_of(opened, watcher, lines) as exporter:
        exporter._report_problems({"broker 2 is away"})
        watcher.stop, watcher.why = threading.Event(), Unreachable("nobody answers")
        exporter.run(watcher.stop)
        assert lines == ["broker 2 is away", "nobody answers"]
        watcher.why = None
        exporter.refresh()
        assert lines[2:] == ["resolved: nobody answers", "resolved: broker 2 is away"]


def test_ages_that_cannot_be_kept_are_one_problem_of_the_look(opened, tmp_path):
    """All else is told; the file that is locked or full is named once."""
    store = EndStore(tmp_path / "s.db")
    store._db.execute("PRAGMA busy_timeout=20")
    other = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    watcher, lines = Answered(opened.clock, ends=EndHistory("c", store)), []
    with exporter_of(opened, watcher, lines) as exporter:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            exporter.refresh()
            opened.clock.sleep(15.0)
            assert sample(exporter, "fleet_exporter_problems") == 1
        assert sample(exporter, "fleet_group_lag_records", group="g") == 5
        assert len([sentence for sentence in lines if "database is locked" in sentence]) == 1
        other.execute("COMMIT")
        exporter.refresh()
        assert sample(exporter, "fleet_exporter_problems") == 0
    other.close()


def test_nobody_waits_long_or_in_silence_for_brokers_that_are_away(opened):
    """`--once` was silent for a minute before it said so."""
    lines = []
    away = pytest.raises(Unreachable, match=r"nothing listens at 127\.0\.0\.1:1")
    with exporter_of(opened, Answered(opened.clock), lines) as exporter, away:
        exporter.wait_for_log(timeout=20.0, quiet=0.05)
    assert len(lines) == 1
    assert lines[0].startswith("waiting up to")
    assert "for the brokers at 127.0.0.1:1 and their offsets topic" in lines[0]
