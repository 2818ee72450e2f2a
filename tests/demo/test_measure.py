"""Every rebalance and every slip belongs to a step."""

from dataclasses import dataclass, field

from fleet.clock import ManualClock
from fleet.demo.coverage import JournalEntry, TopicRecords, runs
from fleet.demo.measure import Meter
from fleet.demo.view import results
from fleet.log.records import Record
from fleet.model import TopicPartition

TP = TopicPartition("orders", 0)


@dataclass
class Log:
    """The coordinator's log as positions only: what is read is remembered."""

    end: int = 100
    asked: list[tuple[str, int, int]] = field(default_factory=list)

    def position(self, group: str) -> int:
        del group
        return self.end

    def read(self, group: str, since: int) -> tuple[Record, ...]:
        """Nothing, from there to the end."""
        self.asked.append((group, since, self.end))
        return ()

    def last_state(self, group: str, before: int) -> tuple[Record, ...]:
        del group, before
        return ()


def entry(first: int, end: int, at: float) -> JournalEntry:
    return JournalEntry(
        group="g", tp=TP, first=first, last=end - 1, rows=runs(range(first, end)), worker="w",
        attempt=1, revision="r", at=at,
    )  # fmt: skip


def test_a_step_is_read_until_the_next_of_its_group_begins():
    """Nothing falls between two steps, and another group's step closes nothing."""
    log, clock = Log(), ManualClock(at=1000.0)
    meter = Meter(log=log, clock=clock)
    for name, group, end in (("up", "g", 100), ("down", "g", 150), ("baseline", "h", 170)):
        log.end = end
        meter.end(meter.begin_step(name, group), expected=1)
    log.end = 200
    meter.close_all()
    assert log.asked == [("g", 100, 150), ("g", 150, 200), ("h", 170, 200)]


def test_slips_are_charged_to_the_step_they_showed_in():
    """Also those before the first step and after the last."""
    log, clock = Log(), ManualClock(at=1000.0)
    meter = Meter(log=log, clock=clock)
    for name in ("up", "down"):
        step = meter.begin_step(name, "g")
        clock.sleep(10)
        meter.end(step, expected=0)
        clock.sleep(5)
    meter.close_all()
    journal = [
        entry(0, 10, 900.0),
        entry(12, 20, 1005.0),  # 10 and 11 are lost: up
        entry(15, 20, 1012.0),  # again, after up and before down: up
        entry(20, 30, 1020.0),
        entry(20, 24, 1100.0),  # again, after the last step: down
    ]
    held = TopicRecords.of({TP: [(n, n) for n in range(40)]})
    up, down = results(meter.steps, journal, {"g": {TP: (0, 33)}}, held)
    assert (up.name, up.lost, up.duplicates, up.records, up.seconds) == ("up", 2, 5, 8, 10)
    assert (down.name, down.lost, down.duplicates, down.records) == ("down", 3, 4, 10)
