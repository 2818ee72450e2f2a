"""Plans for other people's consumers: a range, and what a roll of theirs will cost."""

import random
from dataclasses import replace

import pytest

from fleet.config.spec import FleetSpec, GroupSpec, LagScaling
from fleet.decide.adopted import (
    MEMBERS,
    Adopted,
    count_by_deployment,
    is_member_of,
    make_adopted_plan,
)
from fleet.decide.alternatives import with_adopted_costs
from fleet.decide.refusals import refusals
from fleet.decide.scaling import ScalingMemory, wanted_slots
from fleet.decide.state_snapshot import NO_CONCERNS, StateSnapshot, Vetoes
from fleet.model import ExpectedCost, GroupSnapshot, GroupState, Plan, StepKind, TopicPartition
from fleet.slots import Pause, SlotTargets
from tests.support.seen_groups import group_seen, member_seen, partition_seen

SPEC = GroupSpec.model_validate(
    {
        "group": "billing",
        "topics": ["orders"],
        "runtime": {"kind": "kubernetes", "namespace": "billing", "deployment": "billing"},
    }
)


def group(*instances: str | None, state: GroupState = GroupState.STABLE) -> GroupSnapshot:
    """Members at 10.0.0.0 and up."""
    members = tuple(
        member_seen(f"m{n}", instance_id=name, host=f"/10.0.0.{n}")
        for n, name in enumerate(instances)
    )
    return group_seen("billing", members=members, state=state)


def adopted(replicas: int, *, one_by_one: bool = True) -> Adopted:
    """Pods at 10.0.0.0 and up."""
    return Adopted(
        name="billing",
        replicas=replicas,
        ready=replicas,
        addresses={f"pod-{n}": f"10.0.0.{n}" for n in range(replicas)},
        one_by_one=one_by_one,
    )


def plan(
    seen: GroupSnapshot | None, deployment: Adopted, wanted: int | None, why: str = ""
) -> Plan:
    """At a fixed moment."""
    return make_adopted_plan(
        spec=SPEC,
        cluster="main",
        group=seen,
        adopted=deployment,
        wanted=wanted,
        snapshot_at=1000.0,
        now=1001.0,
        why=why,
    )


@pytest.mark.parametrize(
    ("instances", "wanted", "kind", "expected_cost"),
    [
        pytest.param([None] * 3, 1, StepKind.LEAVE, "1-2", id="down"),
        pytest.param([None] * 3, 0, StepKind.LEAVE, "1-3", id="to-none"),
        pytest.param(["a", "b", "c"], 1, StepKind.LEAVE, "1-2", id="static-down"),
        pytest.param([None] * 3, 5, StepKind.OPEN, "1-4", id="up"),
    ],
)
def test_scaling_is_one_step(
    instances: list[str | None], wanted: int, kind: StepKind, expected_cost: str
) -> None:
    """At the expected cost of a range: their protocol decides how many rounds their joins take."""
    made = plan(group(*instances), adopted(3), wanted)
    (step,) = made.steps
    assert (step.kind, str(step.expected_cost), made.wanted) == (kind, expected_cost, wanted)
    assert ("one request then removes" in step.sentence) == (
        instances[0] is not None and wanted < 3
    )
    assert not made.refusals


def test_what_a_roll_costs_is_always_told() -> None:
    """Also where nothing is to do."""
    idle = plan(group(None, None), adopted(2), None)
    assert idle.empty
    assert any("A roll of its 2 pods costs up to 4 rebalances" in note for note in idle.notes)
    at_once = plan(group(None, None), adopted(2, one_by_one=False), None)
    assert any("2 rebalances and a standstill" in note for note in at_once.notes)
    named = plan(group("a", "b"), adopted(2), None)
    assert any("0 rebalances if each pod keeps its instance id" in n for n in named.notes)


def test_why_a_policy_scales_is_told() -> None:
    """In pods: there are no slots."""
    decided = wanted_slots(
        spec=SPEC.model_copy(update={"scaling": LagScaling(policy="lag", records_per_worker=10)}),
        group=replace(group(None, None), partitions=(partition_seen(0, 35),)),
        topics={"orders": 8},
        current=2,
        memory=ScalingMemory(),
        now=1.0,
        unit="pod",
    )
    assert decided.sentence == "35 records waiting, 10 per worker: from 2 to 4 pods"
    made = plan(group(None, None), adopted(2), decided.wanted, decided.sentence)
    assert made.notes[0] == decided.sentence
    assert made.steps[0].sentence == "Deployment billing gets 2 pods more, which join as they start"


def test_who_says_to_run_in_a_pod() -> None:
    """By address, or a pod's name in its ids; a name that only begins alike is another's."""
    (member,) = group(None).members
    elsewhere = replace(member, host="/192.0.2.7")
    there = adopted(3)
    assert is_member_of(member, there)
    assert not is_member_of(elsewhere, there)
    assert is_member_of(replace(elsewhere, client_id="pod-2"), there)
    assert is_member_of(replace(elsewhere, instance_id="pod-2-0"), there)
    assert not is_member_of(replace(elsewhere, client_id="pod-22"), there)
    seen = {"billing": group(None, None), "elsewhere": replace(group(None), members=(elsewhere,))}
    assert count_by_deployment(seen, [there]) == {"billing": {"billing": 2}}


def test_an_unsettled_group_is_left_alone() -> None:
    """So is one that somebody paused: whatever holds a step of ours holds theirs."""
    busy = group(None, None, state=GroupState.PREPARING)
    steps = plan(busy, adopted(2), 1).steps
    state_snapshot = StateSnapshot(
        spec=SPEC,
        mode="act",
        cluster="main",
        snapshot_at=1000.0,
        group=busy,
        topics={"orders": 8},
        targets=SlotTargets(group="billing"),
        slots=(),
        reports=(),
        processes=(),
        change=None,
        change_alive=None,
        pauses=(),
        stopped_partitions=(),
        revision=MEMBERS,
    )
    (why,) = refusals(state_snapshot, 1001.0, steps=steps)
    assert why.startswith("group billing is rebalancing (PreparingRebalance); wait until")
    hold = Pause(group=None, reason="a migration", by="ann", at=1.0)
    cooldown = replace(state_snapshot, group=group(None), pauses=(hold,))
    (why,) = refusals(cooldown, 1001.0, steps=steps)
    assert why.startswith("every group is paused by ann (a migration)")


def test_a_runtime_may_stand_against_a_plan() -> None:
    """Its refusals count where there is a step; its notes always."""
    vetoes = Vetoes(refusals=("an autoscaler",), notes=("held",))
    scaled, idle = plan(group(None), adopted(1), 2), plan(group(None), adopted(1), 1)
    assert vetoes.add_to(scaled).refusals == ("an autoscaler",)
    assert vetoes.add_to(idle).refusals == ()
    assert vetoes.add_to(idle).notes[-1] == "held"
    assert NO_CONCERNS.add_to(scaled) is scaled


def test_an_adopted_group_may_be_changed() -> None:
    """By its own mode; without a Deployment it is observed whatever the file says."""
    raw = {"cluster": {"bootstrap_servers": "kafka:9092"}, "mode": "act"}
    spec = FleetSpec.model_validate({**raw, "fleets": [SPEC.model_dump()]})
    assert spec.mode_of(spec.fleets[0]) == "act"
    without = SPEC.model_dump()
    without["runtime"]["deployment"] = None
    spec = FleetSpec.model_validate({**raw, "fleets": [without]})
    assert spec.mode_of(spec.fleets[0]) == "observe"


# --- what it will cost: within the promised range, or unsaid -----------------------------------


def owning(*instances: str | None, partitions: int = 12, **changes: str) -> GroupSnapshot:
    """A group whose members own partitions in turn."""
    seen = group(*instances)
    members = tuple(
        replace(
            member,
            partitions=frozenset(
                TopicPartition("orders", p) for p in range(n, partitions, len(instances))
            ),
        )
        for n, member in enumerate(seen.members)
    )
    return replace(seen, members=members, **{"type": "classic", "assignor": "range", **changes})


def expected_cost(seen: GroupSnapshot | None, pods: int, wanted: int) -> ExpectedCost:
    """Of the one step."""
    made: Plan = plan(seen, adopted(pods), wanted)
    costed = with_adopted_costs(made, seen, adopted(pods))
    assert costed.id == made.id
    return costed.steps[0].expected_cost


def test_it_lies_within_the_range() -> None:
    """Worlds from a seed, every protocol, static and dynamic."""
    rng = random.Random(6)
    for _ in range(40):
        pods, wanted = rng.randint(2, 6), rng.randint(1, 8)
        kind = rng.choice(["range", "roundrobin", "cooperative-sticky", "consumer"])
        kinds = {"type": "consumer", "assignor": "uniform"} if kind == "consumer" else {}
        static = rng.random() < 0.5
        names = [f"m-{n}" if static else None for n in range(pods)]
        if wanted == pods:
            continue
        seen = owning(*names, **({"assignor": kind} | kinds))
        expected = expected_cost(seen, pods, wanted)
        assert expected.rebalances_expected is not None, (kind, names, pods, wanted)
        promised = range(expected.rebalances_min, expected.rebalances_max + 1)
        assert expected.rebalances_expected in promised, (kind, names, pods, wanted)
        assert expected.settled_s is not None


def test_static_members_leave_in_one_request() -> None:
    """Dynamic ones by their own close."""
    named, unnamed = (
        expected_cost(owning("a", "b", "c"), 3, 1),
        expected_cost(owning(*[None] * 3), 3, 1),
    )
    assert (named.rebalances_expected, unnamed.rebalances_expected) == (1, 1)
    assert unnamed.settled_s is not None
    assert 1 < named.settled_s < 10, "not at the end of their sessions"


@pytest.mark.parametrize(
    ("seen", "pods", "wanted"),
    [
        pytest.param(None, 3, 1, id="no-group"),
        pytest.param(owning("a", "b", "c"), 2, 1, id="a-member-elsewhere"),
        pytest.param(owning("a", "b"), 3, 1, id="a-pod-without"),
        pytest.param(owning("a", "b", assignor="stream"), 2, 1, id="not-modelled"),
        pytest.param(owning("a", "b", type="share"), 2, 1, id="no-consumers"),
        pytest.param(owning("a", "b"), 2, 0, id="nobody-stays"),
        pytest.param(owning("a", "b", partitions=1000), 2, 1, id="too-large"),
        pytest.param(group("a", "b"), 2, 1, id="nothing-owned"),
    ],
)
def test_what_cannot_be_said_is_not(seen: GroupSnapshot | None, pods: int, wanted: int) -> None:
    """The promised range stands alone."""
    assert expected_cost(seen, pods, wanted).rebalances_expected is None
