"""Which decisions of a policy are kept, what they cost, and how they are stored."""

import json
from dataclasses import replace

import pytest

from fleet.clock import ManualClock
from fleet.decide.decision_log import EVERY, KEPT, KeptDecision, is_news, unpack
from fleet.errors import Unreachable
from fleet.manager.decisions import explain, keep_decision, kept_decisions, last_decision
from fleet.slots.store import Store
from tests.support.memory_slots import Memory, MemoryBackend

NOW = 1_000_000.0
FIRST = KeptDecision(
    at=NOW,
    wanted=3,
    current=3,
    members=3,
    lag=1_000,
    lag_seconds=12.0,
    reason="1,000 records waiting, 500 per worker: stays at 3",
)


def decided(seconds: float, **changed: object) -> KeptDecision:
    """The first decision again, later and with these differences."""
    return replace(FIRST, at=NOW + seconds, **changed)  # type: ignore[arg-type]


@pytest.fixture
def store() -> Store:
    """An empty store."""
    clock = ManualClock()
    return Store(MemoryBackend(Memory(), clock=clock), clock=clock)


@pytest.mark.parametrize(
    ("made", "news"),
    [
        pytest.param(decided(60), False, id="the same"),
        pytest.param(decided(60, lag=90_000, lag_seconds=80.0), False, id="another lag"),
        pytest.param(decided(60, wanted=4), True, id="another number"),
        pytest.param(decided(60, current=4), True, id="a slot more"),
        pytest.param(decided(60, members=2), True, id="a member less"),
        pytest.param(decided(60, refused="group orders is paused"), True, id="refused"),
        pytest.param(decided(60, reason="lag unknown: stays at 3"), True, id="another reason"),
        pytest.param(
            decided(60, reason="1 record waiting, 500 per worker: stays at 3"),
            False,
            id="other figures",
        ),
        pytest.param(decided(EVERY - 1), False, id="nothing for nearly two hours"),
        pytest.param(decided(EVERY), True, id="nothing for two hours"),
        pytest.param(decided(-60), True, id="the clock was set back"),
    ],
)
def test_what_is_news(made: KeptDecision, news: bool) -> None:
    """What changed at once, the rest every two hours."""
    assert is_news(made, FIRST, lambda: [FIRST]) is news


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("down_after lasts 90 s more, stays at 4", "down_after lasts 3 min more, stays at 4", True),
        ("2 surplus slots cost 5 min so far", "1 surplus slot cost 119 s so far", True),
        ("orders-3 is stopped", "orders-4 is stopped", False),
        ("orders-3 is stopped, frozen", "orders-3 is stopped, paused", False),
    ],
)
def test_reasons_are_compared_without_figures(one: str, other: str, same: bool) -> None:
    """Units and plurals follow from figures; the number of a partition is a name."""
    made = decided(60, reason=one)
    assert is_news(decided(120, reason=other), made, lambda: [made]) is not same


def test_a_policy_between_two_reasons_does_not_fill_the_log(store: Store) -> None:
    """Each of them is kept every two hours."""
    reasons = ("lag unknown: stays at 3", "the group is not settled: stays at 3")
    for minute in range(240):
        made = decided(60 * minute, reason=reasons[minute % 2])
        keep_decision(store, "orders", made)
    assert len(kept_decisions(store, "orders")) <= 4


def test_members_cost_hours(store: Store) -> None:
    """Three members for half an hour, then five; a day without a check counts as four hours."""
    keep_decision(store, "orders", FIRST)
    keep_decision(store, "orders", decided(1_800, members=5))
    assert keep_decision(store, "orders", decided(5_400)).member_hours == pytest.approx(6.5)
    later = keep_decision(store, "orders", decided(5_400 + 86_400))
    assert later.member_hours == pytest.approx(6.5 + 4 * 3)
    assert keep_decision(store, "orders", decided(0)).member_hours == later.member_hours


def test_a_group_keeps_its_last_decisions_in_little_space(store: Store) -> None:
    """With reason, figures and alternatives; another group has its own."""
    assert (kept_decisions(store, "orders"), last_decision(store, "orders")) == ((), None)
    for hour in range(KEPT + 30):
        made = decided(
            EVERY * hour,
            lag=7919 * hour % 10_000,
            inputs={"records per second of a worker": 1_000.0 + hour},
            alternatives=tuple(f"{n} slots: every member keeps up" for n in range(4)),
        )
        keep_decision(store, "orders", made)
    kept = kept_decisions(store, "orders")
    assert len(kept) == KEPT
    assert kept[-1] == last_decision(store, "orders")
    assert (kept[-1].at, kept[-1].inputs, kept[-1].lag) == (made.at, made.inputs, made.lag)
    assert len(json.dumps(store.manager_state("orders", "decisions"))) < 12_000
    assert last_decision(store, "payments") is None


def test_a_store_that_refuses_writes_stops_no_plan(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is kept, and the decision is returned."""

    def away(*_: object) -> None:
        raise Unreachable("the disk is full")

    monkeypatch.setattr(store, "put_manager_state", away)
    assert keep_decision(store, "orders", FIRST) == FIRST


@pytest.mark.parametrize("stored", [None, 7, "", "no base64!", "AAAA", "eJyrrgUAAXUA+Q=="])
def test_what_cannot_be_read_is_no_decision(stored: object, store: Store) -> None:
    """A log of another release, or half of one: the next decision begins anew."""
    store.put_manager_state("orders", "decisions", {"last": {"at": "?"}, "rows": stored})
    assert unpack(stored) == []
    assert (kept_decisions(store, "orders"), last_decision(store, "orders")) == ((), None)
    keep_decision(store, "orders", FIRST)
    assert kept_decisions(store, "orders") == (FIRST,)


def test_a_decision_is_explained() -> None:
    """What `fleet plan --explain` prints."""
    made = decided(
        60, refused="group orders is paused", inputs={"records that wait": 1_000.0},
        alternatives=("4 slots: every member keeps up",), lag=None,
    )  # fmt: skip
    assert explain(made) == (
        f"decided at 1970-01-12 13:47:40 UTC: {FIRST.reason}; refused: group orders is paused",
        "members: 3, member hours: 0.0",
        "waiting records: unknown, age of the oldest: 12 s",
        "records that wait: 1,000",
        "with 4 slots: every member keeps up",
    )
