"""Storms of a group's whole past: as when one assesses every moment, at a cost that is bounded."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.commands.groups.rebalances import storm_spans, storms_since
from fleet.config.spec import FleetSpec, StormSpec
from fleet.decide.storms import Storm, assess, budget_of, expected_rebalances_of
from fleet.model import ExpectedCost, StepKind
from fleet.report.timeline import Span
from fleet.slots import ChangeState
from tests.asking.worlds import START, partitions, rebalance
from tests.support.plans import change_of, plan_of, receipt_of, step_of

SLOTS = (0, 1, 2)


def moment_by_moment(spec, rebalances, *, until, changes=()):
    """The same by `assess` at every moment, each time with all rebalances until then."""
    if not rebalances:
        return ()
    budget = budget_of(spec, "orders")
    ends = sorted(r.ended_at for r in rebalances)
    quiet = [at + budget.window + budget.cooldown + 0.001 for at in ends]
    spans: list[Span] = []
    storm: Storm | None = None
    for at in [*sorted(at for at in {*ends, *quiet} if at <= until), until]:
        before = storm
        storm = assess(
            [r for r in rebalances if r.ended_at <= at],
            cluster="main",
            group="orders",
            budget=budget,
            now=at,
            before=before,
            excuses=expected_rebalances_of(spec, "orders", changes),
        )
        if before is not None and (storm is None or storm.since != before.since):
            spans.append(Span(before.since, before.cooldown_since or before.seen_at))
    if storm is not None:
        spans.append(Span(storm.since, storm.cooldown_since or until))
    return tuple(spans)


@st.composite
def histories(draw):
    """Rebalances in bursts and pauses and in a beat, in any order, some told twice."""
    steps = st.sampled_from([0, 1, 3, 3, 7, 7.5, 10, 20, 30, 60.001, 90, 300, 2_000, 20_000])
    made, at = [], 0.0
    beat = [draw(steps)] * draw(st.integers(0, 30))
    for number, step in enumerate(draw(st.lists(steps, min_size=1, max_size=30)) + beat):
        at += step
        who = draw(st.sampled_from([(), ("orders-0",), ("orders-7",)]))
        moved = partitions(draw(st.integers(0, 3)))
        made.append(rebalance(number + 1, at, joined=who, moved=moved, log_offset=number))
    made += made[:: draw(st.integers(5, 50))]
    return draw(st.permutations(made)) if draw(st.booleans()) else made, START + at


@st.composite
def specs(draw):
    """Budgets from one rebalance on, with and without calm and churn."""
    return FleetSpec(
        storm=StormSpec(
            rebalances=draw(st.integers(1, 6)),
            window=draw(st.sampled_from([10.0, 30.0, 60.0])),
            cooldown=draw(st.sampled_from([0.0, 7.0, 30.0, 120.0])),
            moved=draw(st.none() | st.integers(1, 9)),
        )
    )


@st.composite
def announced(draw):
    """Changes of ours, done or in hand, each with its expected cost."""
    made = []
    for _ in range(draw(st.integers(0, 3))):
        most = draw(st.integers(1, 4))
        expected_cost = ExpectedCost(rebalances_min=0, rebalances_max=most)
        plan = plan_of(step_of(StepKind.OPEN, SLOTS, expected_cost=expected_cost))
        began = START + draw(st.integers(0, 3_000))
        if draw(st.booleans()):
            made.append(change_of(plan, ChangeState.RUNNING, started_at=began))
            continue
        first = draw(st.integers(0, 40))
        took = float(draw(st.sampled_from([5, 60, 900])))
        numbers: Any = {"from_generation": first, "to_generation": first + 10}
        if draw(st.booleans()):
            numbers = {"from_generation": None, "to_generation": None}
        receipt = receipt_of(plan, rebalances=most, started_at=began, seconds=took, **numbers)
        made.append(change_of(plan, ChangeState.DONE, receipt))
    return tuple(made)


@given(specs(), histories(), announced(), st.floats(-50, 400))
def test_they_are_what_assessing_every_moment_tells(spec, history, changes, later):
    """By any budget, with and without changes of ours, up to any time."""
    rebalances, last = history
    known = {"until": last + later, "changes": changes}
    assert storm_spans(spec, rebalances, **known) == moment_by_moment(spec, rebalances, **known)


@given(specs(), histories(), announced(), st.floats(0, 1), st.floats(0, 400))
def test_a_part_of_the_past_tells_its_storms(spec, history, changes, share, later):
    """Storms from a time on are those of the whole past; what was read is the end of it."""
    rebalances, last = history
    since, until = START + (last - START) * share, last + later
    rows, spans = storms_since(
        spec,
        lambda first: [r for r in rebalances if first is None or r.ended_at >= first],
        group="orders",
        since=since,
        until=until,
        changes=changes,
    )
    whole = storm_spans(spec, rebalances, until=until, changes=changes)
    assert spans == tuple(Span(max(s.start, since), s.end) for s in whole if s.end >= since)
    assert [r for r in rebalances if r.ended_at >= since] == [
        r for r in rows if r.ended_at >= since
    ]


def test_a_storm_that_neither_grows_nor_calms_is_followed_to_its_beginning():
    """Between half and all of the budget the last minutes do not tell whether it is one."""
    spec = FleetSpec(storm=StormSpec(rebalances=4, window=60.0, cooldown=30.0))
    quiet = [rebalance(n, n * 1000.0) for n in range(100)]
    burst = [rebalance(200 + n, 100_000 + n) for n in range(5)]
    goes_on = [rebalance(300 + n, 100_020 + n * 20.0) for n in range(100)]
    whole, asked = [*quiet, *burst, *goes_on], []

    def read(first):
        asked.append(first)
        return [r for r in whole if first is None or r.ended_at >= first]

    since, until = START + 101_500, START + 102_000
    rows, spans = storms_since(spec, read, group="orders", since=since, until=until)
    assert spans == (Span(since, until),)
    assert len(asked) > 1
    assert len(rows) < len(whole), "not to the beginning of the past"


def test_only_what_tells_them_is_read():
    """Of a month of quiet before, and of a month of storm, two windows and the calm."""
    spec = FleetSpec(storm=StormSpec(rebalances=5, window=600.0, cooldown=120.0))
    for every in (20.0, 5_000.0):
        whole = [rebalance(n, n * every) for n in range(2_000)]
        whole.append(rebalance(2_000, 2_000 * every - 1))
        asked = []

        def read(first, whole=whole, asked=asked):
            asked.append(first)
            return [r for r in whole if r.ended_at >= first]

        until = START + 2_000 * every
        _, spans = storms_since(spec, read, group="orders", since=until - 60, until=until)
        assert asked == [until - 60 - 1_320]
        assert spans == ((Span(until - 60, until),) if every == 20 else ())
