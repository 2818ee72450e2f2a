"""A storm begins above the budget, ends below half of it, and is named."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from fleet.config.spec import FleetSpec
from fleet.config.spec import StormSpec as Budget
from fleet.decide.plans import make_plan
from fleet.decide.storms import (
    ClusterStorm,
    Storm,
    StormWatch,
    assess,
    assess_cluster,
    count_against_budget,
    expected_rebalances,
    reach,
    watch_reach,
)
from fleet.model import ExpectedCost, ReceiptResult, TopicPartition
from fleet.model.rebalances import Cause, CoordinatorMove, Rebalance
from fleet.slots import Change, ChangeState
from fleet.slots.codec import as_json, from_json, from_json_or_none
from tests.decide.worlds import GROUP, state_snapshot
from tests.support.plans import change_of, receipt_of
from tests.support.rebalances import rebalance as plain

BUDGET = Budget(rebalances=5, window=600, cooldown=120)
UUID = "0b6c2f0e-8f0c-4b3e-9d2c-1a2b3c4d5e6f"


def rebalance(at: float, number: int = 0, **changes: Any) -> Rebalance:
    """One rebalance that ended at a time; its place in the log is its time."""
    return plain(number, at, **{"group": GROUP, "log_offset": int(at * 1000), **changes})


def came(at: float, name: str, **changes: Any) -> Rebalance:
    return rebalance(at, cause=Cause.JOIN, joined=(name,), **changes)


def went(at: float, name: str, **changes: Any) -> Rebalance:
    return rebalance(at, cause=Cause.REMOVAL, left=(name,), **changes)


def flapping(name: str = "orders-3", *, start: float = 0.0, times: int = 6, every: float = 40.0):
    """A member that joins and leaves."""
    each = [
        (came(start + n * every, name), went(start + n * every + every / 2, name))
        for n in range(times)
    ]
    return [one for pair in each for one in pair]


def look(rebalances: Any, now: float, **kwargs: Any) -> Storm | None:
    budget = kwargs.pop("budget", BUDGET)
    return assess(rebalances, cluster="main", group=GROUP, budget=budget, now=now, **kwargs)


def test_it_begins_with_the_rebalance_above_the_budget() -> None:
    """Five are within the budget; the sixth is a storm at once."""
    seen = flapping()
    assert look(seen[:5], 1000) is None
    storm = look(seen[:6], seen[5].ended_at)
    assert storm.since == seen[5].ended_at
    assert storm.sentence == (
        "storm for 0 s: 6 rebalances in the last 10 min, budget 5; "
        "orders-3 joins and leaves every 40 s"
    )
    assert (storm.cause, storm.top_offender) == ("join and leave", "orders-3")


def test_it_ends_only_after_a_while_below_half_of_the_budget() -> None:
    """From 6 down to 3 it lasts; at 2 it calms for two minutes, keeps its name, and ends."""
    seen = [came(n * 100.0, "orders-3") for n in range(6)]
    begun = seen[-1].ended_at
    assert look(seen, begun) is not None
    at_three = look(seen, 200 + 600 - 1 + 1 - 0.5)
    assert at_three.cooldown_since is None
    low = 300 + 600.0  # the fourth has left the window: two are in it
    cooling_down = look(seen, low + 119)
    assert (cooling_down.cooldown_since, cooling_down.rebalances) == (low, 1)
    assert "orders-3 joins every 100 s" in cooling_down.sentence.replace("2 min", "100 s")
    assert cooling_down.sentence.endswith("; cooling down")
    assert look(seen, low + 120) is None
    again = [*seen, came(low + 60, "orders-3"), came(low + 61, "orders-3")]
    lasting = look(again, low + 130)
    assert lasting.cooldown_since is None
    assert lasting.since == begun


def test_it_does_not_matter_how_often_one_looks() -> None:
    """Looking every 15 s with the state, or once with the history, gives the same answer."""
    for seed in range(15):
        rng = random.Random(seed)
        at, seen = 0.0, []
        for _ in range(60):
            at += rng.choice((5.0, 30.0, 200.0, 500.0))
            seen.append(came(at, f"orders-{rng.randrange(3)}"))
        before: Storm | None = None
        now = 0.0
        while now < at + 1500:
            now += 15.0
            known = [r for r in seen if r.ended_at <= now]
            recent = [r for r in known if r.ended_at > now - reach(BUDGET)]
            if before is not None:
                before = from_json(Storm, json.loads(json.dumps(as_json(before))))
            before = look(recent, now, before=before)
            whole = look(known, now)
            assert (before is None) == (whole is None), f"seed {seed} at {now}"
            if before is not None and whole is not None:
                assert before.since == whole.since, f"seed {seed} at {now}"
                assert before.cooldown_since == whole.cooldown_since, f"seed {seed} at {now}"


def test_a_long_storm_keeps_its_beginning() -> None:
    """What is read reaches two windows back; the state remembers the rest."""
    seen = flapping(times=200)
    first = look(seen[:20], seen[19].ended_at)
    now = seen[-1].ended_at
    later = look([r for r in seen if r.ended_at > now - reach(BUDGET)], now, before=first)
    assert later.since == first.since


def test_churn_alone_is_a_storm() -> None:
    """Few rebalances that move many partitions exceed the other budget."""
    budget = Budget(rebalances=5, window=600, moved=20)
    moved = tuple(TopicPartition("orders", n) for n in range(12))
    seen = [came(0, "a-1", moved=moved), came(60, "a-2", moved=moved)]
    assert look(seen[:1], 60, budget=budget) is None
    storm = look(seen, 60, budget=budget)
    assert "24 partitions moved, budget 20" in storm.sentence
    assert look(seen, 60) is None


def test_a_name_without_end_is_told_by_its_ends() -> None:
    """A client's id may have 32,767 characters, and these words are labels and annotations."""
    storm = look(flapping("a" * 30_000 + "b" * 2_000), 250.0)
    assert storm.top_offender == "a" * 60 + "…" + "b" * 60
    assert storm.summary == f"{storm.top_offender} joins and leaves every 40 s"


@pytest.mark.parametrize(
    ("seen", "cause", "member", "words"),
    [
        pytest.param(
            flapping(f"rdkafka-{UUID}"),
            "join and leave",
            "client rdkafka",
            "client rdkafka joins and leaves every 40 s",
            id="dynamic",
        ),
        pytest.param(
            [
                one
                for n in range(4)
                for one in (
                    rebalance(n * 90.0, cause=Cause.EXPIRY, left=("orders-1",)),
                    came(n * 90.0 + 20, "orders-1"),
                )
            ],
            "expiry",
            "orders-1",
            "orders-1 times out and joins again every 90 s",
            id="expiry",
        ),
        pytest.param(
            [one for n in range(5) for one in (went(n * 20, f"o-{n}"), came(n * 20 + 9, f"o-{n}"))],
            "join and leave",
            "o-0",
            "5 members, one after another: 5 joins and 5 leaves in 89 s, most often o-0 (2 times)",
            id="deploy-one-by-one",
        ),
        pytest.param(
            [came(n * 10, f"{'abcdefghijklmnopqrstu'}{n}") for n in range(6)]
            + [went(n * 10 + 5, f"{'abcdefghijklmnopqrstu'}{n}x"[:22]) for n in range(6)],
            "join and leave",
            None,
            None,
            id="kip-848-new-ids",
        ),
        pytest.param(
            [rebalance(n * 30.0, cause=Cause.LEADER_REJOIN) for n in range(6)],
            "leader rejoin",
            None,
            "the leader joins again without a change, every 30 s",
            id="leader",
        ),
        pytest.param(
            [rebalance(n * 30.0, cause=Cause.PARTITIONS) for n in range(6)],
            "partition count",
            None,
            "the number of partitions of its topics changes, every 30 s",
            id="partitions",
        ),
    ],
)
def test_cause_and_worst_member_in_words(
    seen: list[Rebalance], cause: str, member: str | None, words: str | None
) -> None:
    """What a person reads first."""
    storm = look(seen, max(r.ended_at for r in seen))
    assert storm.cause == cause
    if words is not None:
        assert (storm.top_offender, storm.summary) == (member, words)


def test_clients_name_members_whose_ids_do_not() -> None:
    """KIP-848's member ids hold no client id; memberships tell it."""
    ids = [f"id{n}" for n in range(6)]
    seen = [one for n, i in enumerate(ids) for one in (came(n * 40, i), went(n * 40 + 20, i))]
    storm = look(seen, 300, clients=dict.fromkeys(ids, "billing"))
    assert storm.summary == "client billing joins and leaves every 40 s"


def test_second_cooperative_rounds_belong_to_their_cause() -> None:
    """They count as rebalances, not as somebody's coming."""
    seen = []
    for n in range(4):
        seen += [came(n * 50, "orders-3"), rebalance(n * 50 + 3, cause=Cause.SECOND_ROUND)]
    storm = look(seen, 200)
    assert storm.rebalances == 8
    assert storm.summary == "orders-3 joins every 50 s"


def _change(state: ChangeState, *, rebalances: int, most: int, **receipt: Any) -> Change:
    plan = make_plan(state_snapshot(held=3), wanted=5, now=100.0)
    (step,) = plan.steps
    expected_cost = ExpectedCost(rebalances_min=1, rebalances_max=most)
    plan = replace(plan, steps=(replace(step, expected_cost=expected_cost),))
    counted = {"from_generation": 10, "to_generation": 10 + rebalances, **receipt}
    result = ReceiptResult.EQUAL if rebalances <= most else ReceiptResult.DIFFERS
    done = receipt_of(plan, rebalances=rebalances, **{"result": result, **counted})
    return change_of(plan, state, *(() if state is ChangeState.RUNNING else (done,)))


def _opened(count: int) -> list[Rebalance]:
    """Rebalances of the step that opens slots 3 and 4."""
    return [came(110.0 + n, "orders-3", number=11 + n) for n in range(count)]


def test_what_a_plan_was_to_cost_does_not_count() -> None:
    """Within its expected cost nobody is called; what it cost beyond counts."""
    priced = expected_rebalances([_change(ChangeState.DONE, rebalances=2, most=2)])
    assert count_against_budget(_opened(2), priced) == ()
    dear = expected_rebalances([_change(ChangeState.DONE, rebalances=4, most=2)])
    assert len(count_against_budget(_opened(4), dear)) == 2
    running = expected_rebalances([_change(ChangeState.RUNNING, rebalances=0, most=2)])
    assert len(count_against_budget(_opened(3), running)) == 1


def test_others_are_not_hidden_by_a_plan() -> None:
    """Another member's rebalance counts, also while a change of ours runs."""
    running = expected_rebalances([_change(ChangeState.RUNNING, rebalances=0, most=2)])
    external = came(112.0, "billing-1", number=12)
    assert count_against_budget([external], running) == (external,)
    assert (
        count_against_budget(
            [external],
            expected_rebalances([_change(ChangeState.RUNNING, rebalances=0, most=2)], static=False),
        )
        == ()
    )
    before = came(20.0, "orders-3", number=9)
    assert count_against_budget([before], running) == (before,)


def test_a_rebalance_told_twice_counts_once() -> None:
    """Its place in the log is its identity."""
    seen = flapping()[:4]
    assert len(count_against_budget([*seen, *seen])) == 4
    assert look([*seen, *seen], 1000) is None


def test_a_clock_ahead_of_ours_is_no_future() -> None:
    """A coordinator's clock may be ahead: what it has written has happened."""
    assert look(flapping(start=100.0), 110.0) is not None


# --- the whole cluster ----------------------------------------------------------------------


def _storms(count: int, now: float = 1000.0) -> list[Storm]:
    storm = look(flapping(start=now - 240), now)
    assert storm is not None
    return [replace(storm, group=f"group-{n}") for n in range(count)]


def together(storms: list[Storm], now: float, **kwargs: Any) -> ClusterStorm | None:
    return assess_cluster(storms, cluster="main", budget=BUDGET, now=now, **kwargs)


def test_ten_groups_at_once_are_one_storm() -> None:
    """Nine are nine; ten are one, until at most five are left for a while."""
    assert together(_storms(9), 1000) is None
    storm = together(_storms(10), 1000)
    assert storm.cause == "many groups"
    assert "10 groups in a storm at once (group-0, group-1, group-2 and 7 more)" in storm.sentence
    kept = from_json(ClusterStorm, json.loads(json.dumps(as_json(storm))))
    assert kept == storm
    lasting = together(_storms(6), 1010, before=storm)
    assert lasting.cooldown_since is None
    cooling_down = together(_storms(5), 1020, before=lasting)
    assert cooling_down.cooldown_since == 1020
    assert together(_storms(5), 1139, before=cooling_down) is not None
    assert together(_storms(5), 1140, before=cooling_down) is None


def test_a_move_of_coordinators_is_one_storm() -> None:
    """It lasts as long as a storm that it caused may; a second move prolongs it."""
    move = CoordinatorMove(at=1000.0, partitions=17, of=50, lost=(2,), gained=(0, 1))
    storm = together([], 1005, moves=[move])
    assert (storm.cause, storm.since) == ("coordinator move", 1000.0)
    assert "17 of 50 coordinators moved from broker 2 to brokers 0, 1 5 s ago" in storm.sentence
    kept = from_json(ClusterStorm, json.loads(json.dumps(as_json(storm))))
    assert together([], 1719, before=kept) is not None
    assert together([], 1720, before=kept) is None
    second = together([], 1700, before=kept, moves=[replace(move, at=1700.0)])
    assert second.since == 1000.0
    assert together([], 1800, before=second) is not None
    rest = replace(move, at=1003.0, partitions=3, gained=(0,))
    third = together([], 1004, before=kept, moves=[rest])
    assert "20 of 50 coordinators moved from broker 2 to brokers 0, 1" in third.summary
    both = together(_storms(12), 1010, before=kept)
    assert both.cause == "coordinator move"
    assert "12 groups in a storm" in both.summary


@pytest.mark.parametrize("kind", [Storm, ClusterStorm])
def test_state_of_another_version_is_no_state(kind) -> None:
    """An upgrade tells storms anew and raises nothing."""
    assert from_json_or_none(kind, {"unknown": 1}) is None
    assert from_json_or_none(kind, None) is None


# --- all groups, look after look ------------------------------------------------------------

FILE = FleetSpec.model_validate(
    {
        "storm": {"rebalances": 3, "window": "60s"},
        "fleets": [{"group": GROUP, "topics": ["orders"], "storm": {"rebalances": 50}}],
    }
)


def test_every_group_has_its_own_budget() -> None:
    """The file's for groups that no fleet declares; a fleet's own for its group."""
    stranger = [replace(r, group="stranger") for r in flapping(every=4)]
    seen = [*stranger, *flapping(every=4)]
    watch = StormWatch().refresh(FILE, seen, now=24.0)
    assert set(watch.storms) == {"stranger"}
    assert watch_reach(FILE) == 1320.0
    kept = from_json(StormWatch, json.loads(json.dumps(as_json(watch))))
    assert kept == watch
    later = kept.refresh(FILE, [], now=400.0)
    assert later.storms == {}
    assert from_json_or_none(StormWatch, {"storms": [{"other": 1}]}) is None


def test_what_is_not_read_is_not_calm() -> None:
    """Its storm stays as it was: for a tick without fresh tables, not for good."""
    stranger = [replace(r, group="stranger") for r in flapping(every=4)]
    watch = StormWatch().refresh(FILE, stranger, now=24.0)
    for now in (200.0, 700.0, 3600.0):
        watch = watch.refresh(FILE, [], now=now, is_read=lambda group: group != "stranger")
        assert watch.storms["stranger"].seen_at == 24.0
    assert watch.refresh(FILE, [], now=700.0).storms == {}
    assert watch.refresh(FILE, [], now=3700.0, is_read=lambda _: False).storms == {}


def test_detected_at_the_next_look() -> None:
    """With looks every 15 s, whatever their phase, a storm is known within two of them."""
    seen = [replace(r, group="stranger") for r in flapping(every=4)]
    begun = seen[3].ended_at
    for phase in range(15):
        watch, now = StormWatch(), float(phase - 15)
        while not watch.storms:
            now += 15
            watch = watch.refresh(FILE, [r for r in seen if r.ended_at <= now], now=now)
        assert now - begun <= 2 * 15


def test_ten_groups_in_a_look_are_the_clusters_storm() -> None:
    """The groups keep theirs: who inhibits whom is Alertmanager's business."""
    seen = [replace(r, group=f"g{n}") for n in range(12) for r in flapping(every=4)]
    watch = StormWatch().refresh(FILE, seen, now=24.0)
    assert len(watch.storms) == 12
    assert watch.cluster.groups == 12


# --- when the clock is set back ----------------------------------------------------------------


def storm_of(group: str) -> Storm:
    """Of that group."""
    found = look(flapping(), 300)
    assert found is not None
    return replace(found, group=group)


def _ended(before: Storm | None, rebalances: Any, now: float) -> float:
    """How many seconds after `now` a storm is over, looked at every 15 s."""
    for seconds in range(0, 9000, 15):
        before = look(rebalances, now + seconds, before=before)
        if before is None:
            return seconds
    raise AssertionError(before)


@pytest.mark.parametrize("back", [7200, 30])
def test_a_clock_set_back_holds_a_calming_storm_for_its_calm(back: int) -> None:
    """From then on: not until the clock has caught up."""
    cooling_down = look([], 900, before=look(flapping(times=3), 200))
    assert cooling_down.cooldown_since == 900
    after = look([], 900 - back, before=cooling_down)
    assert (after.summary, after.since <= 900 - back) == (cooling_down.summary, True)
    assert _ended(after, [], 900 - back) == BUDGET.cooldown
    lasting = look(flapping(times=3), 200)
    assert lasting is not None
    assert _ended(lasting, [], 200 - back) <= 2 * BUDGET.cooldown


def test_a_clock_set_back_keeps_a_storm_that_goes_on() -> None:
    """By what the log tells of the time that it is now."""
    storm = look(flapping(times=9), 360)
    for_now = look(flapping(times=9, start=-7200), 360 - 7200, before=storm)
    assert for_now.cooldown_since is None
    assert _ended(for_now, flapping(times=9, start=-7200), 360 - 7200) > BUDGET.cooldown


def test_a_clock_set_back_ends_the_clusters_storm_in_time_too() -> None:
    """Of ten groups, and of coordinators that moved."""
    many = together([storm_of(f"g{n}") for n in range(12)], 1000)
    cooling_down = together([], 1010, before=many)
    assert cooling_down is not None
    back = together([], 1010 - 7200, before=cooling_down)
    assert back is not None
    assert together([], 1010 - 7200 + BUDGET.cooldown, before=back) is None
    move = CoordinatorMove(at=1000, partitions=5, of=50, lost=(0,), gained=(1,))
    moved = together([], 1000, moves=[move])
    assert moved is not None
    back = together([], 1000 - 7200, before=moved)
    assert back is not None
    assert together([], 1000 - 7200 + BUDGET.window + BUDGET.cooldown, before=back) is None
