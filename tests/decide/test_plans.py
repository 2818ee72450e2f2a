"""Plans: which steps, in which order, at which expected cost, and when there is none."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.config.spec import GroupSpec
from fleet.decide.adopted import approval_mismatch
from fleet.decide.plans import make_drain_plan, make_plan
from fleet.decide.state_snapshot import StateSnapshot
from fleet.model import Plan, StepKind, TopicPartition
from fleet.slots import ChangeState, Phase, Slot, SlotTargets, StoppedPartition
from tests.decide.worlds import GROUP, NOW, member, revision, spec, state_snapshot, without_owner
from tests.support.plans import change_of


def kinds(plan: Plan) -> list[str]:
    """The steps in short: kind and slots."""
    return [f"{s.kind.value} {','.join(map(str, s.slots))}".strip() for s in plan.steps]


def expected_costs(plan: Plan) -> list[str]:
    """The expected cost of each step as it is shown."""
    return [str(step.expected_cost) for step in plan.steps]


RANGE = {"assignor": "range"}
KIP848 = {"protocol": "consumer"}
PROGRAM = {"command": ["app"], "entrypoint": ""}
"""Programs start at different speeds, so that several may need a second rebalance."""


@pytest.mark.parametrize(
    ("worker", "held", "wanted", "steps", "expected_cost"),
    [
        pytest.param({}, 0, 3, ["open 0,1,2"], ["1"], id="coop-from-empty"),
        pytest.param(RANGE, 0, 3, ["open 0,1,2"], ["1"], id="range-from-empty"),
        pytest.param(KIP848, 0, 3, ["open 0,1,2"], ["1-2"], id="848-from-empty"),
        pytest.param({}, 2, 6, ["open 2,3,4,5"], ["1-2"], id="coop-up"),
        pytest.param(RANGE, 2, 6, ["open 2,3,4,5"], ["1"], id="range-up"),
        pytest.param(KIP848, 2, 6, ["open 2,3,4,5"], ["1-2"], id="848-up"),
        pytest.param(PROGRAM, 2, 6, ["open 2,3,4,5"], ["1-2"], id="program-up"),
        pytest.param(PROGRAM, 2, 3, ["open 2"], ["1"], id="program-up-by-one"),
        pytest.param(PROGRAM, 6, 3, ["leave 3,4,5"], ["1"], id="program-down"),
        pytest.param({}, 6, 3, ["leave 3,4,5"], ["1-2"], id="coop-down"),
        pytest.param(RANGE, 6, 3, ["leave 3,4,5"], ["1"], id="range-down"),
        pytest.param(KIP848, 6, 3, ["leave 3,4,5"], ["1"], id="848-down"),
        pytest.param({}, 4, 0, ["leave 0,1,2,3"], ["1"], id="all-leave"),
        pytest.param(KIP848, 4, 0, ["leave 0,1,2,3"], ["0-1"], id="848-all-leave"),
        pytest.param({}, 4, 4, [], [], id="nothing-differs"),
        pytest.param({}, 0, 0, [], [], id="nothing-wanted"),
    ],
)
def test_scaling(worker: dict, held: int, wanted: int, steps: list, expected_cost: list) -> None:
    """Several slots come or go in one step, at the expected cost that the assignor makes it."""
    plan = make_plan(state_snapshot(spec(worker=worker), held=held), wanted=wanted, now=NOW)
    assert (kinds(plan), expected_costs(plan), plan.refusals) == (steps, expected_cost, ())


ALONE = "one slot opens before the others"


@pytest.mark.parametrize(
    ("delay", "worker", "held", "steps", "expected_cost"),
    [
        pytest.param(0.0, {}, 0, ["open 0", "open 1,2"], ["1", "1-2"], id="coop"),
        pytest.param(0.0, RANGE, 0, ["open 0", "open 1,2"], ["1", "1"], id="range"),
        pytest.param(0.0, KIP848, 0, ["open 0,1,2"], ["1-2"], id="848"),
        pytest.param(3.0, {}, 0, ["open 0,1,2"], ["1"], id="brokers-wait"),
        pytest.param(0.0, RANGE, 1, ["open 1,2"], ["1"], id="beside-a-member"),
    ],
)
def test_where_brokers_wait_for_nobody_the_first_is_alone(
    delay: float, worker: dict, held: int, steps: list[str], expected_cost: list[str]
) -> None:
    """They assign an empty group to the first member, so that comes before the others."""
    seen = replace(state_snapshot(spec(worker=worker), held=held), initial_delay=delay)
    plan = make_plan(seen, wanted=3, now=NOW)
    assert (kinds(plan), expected_costs(plan)) == (steps, expected_cost)
    assert any(ALONE in note for note in plan.notes) is (len(steps) == 2)


def test_a_group_that_is_stopped_begins_with_one_alone() -> None:
    """What the first is given moves to the others, by its owner before."""
    seen = state_snapshot(spec(worker=RANGE), held=3, runs=(spec(), "code"))
    plan = make_plan(replace(seen, initial_delay=0.0), wanted=3, now=NOW)
    assert kinds(plan) == ["stop all 0,1,2", "open 0", "open 1,2"]
    assert [step.expected_cost.moved_max for step in plan.steps][2] == 8


@pytest.mark.parametrize(
    ("held", "wanted", "steps"),
    [
        pytest.param(3, 3, ["roll 0,1,2"], id="equal"),
        pytest.param(3, 5, ["roll 0,1,2", "open 3,4"], id="roll-before-opening"),
        pytest.param(5, 3, ["leave 3,4", "roll 0,1,2"], id="leave-before-rolling"),
        pytest.param(5, 0, ["leave 0,1,2,3,4"], id="no-roll-before-all-leave"),
    ],
)
def test_new_code_rolls(held: int, wanted: int, steps: list[str]) -> None:
    """New code rolls at no rebalance; only what stays or was there before is rolled."""
    fleet = spec()
    seen = state_snapshot(fleet, held=held, runs=(fleet, "old code"))
    plan = make_plan(seen, wanted=wanted, now=NOW)
    assert kinds(plan) == steps
    rolls = [s for s in plan.steps if s.kind is StepKind.ROLL]
    assert all(str(s.expected_cost) == "0" and s.expected_cost.moved_max == 0 for s in rolls)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(RANGE, {"assignor": "cooperative-sticky"}, id="assignor"),
        pytest.param({}, KIP848, id="protocol"),
        pytest.param({"session_timeout": "60s"}, {}, id="session-timeout"),
        pytest.param({"membership": "dynamic"}, {}, id="membership"),
    ],
)
def test_what_cannot_share_a_generation_stops_all(old: dict, new: dict) -> None:
    """Assignor, protocol, session timeout and membership stop all, then open anew [23]."""
    seen = state_snapshot(spec(worker=new), held=4, runs=(spec(worker=old), "code"))
    plan = make_plan(seen, wanted=2, now=NOW)
    assert kinds(plan) == ["stop all 0,1,2,3", "open 0,1"]
    assert plan.steps[0].expected_cost.rebalances_max == 1
    assert plan.refusals == ()


@pytest.mark.parametrize(
    ("worker", "held", "wanted", "steps", "expected_cost"),
    [
        pytest.param({}, 3, 3, ["roll 0,1,2", "rejoin 0"], ["0", "1-2"], id="own-rebalance"),
        pytest.param(RANGE, 3, 3, ["roll 0,1,2", "rejoin 0"], ["0", "1"], id="own-range"),
        pytest.param({}, 1, 1, ["roll 0", "rejoin 0"], ["0", "2"], id="alone-costs-two"),
        pytest.param({}, 3, 5, ["roll 0,1,2", "open 3,4"], ["0", "1-2"], id="the-joins-do-it"),
        pytest.param({}, 5, 3, ["roll 0,1,2", "leave 3,4"], ["0", "1-2"], id="the-leave-does-it"),
        pytest.param(KIP848, 3, 3, ["roll 0,1,2"], ["1-3"], id="848-by-itself"),
    ],
)
def test_new_topics(worker: dict, held: int, wanted: int, steps: list, expected_cost: list) -> None:
    """New topics roll, and one rebalance gives them out: one that comes anyway, else a rejoin."""
    new = spec(worker=worker, topics=["orders", "returns"])
    seen = state_snapshot(
        new, held=held, runs=(spec(worker=worker), "code"), topics={"orders": 12, "returns": 6}
    )
    plan = make_plan(seen, wanted=wanted, now=NOW)
    assert (kinds(plan), expected_costs(plan)) == (steps, expected_cost)


def test_a_rejoin_that_was_left_out_is_made_up_for() -> None:
    """A change that rolled to new topics and ended before its rejoin leaves it to the next plan."""
    new = spec(topics=["orders", "returns"])
    topics = {"orders": 12, "returns": 6}
    rolling = make_plan(
        state_snapshot(new, held=3, runs=(spec(), "code"), topics=topics), wanted=3, now=NOW
    )
    change = change_of(rolling, ChangeState.FAILED, step=1, started_at=NOW)
    rolled = state_snapshot(new, held=3, topics=topics)
    assert kinds(make_plan(replace(rolled, change=change), wanted=3, now=NOW)) == ["rejoin 0"]
    done = replace(change, state=ChangeState.DONE, step=2)
    assert make_plan(replace(rolled, change=done), wanted=3, now=NOW).empty


def test_a_removed_topic_that_is_owned_still_is_let_go() -> None:
    """Whatever was changed since the rejoin was left out: else it is read for ever, unseen."""
    both, topics = spec(topics=["orders", "returns"]), {"orders": 12, "returns": 6}
    before = state_snapshot(both, held=3, topics=topics)
    fewer = state_snapshot(spec(), held=3, topics=topics)
    code = make_plan(state_snapshot(spec(), held=3, runs=(spec(), "old")), wanted=3, now=NOW)
    done = change_of(code, ChangeState.DONE, started_at=NOW, step=1)
    rolled = replace(fewer, group=before.group, change=done)
    assert kinds(make_plan(rolled, wanted=3, now=NOW)) == ["rejoin 0"]
    assert kinds(make_plan(rolled, wanted=4, now=NOW)) == ["open 3"], "the join does it"
    assert make_plan(replace(fewer, change=done), wanted=3, now=NOW).empty
    gone = replace(before, topics={"orders": 12})
    assert make_plan(replace(gone, spec=both), wanted=3, now=NOW).refusals, "deleted, not removed"
    assert "rejoin 0" not in kinds(make_plan(replace(gone, spec=both), wanted=3, now=NOW))


def test_a_member_that_owns_only_what_is_gone_joins_again() -> None:
    """A topic recreated with fewer partitions: a sticky assignor goes on giving out the others."""
    seen = state_snapshot(held=3, topics={"orders": 6})
    assert seen.group is not None

    def owning(*parts: tuple[int, ...]) -> StateSnapshot:
        owned = [frozenset(TopicPartition("orders", n) for n in each) for each in parts]
        members = tuple(
            replace(member, partitions=mine)
            for member, mine in zip(seen.members(), owned, strict=True)
        )
        group = replace(seen.group, members=members)
        return replace(seen, group=group, topics={"orders": 3})

    assert kinds(make_plan(owning((0, 1), (2, 3), (4, 5)), wanted=3, now=NOW)) == ["rejoin 2"]
    assert make_plan(owning((0, 3), (1, 4), (2, 5)), wanted=3, now=NOW).empty, "nobody has two"
    assert make_plan(owning((0, 1), (2, 3), ()), wanted=3, now=NOW).empty, "it has none of them"
    deleted = replace(owning((0, 1), (2, 3), (4, 5)), topics={})
    assert "rejoin 2" not in kinds(make_plan(deleted, wanted=3, now=NOW))


def test_dynamic_members_pay_per_rolling_batch() -> None:
    """Rolling dynamic members is priced by rolling batches of max_parallel, and said so."""
    fleet = spec(worker={"membership": "dynamic"}, rollout={"max_parallel": 2})
    plan = make_plan(state_snapshot(fleet, held=5, runs=(fleet, "old")), wanted=5, now=NOW)
    assert kinds(plan) == ["roll 0,1,5,6", "roll 2,3,0,1", "roll 4,2"]
    assert expected_costs(plan) == ["2-3", "2-3", "2-3"]
    assert "rolling batch 1 of 3: one join of 2 dynamic members" in plan.steps[0].expected_cost.note
    assert any(
        "3 rolling batches of up to 2 members" in n and "6 to 9 rebalances" in n for n in plan.notes
    )


def test_dynamic_members_with_room_for_all_roll_in_one_rolling_batch() -> None:
    """With max_parallel = N a whole fleet is one join and one leave; range needs exactly 2."""
    fleet = spec(worker={"membership": "dynamic", **RANGE}, rollout={"max_parallel": 4})
    plan = make_plan(state_snapshot(fleet, held=4, runs=(fleet, "old")), wanted=6, now=NOW)
    assert kinds(plan) == ["roll 0,1,2,3,4,5,6,7", "open 0,1"]
    assert expected_costs(plan) == ["2", "1"]
    down = make_plan(state_snapshot(fleet, held=4, runs=(fleet, "old")), wanted=2, now=NOW)
    assert kinds(down) == ["leave 2,3", "roll 0,1,2,3"]
    assert expected_costs(down) == ["1", "2"]


def after_an_aborted_rolling_batch(membership: str = "dynamic", **slot: Any) -> StateSnapshot:
    """Two members of old code; slot 2 has come for them, and none has left."""
    fleet = spec(worker={"membership": membership})
    seen = state_snapshot(fleet, held=3, runs=(fleet, "old"))
    came = replace(seen.slots[2], revision=revision(fleet), **slot)
    return replace(seen, slots=(*seen.slots[:2], came))


@pytest.mark.parametrize(
    "slot",
    [
        pytest.param({"batches": 2}, id="too few batches"),
        pytest.param({"batches": 9, "error": "bad code"}, id="fails"),
        pytest.param({"batches": 9, "phase": Phase.DRAINING}, id="drains"),
    ],
)
def test_a_member_of_a_rolling_batch_that_was_given_up_leaves_where_it_has_proven_nothing(
    slot: Any,
) -> None:
    """It would take partitions from those that work."""
    plan = make_plan(after_an_aborted_rolling_batch(**slot), wanted=2, now=NOW)
    assert kinds(plan) == ["leave 2", "roll 0,2", "roll 1,0"]


def test_a_proven_member_of_a_rolling_batch_that_was_given_up_stays() -> None:
    """An old one leaves instead; together they cost what the whole roll would have cost."""
    seen = after_an_aborted_rolling_batch(batches=9)
    assert kinds(make_plan(seen, wanted=2, now=NOW)) == ["leave 1", "roll 0,1"]
    assert kinds(make_plan(seen, wanted=1, now=NOW)) == ["leave 0,1"]
    forced = make_plan(seen, wanted=2, now=NOW, force_roll=True)
    assert kinds(forced) == ["leave 2", "roll 0,2", "roll 1,0"]
    static = make_plan(after_an_aborted_rolling_batch("static", batches=9), wanted=2, now=NOW)
    assert kinds(static) == ["leave 2", "roll 0,1"], "whose roll costs nothing"


def test_without_old_code_the_highest_leave_whatever_they_have_done() -> None:
    """Numbers stay together."""
    fleet = spec(worker={"membership": "dynamic"})
    seen = state_snapshot(fleet, held=3)
    slots = (replace(seen.slots[0], batches=0), *(replace(s, batches=9) for s in seen.slots[1:]))
    assert kinds(make_plan(replace(seen, slots=slots), wanted=2, now=NOW)) == ["leave 2"]


def test_new_slots_take_the_lowest_free_numbers() -> None:
    """Numbers are filled from below; a quarantined one is never taken."""
    seen = state_snapshot(held=(1, 4))
    targets = replace(seen.targets, quarantined=frozenset({2}))
    plan = make_plan(replace(seen, targets=targets), wanted=5, now=NOW)
    assert kinds(plan) == ["open 0,3,5"]
    assert any("slot 2 is quarantined" in note for note in plan.notes)


def test_wanted_is_capped_with_a_reason() -> None:
    """More slots than partitions would idle: capped, and the plan says why."""
    fleet = spec(worker=RANGE, topics=["orders", "returns"])
    plan = make_plan(state_snapshot(fleet, topics={"orders": 12, "returns": 4}), wanted=20, now=NOW)
    assert plan.wanted == 12
    assert "capped at 12: range assigns no more members than the 12 partitions" in plan.notes[0]
    few = make_plan(state_snapshot(spec(replicas={"max": 3})), wanted=20, now=NOW)
    assert few.wanted == 3
    assert "replicas.max is 3" in few.notes[0]


def test_no_slot_is_opened_that_has_no_lease() -> None:
    """On Kubernetes replicas.max Leases are rendered: beyond them nobody stands in for a slot that
    is quarantined, and a change that opened one would wait in vain, again and again.
    """
    pods = {"kind": "kubernetes"}
    full, room, local = (
        spec(replicas={"max": most}, **more)
        for most, more in ((3, {"runtime": pods}), (5, {"runtime": pods}), (3, {}))
    )

    def opened(fleet: GroupSpec, *shut: int) -> tuple[list[str], Plan]:
        seen = state_snapshot(fleet, held=3)
        targets = replace(seen.targets, quarantined=frozenset(shut))
        plan = make_plan(replace(seen, targets=targets), wanted=3, now=NOW)
        return [step for step in kinds(plan) if step.startswith("open")], plan

    opens, plan = opened(full, 2)
    assert (opens, plan.wanted) == ([], 2)
    assert "capped at 2: replicas.max is 3, and slot 2 is quarantined" in plan.notes[0]
    assert opened(full)[1].wanted == 3
    assert opened(room, 2)[0] == opened(local, 2)[0] == ["open 3"]


def test_standbys_alone_are_a_step_at_no_expected_cost() -> None:
    """Where only standbys differ, WARM; a worker in a short restart is no difference."""
    seen = state_snapshot(held=3)
    fewer = replace(seen, processes=seen.processes[:-1])
    plan = make_plan(fewer, wanted=3, now=NOW)
    assert (kinds(plan), expected_costs(plan)) == (["warm"], ["0"])
    assert "1 worker started" in plan.steps[0].sentence
    restarting = [*seen.processes[:-1], replace(seen.processes[-1], running=False, restarts=1)]
    assert make_plan(replace(seen, processes=tuple(restarting)), wanted=3, now=NOW).empty
    unhealthy = [*seen.processes[:-1], replace(seen.processes[-1], running=False, restarts=5)]
    assert kinds(make_plan(replace(seen, processes=tuple(unhealthy)), wanted=3, now=NOW)) == [
        "warm"
    ]


def test_a_slot_nobody_can_take_is_repaired_first() -> None:
    """A scale that waits for an absent member would wait for ever where no worker is left."""
    seen = without_owner(state_snapshot(spec(replicas={"standby": 0, "max": 50}), held=3), 1)
    processes = tuple(p for p in seen.processes if p.name != "w1")
    plan = make_plan(replace(seen, processes=processes), wanted=5, now=NOW)
    assert kinds(plan) == ["warm"]
    assert plan.refusals == ()
    assert any("open follows" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        pytest.param({"replicas": {"standby": 0}}, "standby is 0", id="no-standby"),
        pytest.param(
            {"create": {"partitions": 6}, "topics": ["new"]}, "Fleet creates new", id="new"
        ),
    ],
)
def test_promises_that_do_not_hold_are_said(change: dict, note: str) -> None:
    """What a promise does not cover is said before anything is done."""
    plan = make_plan(state_snapshot(spec(**change)), wanted=1, now=NOW)
    assert not plan.refusals
    assert any(note in each for each in plan.notes)


def test_notes_name_strangers_poison_and_unreadable_records() -> None:
    """Other people's members, stopped partitions and unreadable records are named."""
    seen = state_snapshot(held=2)
    external_members = (
        member("theirs-1"),
        member("x", member_id="consumer-9", instance_id=None, client_id="sarama"),
    )
    mark = StoppedPartition(
        group=GROUP,
        tp=TopicPartition("orders", 3),
        offset=17,
        error="bad JSON",
        attempts=3,
        revision="r",
        at=NOW,
    )
    odd = replace(
        seen,
        group=replace(seen.group, members=(*seen.group.members, *external_members)),
        stopped_partitions=(mark,),
        readable_log=False,
    )
    plan = make_plan(odd, wanted=3, now=NOW)
    text = " | ".join(plan.notes)
    for part in ("theirs-1", "sarama@/10.0.0.1", "orders-3 is stopped at offset 17", "unverified"):
        assert part in text
    assert plan.steps[0].expected_cost.moved_min is None


def test_an_unmanaged_group_has_no_steps() -> None:
    """A group without a worker is observed: no steps, and a note."""
    fleet = spec().model_copy(update={"worker": None})
    seen = replace(state_snapshot(), spec=fleet)
    plan = make_plan(seen, wanted=4, now=NOW)
    assert plan.empty
    assert "only observes it" in plan.notes[0]


def test_a_plans_id_is_of_what_it_saw_and_does() -> None:
    """A→B→A are three ids [35]; a later look at the same world has the same hash."""
    seen = state_snapshot(held=2)
    first = make_plan(seen, wanted=3, now=NOW)
    assert first.id == make_plan(replace(seen, snapshot_at=NOW - 2), wanted=3, now=NOW + 0.2).id
    assert first.id.startswith("main_orders_")
    assert "-19700112T134640-" in first.id
    later = make_plan(seen, wanted=3, now=NOW + 60)
    assert later.id != first.id
    assert approval_mismatch(first.id, later) is None
    others = (
        make_plan(seen, wanted=4, now=NOW),
        make_plan(seen, wanted=3, now=NOW, force_roll=True),
        make_plan(state_snapshot(held=3), wanted=3, now=NOW),
        make_plan(replace(seen, revision="another"), wanted=3, now=NOW),
        make_plan(replace(seen, topics={"orders": 13}), wanted=3, now=NOW),
        make_drain_plan(seen, slots=(0,), now=NOW),
        make_drain_plan(seen, slots=(1,), now=NOW),
    )
    for other in others:
        why = approval_mismatch(first.id, other)
        assert why is not None
        assert f"has changed since plan {first.id}, so nothing was done" in why
        assert other.steps[0].sentence in why if other.steps else "nothing" in why
        assert other.id in why
    assert len({first.id, *(other.id for other in others)}) == 8


@pytest.mark.parametrize(
    "name", ["", "orders", "main_orders_00000000-19700112T134640-0123456789ab"]
)
def test_an_id_of_another_group_is_named_as_such(name: str) -> None:
    """A slip of the hand is told apart from a world that has changed."""
    plan = make_plan(state_snapshot(held=2), wanted=3, now=NOW)
    assert f"{name!r} is not a plan of group orders" in str(approval_mismatch(name, plan))


def test_draining_takes_exactly_the_named_slots() -> None:
    """Drain lets the named slots leave together and names those that are not open."""
    plan = make_drain_plan(state_snapshot(held=4), slots=(0, 2, 9), now=NOW)
    assert (kinds(plan), plan.wanted) == (["leave 0,2"], 2)
    assert any("slot 9: not open" in note for note in plan.notes)
    assert make_drain_plan(state_snapshot(held=1), slots=(5,), now=NOW).empty


def test_range_moves_are_exact_and_ordered_by_bytes() -> None:
    """orders-10 sorts before orders-2, so adding it moves what a count would not tell."""
    fleet = spec(worker=RANGE)
    plan = make_plan(state_snapshot(fleet, held=2), wanted=3, now=NOW)
    # 0-5 | 6-11 becomes 0-3 | 4-7 | 8-11: 4, 5 and 8 to 11 have new owners.
    assert (plan.steps[0].expected_cost.moved_min, plan.steps[0].expected_cost.moved_max) == (6, 6)
    # With the tenth after orders-1, only 2, 4 and 5 move; after orders-9 nearly all would.
    ten = make_plan(state_snapshot(fleet, held=10, topics={"orders": 22}), wanted=11, now=NOW)
    assert ten.steps[0].expected_cost.moved_min == 3


def test_sticky_moves_are_what_balance_demands() -> None:
    """Two members of 6 become three of 4: at least 4 partitions move."""
    plan = make_plan(state_snapshot(held=2), wanted=3, now=NOW)
    assert (plan.steps[0].expected_cost.moved_min, plan.steps[0].expected_cost.moved_max) == (
        4,
        None,
    )
    down = make_plan(state_snapshot(held=3), wanted=2, now=NOW)
    assert down.steps[0].expected_cost.moved_min == 4


def test_settings_that_are_lost_are_said() -> None:
    """A revision whose settings are gone cannot be compared: it rolls, with the risk named."""
    fleet = spec()
    seen = replace(state_snapshot(fleet, held=2, runs=(fleet, "old")), published={})
    plan = make_plan(seen, wanted=2, now=NOW)
    assert kinds(plan) == ["roll 0,1"]
    assert any("cannot read the settings" in note for note in plan.notes)


@given(
    held=st.integers(0, 8),
    wanted=st.integers(0, 20),
    joining=st.integers(0, 8),
    code=st.sampled_from(["code", "old"]),
    worker=st.sampled_from([{}, RANGE, KIP848, {"membership": "dynamic"}]),
    ran=st.sampled_from([{}, RANGE, KIP848]),
    force=st.booleans(),
)
def test_plans_hold_their_invariants(
    *, held: int, wanted: int, joining: int, code: str, worker: dict, ran: dict, force: bool
) -> None:
    """Whatever the world: the steps lead to what is wanted, expected costs are bounded, nothing
    joins.
    """
    fleet, before = spec(worker=worker), spec(worker=ran)
    seen = state_snapshot(fleet, held=held, runs=(before, code))
    slots = tuple(replace(s, phase=Phase.JOINING) if s.number == joining else s for s in seen.slots)
    plan = make_plan(replace(seen, slots=slots), wanted=wanted, now=NOW, force_roll=force)

    opened = set(range(held))
    for step in plan.steps:
        assert 0 <= step.expected_cost.rebalances_min <= step.expected_cost.rebalances_max
        assert step.sentence
        if step.kind is StepKind.OPEN:
            assert not opened & set(step.slots)
            opened |= set(step.slots)
        if step.kind in {StepKind.LEAVE, StepKind.STOP_ALL}:
            assert set(step.slots) <= opened
            opened -= set(step.slots)
            assert joining not in step.slots or joining >= held or plan.refusals
    assert len(opened) == plan.wanted == min(wanted, 12)
    unchanged = revision(before, code) == revision(fleet) or held == 0
    if unchanged and plan.wanted == held and not force:
        assert plan.empty
        assert plan.notes
    static = worker.get("membership") != "dynamic"
    rolls = [s for s in plan.steps if s.kind is StepKind.ROLL]
    assert all(s.expected_cost.rebalances_max == 0 for s in rolls) or not static


def test_free_slots_without_a_owner_do_not_roll() -> None:
    """A slot that never had an owner has no code to replace."""
    seen = state_snapshot(held=2)
    targets = SlotTargets(group=GROUP, version=2, open=frozenset({0, 1, 2}))
    fresh = Slot(group=GROUP, number=2)
    plan = make_plan(replace(seen, targets=targets, slots=(*seen.slots, fresh)), wanted=3, now=NOW)
    assert plan.empty
