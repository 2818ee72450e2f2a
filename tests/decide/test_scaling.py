"""Scaling: growth is prompt, shrinking is slow, and nobody idles."""

import json
import math
import sys
import zoneinfo
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.config.spec import FixedScaling, Hours
from fleet.decide.hours import is_within
from fleet.decide.scaling import MAX_REMEMBERED, Decision, ScalingMemory, most_owners, wanted_slots
from fleet.model import TopicPartition
from fleet.slots.codec import as_json, from_json, from_json_or_none
from tests.decide.worlds import NOW, group_of, lagging, member, spec

TOPICS = {"orders": 12}


def look(
    lag: int | None = 0,
    *,
    current: int,
    memory: ScalingMemory | None = None,
    now: float = NOW,
    topics: dict[str, int] | None = None,
    changed_at: Sequence[float] = (),
    **changes: Any,
) -> Decision:
    """One look at a group with that lag, 100 records per worker by default."""
    group = None if lag is None else group_of((member("orders-0"),), partitions=lagging(lag))
    return wanted_slots(
        spec=spec(**changes),
        group=group,
        topics=TOPICS if topics is None else topics,
        current=current,
        memory=memory or ScalingMemory(),
        now=now,
        changed_at=changed_at,
    )


@pytest.mark.parametrize(
    ("scaling", "lag", "raw"),
    [
        pytest.param({"policy": "fixed", "workers": 4}, 0, 4, id="fixed"),
        pytest.param({"policy": "partitions", "per_worker": 5}, 0, 3, id="partitions"),
        pytest.param({"policy": "lag", "records_per_worker": 100}, 301, 4, id="lag"),
        pytest.param({"policy": "lag", "records_per_worker": 100}, 300, 3, id="lag-exact"),
        pytest.param({"policy": "lag", "records_per_worker": 100}, 0, 0, id="no-lag"),
    ],
)
def test_each_policy(scaling: dict, lag: int, raw: int) -> None:
    """Each policy's own figure, before any bound."""
    decision = look(lag, current=0, scaling=scaling)
    assert (decision.raw, decision.wanted) == (raw, max(1, raw))
    assert decision.sentence


def test_unknown_lag_keeps_what_is() -> None:
    """Nobody scales on what nobody knows; from nothing the minimum starts."""
    assert look(None, current=5).wanted == 5
    assert look(None, current=0, replicas={"min": 2}).wanted == 2
    assert "lag unknown" in look(None, current=5).sentence


def test_a_part_of_the_lag_may_grow_but_not_shrink() -> None:
    """Where some partitions are unknown, the rest is a lower bound."""
    group = group_of((member("orders-0"),), partitions=lagging(500, None))
    memory = ScalingMemory(current=9, down_since=NOW - 999, looks=9, asked=((NOW - 1, 5),))
    ask = {"spec": spec(), "group": group, "topics": TOPICS, "now": NOW}
    assert wanted_slots(current=9, memory=memory, **ask).wanted == 9
    assert wanted_slots(current=2, memory=ScalingMemory(), **ask).wanted == 5


def test_quarantined_partitions_do_not_count() -> None:
    """Lag that no worker can reduce is no reason for more workers [30]."""
    group = group_of((member("orders-0"),), partitions=lagging(900, 100))
    decision = wanted_slots(
        spec=spec(),
        group=group,
        topics=TOPICS,
        current=1,
        memory=ScalingMemory(),
        now=NOW,
        quarantined={TopicPartition("orders", 0)},
    )
    assert (decision.raw, decision.wanted) == (1, 1)


def test_the_cap_says_why() -> None:
    """Never more than can own a partition, with the reason in the sentence."""
    decision = look(5000, current=0)
    assert decision.wanted == 12
    assert decision.sentence.endswith("capped at 12: there are 12 partitions: 12 slots")
    ranged = spec(worker={"assignor": "range"}, topics=["orders", "returns"])
    topics = {"orders": 6, "returns": 4, "other": 90}
    assert (
        most_owners(topics, ranged),
        most_owners(topics, spec(topics=["orders", "returns"])),
    ) == (6, 10)
    assert most_owners(topics, spec(topics=["^ord.*", "missing"])) == 6


def test_a_missing_topic_holds() -> None:
    """A topic that is gone is no reason to stop everybody; one to be created counts."""
    gone = look(0, current=3, topics={})
    assert gone.wanted == 3
    assert "no partition of orders exists yet" in gone.sentence
    assert look(900, current=0, topics={}, create={"partitions": 4}).wanted == 4


def test_growth_waits_only_where_told() -> None:
    """up_after 0 grows at once; else the need must last."""
    assert look(500, current=1).wanted == 5
    scaling = {"policy": "lag", "records_per_worker": 100, "up_after": "30s"}
    first = look(500, current=1, scaling=scaling)
    assert first.wanted == 1
    later = look(500, current=1, scaling=scaling, memory=first.memory, now=NOW + 30)
    assert later.wanted == 5
    broken = look(100, current=1, scaling=scaling, memory=first.memory, now=NOW + 10)
    again = look(500, current=1, scaling=scaling, memory=broken.memory, now=NOW + 30)
    assert again.wanted == 1


def test_shrinking_goes_to_the_most_that_was_asked() -> None:
    """After down_after, to the largest figure asked for within it, not to the last."""
    scaling = {"policy": "lag", "records_per_worker": 100, "down_after": "60s"}
    memory, decision = ScalingMemory(), None
    for seconds, lag in ((0, 100), (20, 400), (40, 100), (60, 200)):
        decision = look(lag, current=8, scaling=scaling, memory=memory, now=NOW + seconds)
        memory = decision.memory
    assert decision.wanted == 4


def test_two_looks_far_apart_are_the_least() -> None:
    """One look never shrinks, however long ago the last was."""
    scaling = {"policy": "lag", "records_per_worker": 100, "down_after": "0s"}
    first = look(0, current=8, scaling=scaling)
    assert first.wanted == 8
    assert look(0, current=8, scaling=scaling, memory=first.memory, now=NOW + 1).wanted == 1


def test_steps_are_bounded() -> None:
    """max_step bounds growth and shrinking; a new size starts the wait anew."""
    scaling = {"policy": "lag", "records_per_worker": 100, "max_step": 2, "down_after": "0s"}
    assert look(1000, current=2, scaling=scaling).wanted == 4
    first = look(0, current=8, scaling=scaling)
    second = look(0, current=8, scaling=scaling, memory=first.memory, now=NOW + 1)
    assert second.wanted == 6
    assert look(0, current=6, scaling=scaling, memory=second.memory, now=NOW + 2).wanted == 6


@pytest.mark.parametrize("lag", [None, 0, 5000], ids=["unknown", "none", "much"])
def test_a_lowered_limit_is_obeyed_at_once_and_told(lag: int | None) -> None:
    """`replicas.max` is what a person wrote: no wait, no step, and a sentence that says so."""
    scaling = {"policy": "lag", "records_per_worker": 100, "max_step": 1, "down_after": "10m"}
    decision = look(lag, current=8, scaling=scaling, replicas={"max": 5})
    assert decision.wanted == 5
    assert decision.sentence.endswith(", at most 5: from 8 to 5 slots")


def test_a_declared_number_shrinks_at_once() -> None:
    """`fixed` is what a person wrote, not a measurement."""
    assert look(0, current=8, scaling={"policy": "fixed", "workers": 3}).wanted == 3


def test_a_clock_that_goes_back_starts_the_wait_anew() -> None:
    """Time that jumps back never shortens a wait."""
    scaling = {"policy": "lag", "records_per_worker": 100, "down_after": "60s"}
    first = look(0, current=8, scaling=scaling, now=NOW + 1000)
    back = look(0, current=8, scaling=scaling, memory=first.memory, now=NOW)
    assert (back.wanted, back.memory.looks) == (8, 1)


@pytest.mark.parametrize(
    "value", [None, {}, {"asked": 3}, {"looks": "many"}, {"asked": [[1]]}, {"current": []}], ids=str
)
def test_a_memory_that_does_not_read_is_none(value: Any) -> None:
    """A note that somebody else wrote costs a wait, not a crash."""
    assert (from_json_or_none(ScalingMemory, value) or ScalingMemory()) == ScalingMemory()


looks = st.lists(
    st.tuples(st.floats(0.1, 120), st.one_of(st.none(), st.integers(0, 3000))),
    min_size=1,
    max_size=60,
)


@given(
    looks=looks,
    start=st.integers(0, 30),
    down_after=st.integers(0, 300),
    low=st.integers(0, 4),
    high=st.integers(4, 40),
    step=st.one_of(st.none(), st.integers(1, 5)),
)
def test_scaling_holds_its_promises(  # noqa: PLR0917 - given by name
    looks: list, start: int, down_after: int, low: int, high: int, step: int | None
) -> None:
    """Never above the cap, growth at once, no shrinking before down_after nor below any ask, but
    down to a lowered replicas.max at once.
    """
    scaling = {
        "policy": "lag",
        "records_per_worker": 100,
        "down_after": down_after,
        "max_step": step,
    }
    fleet = spec(scaling=scaling, replicas={"min": low, "max": high})
    cap = most_owners(TOPICS, fleet)
    memory, current, now = ScalingMemory(), start, NOW
    asked: list[tuple[float, int]] = []
    for pause, lag in looks:
        now += pause
        group = None if lag is None else group_of((member("orders-0"),), partitions=lagging(lag))
        # Through JSON, as the store keeps it.
        memory = from_json(ScalingMemory, json.loads(json.dumps(as_json(memory))))
        decision = wanted_slots(
            spec=fleet, group=group, topics=TOPICS, current=current, memory=memory, now=now
        )
        memory = decision.memory
        raw = current if lag is None else math.ceil(lag / 100)
        target = min(max(raw, low), high, cap)
        assert decision.wanted <= min(high, max(current, cap))
        if target > current:
            most = target if step is None or current == 0 else min(target, current + step)
            assert decision.wanted == most
        asked = [*asked, (now, target)] if target < current and lag is not None else []
        if decision.wanted < current <= high:
            assert len(asked) >= 2
            assert now - asked[0][0] >= down_after
            window = [t for at, t in asked if at >= now - down_after]
            assert decision.wanted >= max(window)
        if decision.wanted != current:
            asked, current = [], decision.wanted
    assert len(memory.asked) <= MAX_REMEMBERED


def test_the_memory_is_bounded() -> None:
    """However slowly the need falls, what is remembered stays small."""
    memory = ScalingMemory()
    fleet = spec(
        scaling={"policy": "lag", "records_per_worker": 1, "down_after": "1d"},
        replicas={"max": 10_000},
        topics=["orders"],
    )
    for second in range(400):
        group = group_of((member("orders-0"),), partitions=lagging(5000 - second))
        memory = wanted_slots(
            spec=fleet,
            group=group,
            topics={"orders": 9000},
            current=6000,
            memory=memory,
            now=NOW + second,
        ).memory
    assert len(memory.asked) == MAX_REMEMBERED
    assert memory.asked[0][1] == 5000
    assert replace(memory, asked=()).looks == 400


MONDAY = 1_767_571_200.0
"""Monday 2026-01-05, 00:00 UTC."""
HOUR, DAY = 3600.0, 86_400.0
OFFICE = {"hours": "08:00-20:00", "days": ["mon", "tue"], "min": 6}
NIGHT = {"hours": "22:00-06:00", "days": ["sun"], "min": 4}


@pytest.mark.parametrize(
    ("at", "least"),
    [
        pytest.param(7.99 * HOUR, 1, id="before"),
        pytest.param(8 * HOUR, 6, id="begins"),
        pytest.param(20 * HOUR - 1, 6, id="last-second"),
        pytest.param(20 * HOUR, 1, id="over"),
        pytest.param(DAY + 12 * HOUR, 6, id="tuesday"),
        pytest.param(2 * DAY + 12 * HOUR, 1, id="wednesday"),
        pytest.param(6 * DAY + 22 * HOUR, 4, id="sunday-night"),
        pytest.param(5 * HOUR, 4, id="the-night-that-began-on-sunday"),
        pytest.param(6 * HOUR, 1, id="the-night-is-over"),
        pytest.param(DAY + 5 * HOUR, 1, id="the-night-of-monday"),
        pytest.param(6 * DAY + 5 * HOUR, 1, id="the-night-of-saturday"),
    ],
)
@pytest.mark.parametrize(
    "policy",
    [
        {"policy": "fixed", "workers": 1},
        {"policy": "partitions", "per_worker": 12},
        {"policy": "lag", "records_per_worker": 100},
        {"policy": "drain_time", "records_per_second": 100},
    ],
    ids=lambda policy: policy["policy"],
)
def test_a_floor_counts_in_its_hours(policy: dict, at: float, least: int) -> None:
    """For each policy, on the days on which the hours begin."""
    decision = look(0, current=1, scaling={**policy, "floors": [NIGHT, OFFICE]}, now=MONDAY + at)
    assert decision.wanted == least
    if least == 6:
        hours = "at least 6 slots from 08:00 to 20:00 UTC on mon, tue"
        assert decision.sentence.endswith(f", {hours}: from 1 to 6 slots")


@pytest.mark.parametrize(
    ("floors", "wanted"),
    [
        pytest.param([{"hours": "00:00-24:00", "min": 3}], 3, id="whole-day"),
        pytest.param([{"hours": "09:00-10:00", "min": 3}], 3, id="nine-in-berlin"),
        pytest.param([{"hours": "08:00-09:00", "min": 3}], 1, id="eight-in-utc"),
        pytest.param(
            [{"hours": "08:00-18:00", "min": 3}, {"hours": "09:00-12:00", "min": 5}], 5, id="two"
        ),
        pytest.param([{"hours": "00:00-24:00", "min": 20}], 12, id="no-more-than-partitions"),
    ],
)
def test_floors_are_read_in_their_time_zone(floors: list[dict], wanted: int) -> None:
    """The highest counts; partitions still cap it."""
    scaling = {
        "policy": "lag",
        "records_per_worker": 100,
        "floors": floors,
        "timezone": "Europe/Berlin",
    }
    decision = look(0, current=1, scaling=scaling, now=MONDAY + 8.5 * HOUR)
    assert decision.wanted == wanted
    assert ("Europe/Berlin" in decision.sentence) == (1 < wanted < 12)


def test_after_a_floor_the_group_shrinks_slowly() -> None:
    """down_after begins when the floor ends."""
    scaling = {"policy": "lag", "records_per_worker": 100, "down_after": "60s"}
    scaling["floors"] = [{"hours": "08:00-20:00", "min": 6}]
    end, memory, sizes = MONDAY + 20 * HOUR, ScalingMemory(), []
    for seconds in (-300, -60, 0, 30, 60):
        decision = look(0, current=6, scaling=scaling, memory=memory, now=end + seconds)
        memory = decision.memory
        sizes.append(decision.wanted)
    assert sizes == [6, 6, 6, 6, 1]


@pytest.mark.parametrize(
    ("at", "size"),
    [
        pytest.param(4 * DAY + 23.4 * HOUR, 9, id="before"),
        pytest.param(4 * DAY + 23.5 * HOUR, 2, id="friday-night"),
        pytest.param(5 * DAY + 0.4 * HOUR, 2, id="after-midnight"),
        pytest.param(5 * DAY + 0.5 * HOUR, 9, id="over"),
        pytest.param(4 * DAY + 0.4 * HOUR, 9, id="thursday-night"),
    ],
)
def test_a_freeze_holds_the_policy(at: float, size: int) -> None:
    """It says what the policy wants otherwise."""
    scaling = {
        "policy": "lag",
        "records_per_worker": 100,
        "freeze": [{"hours": "23:30-00:30", "days": ["fri"]}],
        "floors": [{"hours": "00:00-24:00", "min": 3}],
    }
    decision = look(900, current=2, scaling=scaling, now=MONDAY + at)
    assert decision.wanted == size
    if size == 2:
        assert decision.sentence == (
            "frozen from 23:30 to 00:30 UTC on fri (scaling.freeze), stays at 2 slots; otherwise: "
            "900 records waiting, 100 per worker: from 2 to 9 slots"
        )


def test_what_was_wanted_in_a_freeze_is_done_after_it() -> None:
    """The wait of down_after goes on, and nothing starts from 0 slots."""
    scaling = {"policy": "lag", "records_per_worker": 100, "down_after": "60s"}
    scaling["freeze"] = [{"hours": "08:00-09:00"}]
    end, memory, sizes = MONDAY + 9 * HOUR, ScalingMemory(), []
    for seconds in (-90, -1, 0):
        decision = look(100, current=6, scaling=scaling, memory=memory, now=end + seconds)
        memory = decision.memory
        sizes.append(decision.wanted)
    assert sizes == [6, 6, 1]
    assert look(900, current=0, scaling=scaling, now=end - 1).wanted == 0


@pytest.mark.parametrize(
    ("ago", "wanted", "left"),
    [
        pytest.param([], 9, "", id="none"),
        pytest.param([10], 9, "", id="one"),
        pytest.param([10, 600], 2, "50 min", id="two"),
        pytest.param([600, 10, 1200], 2, "50 min", id="three-in-any-order"),
        pytest.param([10, 3600], 9, "", id="an-hour-old"),
        pytest.param([10, -5], 9, "", id="from-the-future"),
    ],
)
def test_a_budget_of_changes_holds_the_policy(ago: list[float], wanted: int, left: str) -> None:
    """Until the first of so many is an hour old."""
    scaling = {"policy": "lag", "records_per_worker": 100, "changes_per_hour": 2}
    decision = look(900, current=2, scaling=scaling, changed_at=[NOW - each for each in ago])
    assert decision.wanted == wanted
    assert (f"changes_per_hour is 2: waits {left} more, stays at 2" in decision.sentence) == (
        wanted == 2
    )


def test_a_worker_needs_no_time_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its image has none: it reads a policy in UTC or elsewhere, and UTC is known without them."""
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    try:
        for timezone in ("UTC", "Europe/Berlin"):
            FixedScaling(policy="fixed", workers=2, timezone=timezone)
        assert is_within(Hours(hours="00:00-24:00"), "UTC", NOW)
    finally:
        zoneinfo.reset_tzpath()
