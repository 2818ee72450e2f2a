"""Reasons not to act now: each one alone, as a sentence that says what lifts it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.decide.plans import make_drain_plan, make_plan
from fleet.decide.refusals import broker_limit_refusals, mode_refusal, refusals
from fleet.decide.state_snapshot import StateSnapshot
from fleet.decide.storms import Storm
from fleet.manager.cycle import _changed_at, _full_budget
from fleet.model import UNKNOWN, BrokerLimits, GroupState, Plan, StepKind
from fleet.slots import Change, ChangeState, Pause, Phase, SlotTargets
from fleet.slots.store import Store
from tests.decide.worlds import GROUP, NOW, group_of, member, spec, state_snapshot, without_owner
from tests.support.declared import fleet_spec
from tests.support.memory_slots import Memory, MemoryBackend
from tests.support.plans import change_of


def _change(state: ChangeState, seen: StateSnapshot, sentence: str = "") -> Change:
    fields = {"actor": "ann@laptop", "started_at": NOW - 30, "sentence": sentence}
    return change_of(make_plan(seen, wanted=5, now=NOW), state, **fields)


def _unsettled(state: GroupState) -> StateSnapshot:
    seen = state_snapshot(held=3)
    assert seen.group is not None
    return replace(seen, group=replace(seen.group, state=state))


def _with_member(name: str) -> StateSnapshot:
    seen = state_snapshot(held=3)
    return replace(seen, group=replace(seen.group, members=(*seen.group.members, member(name))))


def _doubled() -> StateSnapshot:
    seen = _with_member("orders-7")
    return replace(seen, targets=replace(seen.targets, quarantined=frozenset({7})))


def _joining(**slot: Any) -> StateSnapshot:
    seen = state_snapshot(held=3)
    first, *rest = seen.slots
    return replace(seen, slots=(replace(first, phase=Phase.JOINING, **slot), *rest))


def _ended() -> StateSnapshot:
    seen = state_snapshot(held=3)
    first, *rest = seen.processes
    return replace(seen, processes=(replace(first, running=False), *rest))


def _paused(group: str | None) -> StateSnapshot:
    pause = Pause(group=group, reason="audit", by="ann", at=NOW - 9)
    return replace(state_snapshot(held=3), pauses=(pause,))


def _alone(kind: str, assignor: str | None) -> StateSnapshot:
    group = group_of((member("theirs"),), kind=kind, assignor=assignor)
    return replace(state_snapshot(), group=group)


ALL = {StepKind.OPEN, StepKind.ROLL, StepKind.WARM}
BUT_WARM = {StepKind.OPEN, StepKind.ROLL}
JOINS = {StepKind.OPEN}


@pytest.mark.parametrize(
    ("seen", "words", "holds"),
    [
        pytest.param(
            _paused(GROUP), "paused by ann (audit); run `fleet resume orders`", ALL, id="own"
        ),
        pytest.param(_paused(None), "every group is paused by ann", ALL, id="pause-all"),
        pytest.param(
            replace(
                state_snapshot(held=3),
                change=_change(ChangeState.RUNNING, state_snapshot(held=3)),
                change_alive=True,
            ),
            "(step 1 of 1, for 30 s)",
            ALL,
            id="change-running",
        ),
        pytest.param(
            replace(
                state_snapshot(held=3), change=_change(ChangeState.RUNNING, state_snapshot(held=3))
            ),
            f"`fleet apply {GROUP} --continue` to finish it, or `fleet apply {GROUP} --abort`",
            ALL,
            id="change-left",
        ),
        pytest.param(
            replace(
                state_snapshot(held=3),
                change=_change(ChangeState.RUNNING, state_snapshot(held=3)),
                change_alive=None,
            ),
            "may still be running (step 1 of 1); retry in 10 s",
            ALL,
            id="change-perhaps-left",
        ),
        pytest.param(
            replace(state_snapshot(held=3), snapshot_at=NOW - 61),
            "snapshot is 61 s old",
            ALL,
            id="stale",
        ),
        pytest.param(
            _unsettled(GroupState.PREPARING), "(PreparingRebalance)", BUT_WARM, id="preparing"
        ),
        pytest.param(
            _unsettled(GroupState.COMPLETING), "(CompletingRebalance)", BUT_WARM, id="completing"
        ),
        pytest.param(
            _unsettled(GroupState.UNKNOWN), "is rebalancing", BUT_WARM, id="848-assigning"
        ),
        pytest.param(
            replace(state_snapshot(spec(topics=["gone"]), held=3), topics={}),
            "topic gone of group orders does not exist; create it",
            BUT_WARM,
            id="topic-missing",
        ),
        pytest.param(
            without_owner(state_snapshot(held=3), 1), "orders-1 is away", JOINS, id="away"
        ),
        pytest.param(
            replace(
                state_snapshot(held=2), slots=(), targets=SlotTargets(group=GROUP), processes=()
            ),
            "orders-0, orders-1 is a member, but its slot never had an owner in this store. If you "
            "changed cluster.name, runtime.kind, runtime.namespace or the state directory",
            JOINS,
            id="of-another-place",
        ),
        pytest.param(
            without_owner(state_snapshot(spec(worker={"protocol": "consumer"}), held=3), 1),
            "orders-1 is away (no worker owns its slot) and would cost one more assignment",
            JOINS,
            id="away-848",
        ),
        pytest.param(_ended(), "orders-0 is away", JOINS, id="owner-ended"),
        pytest.param(_with_member("orders-9"), "orders-9 is a member, but", JOINS, id="ghost"),
        pytest.param(_joining(), "orders-0 is joining", JOINS, id="joining"),
        pytest.param(
            _joining(error="no broker answers", member_id=None),
            "orders-0 is joining",
            JOINS,
            id="joining-in-vain",
        ),
        pytest.param(_joining(error="bad code"), "orders-0", set(), id="failing"),
        pytest.param(_doubled(), "external process is a member as orders-7", JOINS, id="doubled"),
    ],
)
def test_a_reason_holds_what_it_concerns(
    seen: StateSnapshot, words: str, holds: set[StepKind]
) -> None:
    """What concerns joining does not hold a roll; nothing but a person holds standbys."""
    steps = {
        StepKind.OPEN: make_plan(state_snapshot(held=3), wanted=5, now=NOW).steps,
        StepKind.ROLL: make_plan(state_snapshot(held=3), wanted=3, now=NOW, force_roll=True).steps,
        StepKind.WARM: make_plan(
            replace(state_snapshot(held=3), processes=state_snapshot(held=3).processes[:-1]),
            wanted=3,
            now=NOW,
        ).steps,
    }
    for kind, these in steps.items():
        reasons = refusals(seen, NOW, steps=these)
        assert [words in reason for reason in reasons] == ([True] if kind in holds else []), kind


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        pytest.param(_alone("consumer", None), "1 members of the consumer protocol", id="848"),
        pytest.param(_alone("share", None), "is a share group", id="share"),
        pytest.param(_alone("streams", None), "is a streams group", id="streams"),
        pytest.param(_alone("classic", "sessioned"), "'sessioned'", id="connect"),
        pytest.param(_alone("classic", "range"), "(error 23)", id="other-assignor"),
    ],
)
def test_groups_that_are_not_ours_to_join(seen: StateSnapshot, words: str) -> None:
    """Another protocol or assignor in the group would refuse every worker."""
    plan = make_plan(seen, wanted=2, now=NOW)
    assert any(words in reason for reason in plan.refusals)


def _storm(member: str | None = None) -> Storm:
    return Storm(
        cluster="main",
        group=GROUP,
        since=NOW - 200,
        seen_at=NOW,
        rebalances=6,
        moved=0,
        budget=5,
        budget_moved=None,
        window=600.0,
        cause="join and leave",
        top_offender=member,
        summary=f"{member or 'client app'} joins and leaves every 40 s",
    )


def test_a_storm_holds_with_its_words() -> None:
    """A storm holds everything but standbys, and the reason names who makes it."""
    stormy = replace(state_snapshot(held=3), storm=_storm("orders-1"))
    (reason,) = make_plan(stormy, wanted=5, now=NOW).refusals
    assert reason.startswith("storm for 3 min: 6 rebalances in the last 10 min, budget 5")
    assert "orders-1 joins and leaves every 40 s; changes are blocked until" in reason
    assert make_plan(replace(stormy, storm=None), wanted=5, now=NOW).refusals == ()


def test_a_storm_does_not_hold_its_own_end() -> None:
    """That its top offender leaves, and a roll that a person asks for, may end it."""
    stormy = replace(state_snapshot(held=3), storm=_storm("orders-1"))
    assert make_drain_plan(stormy, slots=[1], now=NOW).refusals == ()
    assert make_drain_plan(stormy, slots=[2], now=NOW).refusals != ()
    assert make_plan(stormy, wanted=3, now=NOW, force_roll=True).refusals == ()


def _rolled_back(held: int, **changes: Any) -> StateSnapshot:
    """Its slots run what ran before; what was tried is what is wanted still."""
    fleet = spec(**changes)
    seen = state_snapshot(fleet, held=held, runs=(spec(), "old"))
    back = _change(
        ChangeState.ROLLED_BACK, state_snapshot(fleet, held=3, runs=(spec(), "old")), "KeyError"
    )
    return replace(seen, change=back)


def test_a_revision_that_was_rolled_back_waits_for_a_person() -> None:
    """The same code is not tried again by itself, but by `fleet roll`."""
    again = _rolled_back(3)
    refused = make_plan(again, wanted=3, now=NOW).refusals
    assert len(refused) == 1
    assert "was rolled back: KeyError" in refused[0]
    newer = replace(again, revision="corrected")
    assert make_plan(newer, wanted=3, now=NOW).refusals == ()


def test_a_revision_that_was_rolled_back_holds_no_leave() -> None:
    """Who leaves brings no code: slots drain, and all of them may stop."""
    again = _rolled_back(3)
    assert make_plan(again, wanted=0, now=NOW).refusals == ()
    assert make_drain_plan(again, slots=[1], now=NOW).refusals == ()


_CALM = state_snapshot(held=3)


@pytest.mark.parametrize(
    ("refused", "lifted", "how"),
    [
        pytest.param(_paused(GROUP), _CALM, {}, id="`fleet resume`"),
        pytest.param(_paused(None), _CALM, {}, id="`fleet resume --all`"),
        pytest.param(
            replace(_CALM, change=_change(ChangeState.RUNNING, _CALM)),
            replace(_CALM, change=_change(ChangeState.ABORTED, _CALM)),
            {},
            id="`fleet apply --abort`",
        ),
        pytest.param(
            replace(_CALM, change=_change(ChangeState.RUNNING, _CALM)),
            replace(_CALM, change=_change(ChangeState.DONE, _CALM)),
            {},
            id="`fleet apply --continue`",
        ),
        pytest.param(replace(_CALM, snapshot_at=NOW - 61), _CALM, {}, id="retry"),
        pytest.param(_unsettled(GroupState.PREPARING), _CALM, {}, id="wait until it is Stable"),
        pytest.param(without_owner(_CALM, 1), _CALM, {}, id="a worker takes the slot"),
        pytest.param(_joining(), _CALM, {}, id="wait until its worker has committed"),
        pytest.param(_doubled(), _CALM, {}, id="stop it, then `fleet slot reopen`"),
        pytest.param(replace(_CALM, storm=_storm()), _CALM, {}, id="the storm ends"),
        pytest.param(
            replace(state_snapshot(spec(topics=["gone"]), held=3), topics={}),
            replace(state_snapshot(spec(topics=["gone"]), held=3), topics={"gone": 12}),
            {},
            id="create it",
        ),
        pytest.param(
            replace(state_snapshot(spec(topics=["gone"]), held=3), topics={}),
            replace(
                state_snapshot(spec(topics=["gone"], create={"partitions": 12}), held=3), topics={}
            ),
            {},
            id="write create:",
        ),
        pytest.param(
            _alone("consumer", None),
            state_snapshot(),
            {"wanted": 2},
            id="stop these members: another protocol",
        ),
        pytest.param(
            _alone("consumer", None),
            replace(
                state_snapshot(spec(worker={"protocol": "consumer"})),
                group=_alone("consumer", None).group,
            ),
            {"wanted": 2},
            id="write protocol: consumer",
        ),
        pytest.param(
            _alone("classic", "sessioned"), state_snapshot(), {"wanted": 2}, id="stop them first"
        ),
        pytest.param(
            _rolled_back(3), _rolled_back(3), {"wanted": 3, "force_roll": True}, id="`fleet roll`"
        ),
        pytest.param(
            _rolled_back(3, worker={"assignor": "range"}),
            _rolled_back(3, worker={"assignor": "range"}),
            {"wanted": 3, "force_roll": True},
            id="`fleet roll`: another assignor",
        ),
        pytest.param(
            _rolled_back(3), _rolled_back(0), {}, id="`fleet down`, then `fleet up` with more"
        ),
    ],
)
def test_what_a_refusal_advises_lifts_it(
    refused: StateSnapshot, lifted: StateSnapshot, how: dict[str, Any]
) -> None:
    """The group as it is once that was done: what was wanted has steps, and none is refused."""
    asked = {"wanted": 5, **how}
    assert make_plan(refused, wanted=asked["wanted"], now=NOW).refusals
    plan = make_plan(lifted, now=NOW, **asked)
    assert (plan.empty, plan.refusals) == (False, ())


def test_a_worker_that_ends_again_and_again_may_leave() -> None:
    """It never commits a batch, so nobody waits for that."""
    seen = _joining()
    assert make_plan(seen, wanted=0, now=NOW).refusals
    fails = tuple(replace(each, failures=3, restarts=9) for each in seen.processes)
    assert make_plan(replace(seen, processes=fails), wanted=0, now=NOW).refusals == ()


def test_an_absent_member_may_leave() -> None:
    """A leave that takes the absent along is not blocked by them; another leave is."""
    seen = without_owner(state_snapshot(held=4), 3)
    assert make_plan(seen, wanted=3, now=NOW).refusals == ()
    assert make_plan(seen, wanted=0, now=NOW).refusals == ()
    assert make_plan(without_owner(state_snapshot(held=4), 0), wanted=3, now=NOW).refusals != ()


def test_reasons_do_not_hide_each_other() -> None:
    """All that is against a plan is said at once."""
    seen = replace(_unsettled(GroupState.PREPARING), snapshot_at=NOW - 100)
    seen = replace(seen, pauses=(Pause(group=None, reason="", by="bob", at=NOW),))
    reasons = make_plan(replace(seen, storm=_storm()), wanted=5, now=NOW).refusals
    assert len(reasons) == 4
    assert "no reason given" in reasons[0]


def test_nothing_to_do_is_not_refused() -> None:
    """An empty plan holds no refusals: there is nothing to hold."""
    plan: Plan = make_plan(_paused(None), wanted=3, now=NOW)
    assert (plan.empty, plan.refusals) == (True, ())


@pytest.mark.parametrize(
    ("mode", "words"), [("observe", "in mode observe"), ("plan", "in mode plan"), ("act", None)]
)
def test_modes(mode: str, words: str | None) -> None:
    """Only mode act acts, and only where a worker is declared."""
    why = mode_refusal(spec(), mode)
    assert (why is None) if words is None else (why is not None and words in why)
    assert mode_refusal(spec().model_copy(update={"worker": None}), "act") is not None


def test_a_quarantined_slot_is_not_touched() -> None:
    """Steps made before a slot was quarantined do not touch it after."""
    steps = make_plan(state_snapshot(held=3), wanted=5, now=NOW).steps
    targets = SlotTargets(
        group=GROUP, version=3, open=frozenset({0, 1, 2}), quarantined=frozenset({4})
    )
    reasons = refusals(replace(state_snapshot(held=3), targets=targets), NOW, steps=steps)
    assert len(reasons) == 1
    assert "orders-4 is quarantined" in reasons[0]


# --- what brokers would refuse -----------------------------------------------------------------

RANGE = {"assignor": "range"}
BOUNDS = BrokerLimits(least_session=6.0, longest_session=60.0)


def told(seen: StateSnapshot, limits: BrokerLimits, *, wanted: int, roll: bool = False) -> str:
    plan = make_plan(seen, wanted=wanted, now=NOW, force_roll=roll)
    return " ".join(broker_limit_refusals(seen, plan, limits))


def session(length: str) -> dict[str, Any]:
    return {**RANGE, "session_timeout": length, "heartbeat_interval": "1s"}


@pytest.mark.parametrize(
    ("length", "limits", "words"),
    [
        ("90s", BOUNDS, "is 90 s, but the brokers allow at most 60 s (group.max.session"),
        ("20s", replace(BOUNDS, least_session=30.0), "allow at least 30 s (group.min.session"),
        ("20s", replace(BOUNDS, least_session=20.0), None),
        ("60s", BOUNDS, None),
        ("90s", UNKNOWN, None),
    ],
)
def test_a_session_out_of_bounds(length: str, limits: BrokerLimits, words: str | None) -> None:
    """All would leave before the first is refused."""
    before, after = spec(worker=RANGE), spec(worker=session(length))
    seen = state_snapshot(after, held=3, runs=(before, "code"))
    assert StepKind.STOP_ALL in {s.kind for s in make_plan(seen, wanted=3, now=NOW).steps}
    sentence = told(seen, limits, wanted=3)
    assert words in sentence if words else sentence == ""


def test_a_leave_is_refused_to_nobody() -> None:
    """It is how a fleet with such a session gets out of it."""
    seen = state_snapshot(spec(worker=session("90s")), held=3)
    assert told(seen, BOUNDS, wanted=1) == ""
    assert told(seen, BOUNDS, wanted=4) != ""


@pytest.mark.parametrize(
    ("worker", "limits", "name"),
    [
        (RANGE, BrokerLimits(classic_members=4), "group.max.size"),
        ({"protocol": "consumer"}, BrokerLimits(consumer_members=4), "group.consumer.max.size"),
    ],
)
def test_members_that_are_too_many(worker: dict, limits: BrokerLimits, name: str) -> None:
    """Each protocol has its bound; as many as are allowed are allowed."""
    seen = state_snapshot(spec(worker=worker), held=2)
    assert told(seen, limits, wanted=4) == ""
    sentence = told(seen, limits, wanted=5)
    assert f"would have 5 members, but the brokers allow 4 ({name})" in sentence
    other = BrokerLimits(
        classic_members=limits.consumer_members, consumer_members=limits.classic_members
    )
    assert told(seen, other, wanted=5) == ""


def test_other_peoples_members_count() -> None:
    """They have a place each."""
    seen = state_snapshot(spec(worker=RANGE), held=2)
    assert seen.group is not None
    both = (*seen.members(), member("theirs", instance_id=None))
    crowded = replace(seen, group=group_of(both, assignor="range"))
    limits = BrokerLimits(classic_members=4)
    assert told(crowded, limits, wanted=3) == ""
    assert "5 members" in told(crowded, limits, wanted=4)


@pytest.mark.parametrize(("membership", "most"), [("static", 3), ("dynamic", 4)])
def test_a_rolling_batch_needs_room(membership: str, most: int) -> None:
    """Dynamic members join beside those that they replace; static ones replace them."""
    worker = {**RANGE, "membership": membership}
    seen = state_snapshot(spec(worker=worker), held=3, runs=(spec(worker=worker), "old"))
    assert told(seen, BrokerLimits(classic_members=most), wanted=3) == ""
    assert told(seen, BrokerLimits(classic_members=most - 1), wanted=3) != ""


def test_a_leave_comes_before() -> None:
    """Who has left takes no place; a group that is stopped first is filled anew."""
    after = spec(worker=session("30s"))
    seen = state_snapshot(after, held=(2, 3), runs=(spec(worker=RANGE), "code"))
    assert told(seen, BrokerLimits(classic_members=2), wanted=2) == ""


def test_a_leave_of_nobody_costs_nothing() -> None:
    """Nobody joined, as brokers refuse them: the way out of it is not held to a rebalance."""
    before, after = spec(worker=session("30s")), spec(worker=RANGE)
    seen = replace(state_snapshot(after, held=2, runs=(before, "code")), group=group_of(()))
    stop, *_ = make_plan(seen, wanted=2, now=NOW).steps
    assert (stop.kind, str(stop.expected_cost.rebalances_min)) == (StepKind.STOP_ALL, "0")
    there = state_snapshot(after, held=2, runs=(before, "code"))
    assert make_plan(there, wanted=2, now=NOW).steps[0].expected_cost.rebalances_min == 1
    fewer = make_plan(replace(state_snapshot(held=2), group=group_of(())), wanted=1, now=NOW)
    assert [s.expected_cost.rebalances_min for s in fewer.steps if s.kind is StepKind.LEAVE] == [0]


def test_changes_that_only_warm_do_not_count_for_the_budget() -> None:
    """They cost no rebalance."""
    seen = state_snapshot(held=3)
    opened = _change(ChangeState.DONE, seen)
    warmed = replace(
        opened,
        started_at=NOW,
        plan=replace(opened.plan, steps=(replace(opened.plan.steps[0], kind=StepKind.WARM),)),
    )
    fleet: Any = SimpleNamespace(readable_changes=lambda _, limit: (warmed, opened)[:limit])
    policy = {"policy": "lag", "records_per_worker": 100}
    assert _changed_at(fleet, spec(scaling={**policy, "changes_per_hour": 1})) == (NOW - 30,)
    assert _changed_at(fleet, spec(scaling=policy)) == ()


@pytest.mark.parametrize(
    ("most", "running", "refused"),
    [
        pytest.param(None, ["a", "b", "c"], "", id="no-budget"),
        pytest.param(3, ["a", "b"], "", id="one-left"),
        pytest.param(2, ["a", "b"], "2 groups are in change (a, b) and max", id="full"),
        pytest.param(1, ["c"], "1 group is in change (c) and max", id="one"),
        pytest.param(1, ["a", "b", "c", "d"], "(a, b, c and others)", id="more-than-allowed"),
        pytest.param(1, [GROUP], "", id="its-own-change-is-another-reason"),
        pytest.param(1, ["undeclared"], "", id="of-no-declared-group"),
    ],
)
def test_a_cluster_has_a_budget_of_groups_in_change(
    most: int | None, running: list[str], refused: str
) -> None:
    """By the changes in the store: those that have ended do not count."""
    clock = ManualClock(NOW)
    store = Store(MemoryBackend(Memory(), clock=clock), clock=clock)
    groups = [GROUP, "a", "b", "c", "d"]
    declared = fleet_spec(*({"group": name, "topics": ["t"]} for name in groups))
    declared = declared.model_copy(update={"max_groups_in_change": most})
    plan = make_plan(state_snapshot(held=3), wanted=5, now=NOW)
    for name in {*groups, *running}:
        begun = store.begin_change(
            replace(plan, group=name), actor="ann", started_at=NOW, lease=10.0
        )
        assert begun is not None
        if name not in running:
            store.advance(replace(begun, state=ChangeState.DONE))
    fleet: Any = SimpleNamespace(spec=declared, readable_changes=store.changes)
    told = " ".join(_full_budget(fleet, plan))
    assert refused in told
    assert bool(told) == bool(refused)
    assert _full_budget(fleet, replace(plan, steps=())) == ()
