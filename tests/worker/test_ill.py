"""What a member does where its entrypoint fails for all it is given: it waits, and says so [43]."""

from collections.abc import Iterator
from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.errors import FleetError
from fleet.model import TopicPartition
from fleet.worker.member.member_state import BackingOff
from fleet.worker.offsets.assigning import Start
from fleet.worker.offsets.commit_metadata import PlannedRange
from tests.worker.flow import Broker, Process


class Sink:
    """Fails while it is down, and for bad records."""

    def __init__(self, *bad: tuple[int, int]) -> None:
        self.down = False
        self.bad = set(bad)
        self.rows: list[tuple[int, int]] = []

    def __call__(self, rows: list[tuple[int, int]]) -> None:
        """Write them, or fail."""
        if self.down or self.bad & set(rows):
            raise OSError("the sink is down" if self.down else "poison")
        self.rows += rows


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def broker() -> Broker:
    return Broker(ends={0: 3})


@pytest.fixture
def worker(broker: Broker, sink: Sink) -> Iterator[Process]:
    made = Process(broker, sink)
    yield made
    made.end()


def test_a_sink_that_is_down_stops_no_partition(worker: Process, broker: Broker, sink: Sink):
    """Nothing in hand while it waits; once the sink is back every record is written once."""
    sink.down = True
    worker.run()
    assert not worker.marks
    assert not worker.flow.busy, "a drain has nothing to wait for"
    assert "so for 0 s, tried again in 1 s, at most for 600 s" in str(worker.state.error)
    assert worker.state.failing_since is not None
    calls = len(worker.begun)
    worker.run()
    assert len(worker.begun) == calls, "not before its time"
    sink.down = False
    worker.clock.sleep(1.0)
    worker.run()
    assert sink.rows == [(0, 0), (0, 1), (0, 2)]
    assert broker.committed[0][0] == 3
    assert (worker.state.error, worker.state.failing_since) == (None, None)
    assert not worker.state.failed


def test_a_later_record_is_the_witness(worker: Process, broker: Broker, sink: Sink):
    """A bad record that comes alone stops its partition once another one has gone well."""
    broker.ends[0] = 1
    sink.bad = {(0, 0)}
    worker.run()
    assert not worker.marks
    broker.ends[0] = 3
    worker.clock.sleep(1.0)
    worker.run()
    assert worker.condemned == {0: (0, "OSError: poison")}


def test_another_partition_is_the_witness():
    """It goes on meanwhile, and is committed; the bad record's is stopped."""
    broker, sink = Broker(ends={0: 1, 1: 0}), Sink((0, 0))
    worker = Process(broker, sink)
    worker.run()
    broker.ends[1] = 2
    worker.clock.sleep(1.0)
    worker.run()
    worker.end()
    assert worker.condemned == {0: (0, "OSError: poison")}
    assert broker.committed[1][0] == 2
    assert broker.committed[0][0] == 0


def test_what_went_well_before_the_bad_record_is_committed(
    worker: Process, broker: Broker, sink: Sink
):
    """So that nothing of it is written again when the quarantine is lifted."""
    broker.ends[0] = 20
    sink.bad = {(0, 13)}
    worker.run()
    assert worker.condemned == {0: (13, "OSError: poison")}
    assert broker.committed[0][0] == 13
    assert sink.rows == [(0, at) for at in range(13)]
    assert worker.state.records == 13


@pytest.mark.parametrize(
    ("given", "begun"),
    [
        pytest.param({"position": 3}, [], id="its choice is committed, though nothing comes"),
        pytest.param(
            {"position": 1, "committed": 1, "planned": PlannedRange(start=1, end=2)},
            [{0: (1, 2)}, {0: (2, 3)}],
            id="the plan of its owner between is repeated exactly",
        ),
    ],
)
def test_a_partition_that_came_back_meanwhile_begins_as_it_was_given(
    worker: Process,
    broker: Broker,
    sink: Sink,
    given: dict[str, Any],
    begun: list[dict[int, tuple[int, int]]],
):
    """The batch that fails was begun under its former token: it says nothing of it [42, 4]."""
    tp = TopicPartition("t", 0)

    def come_back() -> bool:
        worker.flow.lose([tp])
        worker.flow.start_partition(Start(tp=tp, topic_id="T", **given), reads=True)
        return False

    sink.down = True
    assert worker.turn(dead=come_back)
    worker.begun.clear()
    sink.down = False
    worker.clock.sleep(1.0)
    worker.run()
    assert worker.begun == begun
    assert broker.committed[0][0] == 3


def test_patience_has_an_end(worker: Process, sink: Sink):
    """It names the error, the time and the setting; nothing is stopped."""
    sink.down = True
    began = worker.clock.monotonic()

    def wait() -> None:
        while True:
            worker.run()
            worker.clock.sleep(1.0)

    told = r"is down .*; so for 1\d min \(worker.entrypoint_patience"
    with pytest.raises(FleetError, match=told):
        wait()
    assert 600 <= worker.clock.monotonic() - began < 640
    assert not worker.marks


def test_a_revision_on_trial_ends_at_once(broker: Broker, sink: Sink):
    """Another one may have its slot then [22]."""
    sink.down = True
    worker = Process(broker, sink, may_wait=False)
    with pytest.raises(FleetError, match="the entrypoint fails for every partition of its batch"):
        worker.run()
    worker.end()
    assert not worker.marks


def test_the_pauses_grow_and_begin_anew():
    """1, 2, 4 … 30 s; a batch that goes well ends it."""
    clock = ManualClock()
    backing_off = BackingOff(patience=600.0, may_wait=lambda: True, clock=clock)
    pauses = []
    for _ in range(7):
        backing_off.failed("E")
        began = clock.monotonic()
        while backing_off.holds:
            clock.sleep(0.5)
        pauses.append(clock.monotonic() - began)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    backing_off.worked()
    assert not backing_off.holds
    assert "in 1 s" in backing_off.failed("E")
