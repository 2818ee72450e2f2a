"""How often a worker writes its report: whoever is watched by it, and whoever has news, at once.

The slot's renewal tells that a holder lives; a report of it is stored for what it counts.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.clock import ManualClock
from fleet.errors import Unreachable
from fleet.slots import Phase, WorkerReport
from fleet.slots.sqlite import SqliteStore
from fleet.worker.member.member_state import MemberState
from fleet.worker.slot.reporting import Reporter
from tests.support.batch_parts import worker_context
from tests.support.declared import settings_of


class Holder:
    """A worker that serves slot 3, and renews it every third of the lease."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        settings = settings_of()
        self.third = settings.group.runtime.lease / 3
        self.reporter = Reporter(worker_context(settings, clock=self.clock))
        self.store = SqliteStore(folder / "fleet.db", cluster="main", clock=self.clock)
        self.state = MemberState(phase=Phase.ACTIVE, batches=500, joined_at=1.0, reading="inline")
        self.reporter.start(self.store)
        self.reporter.member(3, self.state)

    def report(self) -> WorkerReport:
        """As stored."""
        (told,) = self.store.reports(settings_of().group.group)
        return told

    def renews(self, times: int = 1) -> int:
        """A batch is committed and the slot renewed, so often; how many reports that made."""
        before = self.report().counter
        for _ in range(times):
            self.clock.sleep(self.third)
            self.state.batches += 1
            self.state.last_commit_at = self.clock.now()
            self.reporter.renewed()
        return self.report().counter - before


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    made = Holder(tmp_path)
    yield made
    made.reporter.close()
    made.store.close()


def test_a_holder_that_is_well_writes_once_a_lease(holder: Holder):
    """With all that it has counted until then."""
    assert holder.renews(30) == 10
    assert holder.report().batches == 530


@pytest.mark.parametrize(
    ("what", "value"),
    [("phase", Phase.DRAINING), ("joined_at", 7.0), ("reading", "ranges"), ("unclean", True)],
)
def test_news_is_written_with_the_renewal(holder: Holder, what: str, value: object):
    """A manager waits for it."""
    setattr(holder.state, what, value)
    assert holder.renews() == 1
    assert holder.renews() == 0


def test_a_first_batch_in_hand_is_news_and_a_later_one_is_not(holder: Holder):
    """A canary's is waited for; of all others nobody wants to know, a hundred times a minute."""
    holder.state.in_hand = True
    assert holder.renews() == 0
    holder.state.in_hand, holder.state.batches = False, 3
    holder.reporter.write()
    for in_hand in (True, False):
        holder.state.in_hand = in_hand
        before = holder.report().counter
        holder.reporter.renewed()
        holder.reporter.renewed()
        assert (holder.report().in_hand, holder.report().counter) == (in_hand, before + 1)


def test_who_tells_an_error_is_seen_to_live(holder: Holder):
    """Standbys doubt their revision only by the living, and one lease of silence is a death."""
    holder.state.error = "no such table"
    assert holder.renews(6) == 6


def test_first_batches_are_told_one_by_one(holder: Holder):
    """A canary is looked at by people."""
    holder.state.batches = 0
    assert holder.renews(9) == 9


def test_a_report_that_could_not_be_written_is_tried_with_the_next_renewal(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
):
    """Its news must not wait for a whole lease."""
    holder.state.reading = "ranges"
    with monkeypatch.context() as patch:
        patch.setattr(holder.store, "report", _silent)
        assert holder.renews() == 0
    holder.renews()
    assert holder.report().reading == "ranges"


def _silent(report: WorkerReport) -> None:
    raise Unreachable(f"no store for {report.worker}")


def test_a_standby_writes_every_third(holder: Holder):
    """Nothing else tells that it lives."""
    holder.reporter.left()
    holder.reporter.standby()
    before = holder.report().counter
    for _ in range(6):
        holder.clock.sleep(holder.third)
        holder.reporter.beat()
    assert holder.report().counter - before == 6
