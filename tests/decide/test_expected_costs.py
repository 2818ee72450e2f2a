"""What the coordinator's model expects of a plan: within the promise, near what was measured."""

import random
from dataclasses import replace

import pytest

from fleet.decide.expected_costs import (
    Flow,
    SimulatedGroup,
    StepCost,
    _rest,
    downtime_of,
    shown_downtime,
    simulate_change,
    with_expected_costs,
)
from fleet.decide.plans import make_plan
from fleet.decide.state_snapshot import StateSnapshot
from fleet.model import Plan, StepKind, TopicPartition
from fleet.slots import WorkerReport
from tests.decide.worlds import GROUP, NOW, group_of, member, spec, state_snapshot
from tests.support.sampling import LONG
from tests.support.seen_groups import partition_seen

COOPERATIVE: dict = {}
RANGE = {"assignor": "range"}
KIP848 = {"protocol": "consumer"}
DYNAMIC = {"membership": "dynamic"}
WORKERS = (COOPERATIVE, RANGE, KIP848, DYNAMIC, RANGE | DYNAMIC, KIP848 | DYNAMIC)
WORLDS = 100 if LONG else 40


def planned(seen: StateSnapshot, wanted: int, *, roll: bool = False) -> Plan:
    """A plan with its expected costs."""
    return with_expected_costs(seen, make_plan(seen, wanted=wanted, now=NOW, force_roll=roll))


def test_what_is_expected_lies_within_the_promise() -> None:
    """Over worlds from a seed: within the bounds; of one world always the same."""
    rng = random.Random(18)
    kinds = set()
    for number in range(WORLDS):
        fleet = spec(worker=rng.choice(WORKERS), rollout={"max_parallel": rng.randint(1, 4)})
        held, wanted = rng.randint(0, 9), rng.randint(0, 12)
        topics = {"orders": rng.randint(1, 24)}
        seen = state_snapshot(fleet, held=min(held, topics["orders"]), topics=topics)
        seen = replace(seen, initial_delay=rng.choice([None, 0.0]))
        plan = planned(seen, wanted, roll=rng.random() < 0.3)
        for step in plan.steps:
            expected_cost = step.expected_cost
            kinds.add(step.kind)
            assert expected_cost.rebalances_expected is not None, (fleet.worker, held, step)
            promised = range(expected_cost.rebalances_min, expected_cost.rebalances_max + 1)
            assert expected_cost.rebalances_expected in promised, (fleet.worker, held, topics, step)
            assert expected_cost.moved_expected >= (expected_cost.moved_min or 0)
            assert (
                expected_cost.moved_max is None
                or expected_cost.moved_expected <= expected_cost.moved_max
            )
            if expected_cost.downtime_s is not None:
                assert 0 <= expected_cost.downtime_s <= expected_cost.downtime_p95_s
                assert expected_cost.settled_s is not None
            assert expected_cost.backlog is None, "no rate is known here"
        if number % 10 == 0:
            again = make_plan(seen, wanted=wanted, now=NOW, force_roll=plan.steps != ())
            assert with_expected_costs(seen, again) == with_expected_costs(seen, again)
    assert kinds == {StepKind.OPEN, StepKind.LEAVE, StepKind.ROLL}


def test_those_who_come_after_the_first_pause_what_it_was_given() -> None:
    """Where brokers assign an empty group to the first member, and without their 3 s."""
    seen = replace(state_snapshot(spec(worker=RANGE)), initial_delay=0.0)
    first, others = planned(seen, 3).steps
    assert (first.expected_cost.rebalances_expected, others.expected_cost.rebalances_expected) == (
        1,
        1,
    )
    assert first.expected_cost.downtime_s is None
    assert first.expected_cost.settled_s < 1
    assert others.expected_cost.downtime_s is not None
    together = planned(state_snapshot(spec(worker=RANGE)), 3).steps[0].expected_cost
    assert together.settled_s > 3


@pytest.mark.parametrize(
    ("worker", "held", "wanted", "settled", "pause"),
    [
        pytest.param(RANGE, 2, 7, 0.21, 0.00, id="range-up"),
        pytest.param(RANGE, 7, 2, 0.17, 0.00, id="range-down"),
        pytest.param(COOPERATIVE, 2, 7, 0.80, 0.08, id="cooperative-up"),
        pytest.param(COOPERATIVE, 7, 2, 0.21, 0.02, id="cooperative-down"),
        pytest.param(KIP848, 2, 7, 1.16, 0.08, id="848-up"),
        pytest.param(KIP848, 7, 2, 0.09, 0.00, id="848-down"),
    ],
)
def test_it_is_near_what_was_measured(
    worker: dict, held: int, wanted: int, settled: float, pause: float
) -> None:
    """docs/how-to/simulate.md: medians of what receipts recorded of eight gates and leaves each,
    within a factor of 1.5 or 0.1 s; pauses, which are less than a rest, within half of one. A batch
    took 0.22 s, and 0.6 s went from one to the next.
    """
    seen = state_snapshot(spec(worker=worker), held=held, topics={"orders": 24})
    rhythm = replace(report(100, 2.2, 10), joined_at=NOW - 6.0)
    (step,) = planned(replace(seen, reports=(rhythm,)), wanted).steps
    assert min(settled / 1.5, settled - 0.1) <= step.expected_cost.settled_s
    assert step.expected_cost.settled_s <= max(settled * 1.5, settled + 0.1)
    assert abs(step.expected_cost.downtime_s - pause) <= 0.2


@pytest.mark.parametrize("worker", [RANGE, COOPERATIVE, KIP848])
def test_a_pause_is_what_lies_beyond_the_usual_gap(worker: dict) -> None:
    """A group that is behind rests between no batches; one that keeps up waits in any case."""
    usual = state_snapshot(spec(worker=worker), held=2, topics={"orders": 12})
    group = usual.group
    assert group is not None
    waiting = tuple(
        replace(partition_seen(n, 400), lag_seconds=each) for n, each in enumerate((0.3, 0.8))
    )
    cooldown = replace(usual, group=replace(group, partitions=waiting))
    late = replace(waiting[0], lag_seconds=60.0)
    behind = replace(usual, group=replace(group, partitions=(late, *waiting[1:])))
    rests = replace(usual, spec=spec(worker=worker | {"batch": {"max_wait": 5.0}}))
    slow = replace(report(100, 5.0, 20), joined_at=NOW - 18.0)  # 0.25 s, and 0.6 s of rest
    idle = replace(slow, joined_at=NOW - 86_400.0)
    worlds = (usual, cooldown, behind, rests, *(replace(usual, reports=(r,)) for r in (slow, idle)))
    costs = [planned(each, 4).steps[0].expected_cost for each in worlds]
    pauses = [expected_cost.downtime_p95_s for expected_cost in costs]
    assert pauses[0] == pauses[1]
    assert pauses[3] == costs[3].downtime_s == 0.0
    assert (_rest(worlds[4], 0.2), _rest(worlds[5], 0.2)) == (pytest.approx(0.6), 0.65)
    assert pauses[4] <= pauses[1]
    assert 0.05 <= pauses[2] - pauses[1] <= 0.2
    assert len({expected_cost.settled_s for expected_cost in costs}) == 1


def test_a_cooperative_targets_has_one_more_batch() -> None:
    """With what was read of the partitions that go; who leaves has drained before."""
    group = SimulatedGroup("cooperative-sticky", True, 12, 500, 180_000, 300_000, 100, rest=200)
    assert shown_downtime(group, "open", 530) == 230
    assert shown_downtime(group, "leave", 530) == 330
    assert shown_downtime(group._replace(protocol="consumer"), "open", 530) == 330
    assert shown_downtime(group, "open", 0) == shown_downtime(group, "leave", 200) == 0


def test_percentiles_are_of_those_that_pause() -> None:
    """0 where none does; nobody can say where nothing was played."""
    cost = StepCost(1, 2, (0.0, 0.1, 0.3, 0.9), 1.0, (0.0, 0.0, 0.1, 0.7))
    assert [downtime_of(cost, percent) for percent in (50, 95)] == [0.1, 0.7]
    assert downtime_of(cost._replace(pauses=(0.0, 0.0)), 95) == 0.0
    assert downtime_of(cost._replace(pauses=()), 50) is None


def test_a_roll_is_played_as_handovers() -> None:
    """Nothing moves, each partition pauses for its handover, and more slots take longer."""
    few, more = (
        planned(state_snapshot(held=n), n, roll=True).steps[0].expected_cost for n in (3, 12)
    )
    assert (few.rebalances_expected, few.moved_expected) == (0, 0)
    assert few.downtime_p95_s < 0.2
    assert more.settled_s > few.settled_s
    wide = spec(rollout={"max_parallel": 4})
    at_once = planned(state_snapshot(wide, held=12), 12, roll=True).steps[0].expected_cost
    assert at_once.settled_s < more.settled_s
    group = SimulatedGroup("range", True, 12, 500, 180_000, 300_000, 250)
    cost = simulate_change(group, "hand over", 6, 6, 2)
    assert all(cost.unowned), "each of them is handed over"


def test_members_from_nothing_pause_nothing() -> None:
    """Nobody owned anything before; the broker's initial delay is time until it is settled."""
    (step,) = planned(state_snapshot(held=0), 3).steps
    assert (step.expected_cost.rebalances_expected, step.expected_cost.downtime_s) == (1, None)
    assert 3 < step.expected_cost.settled_s < 8


def test_a_standstill_pauses_until_the_next_members_own_it() -> None:
    """Another assignor: all stop, which settles nothing; then the partitions wait for the open."""
    seen = state_snapshot(spec(worker=RANGE), held=3, runs=(spec(), "code"))
    stop, opened = planned(seen, 3).steps
    assert (stop.kind, stop.expected_cost.settled_s, stop.expected_cost.downtime_s) == (
        StepKind.STOP_ALL,
        None,
        None,
    )
    assert opened.expected_cost.downtime_s > 3


def test_what_the_model_does_not_know_has_no_figures() -> None:
    """Members that are not ours; a roll that changes the subscription of each under KIP-848."""
    seen = state_snapshot(held=2)
    theirs = group_of((*seen.group.members, member("theirs-1")))
    (step,) = planned(replace(seen, group=theirs), 4).steps
    assert (step.expected_cost.rebalances_expected, step.expected_cost.settled_s) == (None, None)

    other = {"worker": KIP848, "topics": ["orders", "returns"]}
    topics = {"orders": 8, "returns": 8}
    seen = state_snapshot(spec(**other), held=2, runs=(spec(worker=KIP848), "code"), topics=topics)
    (step,) = planned(seen, 2).steps
    assert (step.kind, step.expected_cost.rebalances_expected) == (StepKind.ROLL, None)


def test_today_s_owners_say_at_least_what_moves() -> None:
    """The model's group is balanced, this one is not: what balance demands of it is the least."""
    partitions = [TopicPartition("orders", n) for n in range(12)]
    members = (member("orders-0", frozenset(partitions)), member("orders-1"))
    (step,) = planned(replace(state_snapshot(held=2), group=group_of(members)), 3).steps
    assert step.expected_cost.moved_min == 8
    assert step.expected_cost.moved_expected == 8


def report(records: int, busy: float, batches: int) -> WorkerReport:
    """What a worker says of its batches."""
    return WorkerReport(
        worker="w0", group=GROUP, revision="r", phase="active", slot=0, counter=1, http_port=None,
        batches=batches, records=records, busy_seconds=busy,
    )  # fmt: skip


def flowing(*lags: tuple[int | None, float | None]) -> StateSnapshot:
    """A world with these (lag, age) and a worker of 100 records/s."""
    seen = state_snapshot(held=2)
    assert seen.group is not None
    parts = tuple(
        replace(partition_seen(n, lag), lag_seconds=age) for n, (lag, age) in enumerate(lags)
    )
    group = replace(seen.group, partitions=parts)
    return replace(seen, group=group, reports=(report(1000, 10.0, 20),))


def test_the_backlog_is_a_flow_by_measured_rates() -> None:
    """100 waiting, 50/s come, 2 x 100/s are read; 1 s until settled, half of it paused."""
    flow = Flow.measured(flowing((60, 2.0), (40, 2.0)))
    assert flow == Flow(waiting=100.0, comes=50.0, reads=100.0)
    cost = StepCost(rebalances=1, moved=2, unowned=(0.0, 0.5), settled=1.0)
    unpaused, paused = 0.0, 100 - 150 * 0.5 + 50 * 0.5
    assert flow.after(100.0, cost, members=2) == (unpaused + paused) / 2
    assert flow.after(100.0, cost, members=0) == 150.0


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(flowing((60, 2.0), (None, None)), id="a-lag"),
        pytest.param(flowing((60, None), (40, 2.0)), id="an-age"),
        pytest.param(flowing((0, 0.0), (0, 0.0)), id="nothing-waits"),
        pytest.param(replace(flowing((60, 2.0)), reports=()), id="no-capacity"),
    ],
)
def test_an_unknown_rate_is_no_backlog(seen: StateSnapshot) -> None:
    """Null, never 0."""
    assert Flow.measured(seen) is None
    assert planned(seen, 4).steps[0].expected_cost.backlog is None


def test_each_step_begins_with_what_the_one_before_left() -> None:
    """While members are fewer than records need, more wait after each step; then fewer."""
    seen = flowing((5_000, 10.0), (5_000, 10.0))
    roll, more = planned(seen, 4, roll=True).steps
    assert 10_000 < roll.expected_cost.backlog < more.expected_cost.backlog


def test_a_batch_in_hand_is_the_group_s_own() -> None:
    """A member that hears of a rebalance ends its batch first, however long this group's take."""
    slow = replace(state_snapshot(spec(worker=RANGE), held=4), reports=(report(100, 60.0, 20),))
    usual = state_snapshot(spec(worker=RANGE), held=4)
    settled = [planned(each, 6).steps[0].expected_cost.settled_s or 0 for each in (usual, slow)]
    assert settled[1] > settled[0] + 1


def test_a_large_group_is_played_by_a_smaller_one() -> None:
    """Counts of partitions are of the whole group, and the figures come at once."""
    group = SimulatedGroup("cooperative-sticky", True, 10_000, 500, 180_000, 300_000, 250)
    cost = simulate_change(group, "open", 900, 100)
    assert cost.rebalances == 2
    assert 900 <= cost.moved <= 1100
    small = simulate_change(group._replace(partitions=320), "open", 29, 3)
    assert cost.settled == small.settled
    longer, shorter = (simulate_change(group, "hand over", 1000, n) for n in (1000, 500))
    assert longer.settled == pytest.approx(shorter.settled * 2, 0.1)
