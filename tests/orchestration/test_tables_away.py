"""A tick whose history does not answer: asked once, told in the tick's sentence, and gone on."""

from types import SimpleNamespace

from fleet.clock import ManualClock
from fleet.dagster.watch.cluster_tick import SensorMemory, look
from fleet.dagster.watch.watch_sensor import sentence_of
from fleet.errors import Unreachable
from fleet.manager.past import FEW
from tests.support.declared import declaration, fleet_spec
from tests.support.seen_groups import group_seen, partition_seen
from tests.support.snapshots import snapshot_of

NOW = 1_795_000_000.0
GROUPS = [f"orders-{number}" for number in range(FEW + 1)]
"""So many are asked of the log together, which says at once that nobody answers."""


class Opened(SimpleNamespace):
    """A fleet whose groups have waited for minutes; neither its tables nor its brokers answer."""

    asked = 0

    @property
    def history_path(self):
        """Whoever asks the store, asks where it is."""
        self.asked += 1
        return "nowhere://bucket/history"

    def snapshot(self):
        """Of all groups."""
        late = partition_seen(0, 100, committed=5_000, log_end=5_100, lag_seconds=300.0)
        return snapshot_of(*(group_seen(name, partitions=[late]) for name in GROUPS), at=NOW)

    def offsets_bounds(self):
        """No log either."""
        raise Unreachable("no broker of h:1 answers")


def test_a_tick_asks_a_store_that_is_away_once_and_tells():
    """Each asking takes seconds of the tick's twenty; the log tells what the tables would."""
    cycle = Opened(
        clock=ManualClock(at=NOW), spec=fleet_spec(*(declaration(name) for name in GROUPS)),
        rebalances=lambda group, window: 1, storm=lambda group, seen: None,
        change=lambda group: None,
    )  # fmt: skip
    seen = look(cycle, SensorMemory())
    assert cycle.asked == 1
    assert "the history's tables cannot be read: history.path nowhere://bucket" in seen.unread
    assert all(group.budget is not None for group in seen.groups), "counted by the log"
    said = sentence_of(21, 21, 0, seen.unread)
    assert said.startswith("21 groups seen, 21 told of, 0 runs ended. Read from the log instead: ")


def test_a_tick_whose_tables_answer_says_nothing_of_them():
    """Also where none are kept."""
    assert sentence_of(3, 1, 0, "") == "3 groups seen, 1 told of, 0 runs ended."
