"""How busy workers are, and how many are too many."""

import pytest

from fleet.commands.ui import BusyTimes, load_of
from fleet.decide.lag_status import GroupLagStatus, LagStatus
from fleet.model import GroupState, TopicPartition
from fleet.slots import WorkerReport
from tests.support.seen_groups import group_seen, member_seen


def report(worker: str, counter: int, busy: float) -> WorkerReport:
    return WorkerReport(
        worker=worker, group="orders", revision="r", phase="active", slot=0, counter=counter,
        http_port=None, busy_seconds=busy,
    )  # fmt: skip


def watched(*ratios: float, seconds: int = 60) -> BusyTimes:
    """Workers w0, w1, …, busy at these ratios for so long, with a report every 5 s."""
    times = BusyTimes()
    for at in range(0, seconds + 1, 5):
        times.add([report(f"w{n}", at, at * r) for n, r in enumerate(ratios)], at=1000.0 + at)
    return times


def owners(many: int) -> dict[int, str]:
    return {n: f"w{n}" for n in range(many)}


SETTLED = group_seen(members=[member_seen("m", [TopicPartition("orders", 0)])])


def test_a_ratio_is_how_the_report_grew():
    """Over the window, and not before there is enough of it."""
    assert watched(0.25).ratio("w0") == pytest.approx(0.25)
    assert watched(0.25, seconds=5).ratio("w0") is None
    assert watched(0.25).ratio("nobody") is None


def test_a_ratio_is_of_the_last_minute():
    """What was an hour ago is not held against a worker."""
    times = watched(1.0)
    for at in range(65, 200, 5):
        times.add([report("w0", at, 60.0)], at=1000.0 + at)
    assert times.ratio("w0") == 0.0


def test_a_worker_that_began_again_is_not_counted_backwards():
    """Its report begins at 0."""
    times = watched(0.5)
    times.add([report("w0", 1, 0.0)], at=1065.0)
    assert times.ratio("w0") is None


def test_too_many_are_those_that_the_rest_could_do_without():
    """Four at a tenth: one would do, with room for a peak."""
    found = load_of(SETTLED, owners=owners(4), times=watched(*[0.1] * 4), lag_status=None)
    assert found.too_many == 3
    assert found.busy == pytest.approx(0.1)
    assert found.sentence == "busy for 10 % of the last 60 s: 1 worker would be enough"
    full = load_of(SETTLED, owners=owners(4), times=watched(*[0.7] * 4), lag_status=None)
    assert full.too_many == 0


def test_nobody_is_too_many_in_a_group_that_does_not_keep_up():
    """What waits elsewhere than in batches is no spare time."""
    late = GroupLagStatus(group="orders", status=LagStatus.STOP, sentence="late")
    found = load_of(SETTLED, owners=owners(4), times=watched(*[0.1] * 4), lag_status=late)
    assert found.too_many == 0


def test_what_is_not_known_is_none():
    """Of somebody else's group, of a worker that has not reported, while it is unsettled."""
    assert load_of(None, owners={}, times=BusyTimes(), lag_status=None).too_many is None
    partly = load_of(SETTLED, owners=owners(2), times=watched(0.1), lag_status=None)
    assert (partly.busy, partly.slots) == (None, {0: pytest.approx(0.1)})
    moving = group_seen(members=[member_seen("m")], state=GroupState.PREPARING)
    assert load_of(moving, owners={}, times=BusyTimes(), lag_status=None).without_partitions is None


def test_a_member_without_a_partition_is_too_many():
    """Of any group; but where nobody owns anything, assignments are only not told."""
    seen = group_seen(members=[*SETTLED.members, member_seen("idle")])
    found = load_of(seen, owners={}, times=BusyTimes(), lag_status=None)
    assert (found.too_many, found.sentence) == (1, "1 member without a partition")
    untold = group_seen(members=[member_seen("a"), member_seen("b")])
    assert load_of(untold, owners={}, times=BusyTimes(), lag_status=None).too_many is None
