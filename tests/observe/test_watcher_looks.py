"""What a watcher remembers between looks, from the tail, the coordinators, or a part of them."""

from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.decide.lag_status import LagStatus
from fleet.lag.end_history import EndHistory
from fleet.lag.snapshot import Logs
from fleet.log.readers.log_view import LogView, all_groups
from fleet.log.readers.positions import key_to
from fleet.manager.lag_assessment import worst_lag_status
from fleet.model import GroupState, TopicPartition
from fleet.observe.poll_answers import DescribedGroup, ListedGroup
from fleet.observe.topic_questions import Topics
from fleet.observe.watcher import GroupWatcher

LATE, FRESH = "b-late", "a-fresh"
TPS = {LATE: TopicPartition("u", 0), FRESH: TopicPartition("t", 0)}


class Played(GroupWatcher):
    """One whose brokers are these columns; where no tail is current the coordinators answer."""

    def __init__(self, clock: ManualClock, *, tail: bool) -> None:
        view = LogView(cluster="c", clock=clock, groups=all_groups, keep=60.0, most=9)
        config = {"bootstrap.servers": "localhost:1"}
        reader: Any = view if tail else None
        super().__init__(cluster="c", config=config, clock=clock, tail=reader, ends=EndHistory())
        self.view = view
        self.by_log = tail
        self.end = 0
        self.offsets: dict[str, int] = {}
        self.silent: set[str] = set()
        self.gone: set[str] = set()
        self._about_groups = self  # type: ignore[assignment]

    def describe_with_offsets(self, groups: Any, _: Any) -> Any:
        """As GroupQuestions.describe_with_offsets."""
        described = {g: DescribedGroup(type="classic", state=GroupState.STABLE) for g in groups}
        offsets = {g: {TPS[g]: self.offsets[g]} for g in groups if g not in self.silent}
        return described, offsets

    def committed(self, **offsets: int) -> None:
        """By both groups, now."""
        for group, offset in {LATE: offsets["late"], FRESH: offsets["fresh"]}.items():
            ms = int(self._clock.now() * 1000)
            self.offsets[group] = offset
            self.view._positions.put(key_to(group, TPS[group]), group, TPS[group], offset, ms)

    def _current(self) -> bool:
        return self.by_log

    def _name_topics(self, topics: Topics) -> None:
        assert topics

    def _topics(self, look: Any) -> Topics:
        assert look
        return Topics(partitions={"t": 1, "u": 1}, leaders={}, names={})

    def _list_groups(self, look: Any) -> dict[str, ListedGroup]:
        assert look
        listed = ListedGroup(type="classic", state=GroupState.STABLE)
        return {group: listed for group in TPS if group not in self.gone}

    def _logs(self, tps: Any, topics: Topics, look: Any) -> Logs:
        assert look
        made = Logs(
            starts=dict.fromkeys(tps, 0), ends=dict.fromkeys(tps, self.end),
            partitions=topics.partitions, at=self._clock.now(), before=self._ends,
        )  # fmt: skip
        self._ends.add(made.at, made.ends)
        return made


def looks(watcher: Played, clock: ManualClock, *, steps: int, late: int) -> set[LagStatus]:
    """Ten records every ten seconds, of which one group commits `late` steps behind."""
    found = set()
    for _ in range(steps):
        watcher.end += 10
        watcher.committed(late=watcher.end - 10 * late, fresh=watcher.end - 10)
        found.add(worst_lag_status(watcher.refresh())[LATE])
        clock.sleep(10.0)
    return found


def test_a_steady_delay_is_no_growth_from_the_first_look_on():
    """Of an age that is older than all looks only a bound is known, which grows with the clock."""
    clock = ManualClock(1_000_000.0)
    watcher = Played(clock, tail=True)
    watcher.end = 10_000
    assert LagStatus.WARN not in looks(watcher, clock, steps=200, late=180)


def test_what_the_tail_tells_is_not_held_against_what_the_coordinators_do():
    """Both number their rows from 0: at each change between them growth is asked anew."""
    clock = ManualClock(1_000_000.0)
    watcher = Played(clock, tail=True)
    watcher.end = 10_000
    assert looks(watcher, clock, steps=150, late=100) <= {LagStatus.OK, LagStatus.UNSCORED}
    for by_log in (False, True, False, True):
        watcher.by_log = by_log
        assert looks(watcher, clock, steps=40, late=100) == {LagStatus.OK}


@pytest.mark.parametrize("every", [0, 6])
def test_an_answer_that_is_lost_takes_nothing_away(every):
    """A group that stands still is told, though its coordinator is silent once a minute."""
    clock = ManualClock(1_000_000.0)
    watcher = Played(clock, tail=False)
    watcher.end = 10_000
    found = []
    for step in range(200):
        watcher.end += 10
        watcher.committed(late=500, fresh=watcher.end)
        watcher.silent = {LATE} if every and step % every == every - 1 else set()
        found.append(worst_lag_status(watcher.refresh())[LATE])
        clock.sleep(10.0)
    assert set(found[-60:]) == {LagStatus.STOP}


def test_what_nobody_tells_for_long_is_not_known():
    """And what is deleted is gone at once."""
    clock = ManualClock(1_000_000.0)
    watcher = Played(clock, tail=False)
    watcher.end = 1_000
    watcher.committed(late=500, fresh=1_000)
    case = []
    watcher.refresh()
    watcher.silent = {LATE}
    for _ in range(8):
        clock.sleep(10.0)
        (part,) = watcher.refresh().groups[LATE].partitions
        case.append(part.case.value)
    assert case == ["ok"] * 3 + ["unknown"] * 5
    watcher.gone = {LATE}
    assert set(watcher.refresh().groups) == {FRESH}
    watcher.gone, watcher.silent = set(), {LATE}
    assert not watcher.refresh().groups[LATE].partitions
