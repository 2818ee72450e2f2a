"""Estimates alternatives to a change: one by one, in batches, all at once, or after the backlog.

Problem: users trust a change of all members at once only if they see the alternatives. Choice: each
change of a plan is simulated in up to three sizes, whose parts settle one after the other. One more
alternative starts when the backlog is read, if the measured rates allow that. The cheapest keeps
the limits (the storm budget of one window, `rollout.max_parallel`), has fewest rebalances, then
least downtime, then settles first. Plans choose the largest allowed size; the alternatives show
whether it is the cheapest. Cost: of many parts, only a few are simulated.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final, NamedTuple

from fleet.config.spec import LagScaling, Worker
from fleet.decide.adopted import Adopted, members_of
from fleet.decide.expected_costs import (
    SMALL_BATCH,
    Flow,
    SimulatedGroup,
    StepCost,
    add_costs,
    build_scenario,
    combine_runs,
    downtime_of,
    group_of_workers,
    simulate_change,
    simulate_roll,
    simulated_group,
    with_step_cost,
)
from fleet.decide.hours import least_slots
from fleet.decide.state_snapshot import StateSnapshot
from fleet.errors import FleetError
from fleet.model import Alternative, GroupSnapshot, Plan, Step, StepKind
from fleet.model.rebalances import MembershipSpan, Rebalance
from fleet.sim.scenarios.group_scenario import PROTOCOLS, Scenario, ScenarioEvent
from fleet.sim.scenarios.play import play
from fleet.text import duration, plural

# A recorded group, and its next change of size as a scenario. Fleet changes its own group by one
# synchronized join or batched leave. External members come and go 2 s apart, with librdkafka's
# default timeouts, since no record has them.


_APART: Final = 2_000
"""Milliseconds between joins of external members."""
_BEGINS: Final = 60_000


class RecordedGroup(NamedTuple):
    """Describes a recorded group for a scenario."""

    members: int
    static: bool
    partitions: int
    protocol: str
    """One of PROTOCOLS."""


def model_protocol(kind: str, assignor: str | None) -> str | None:
    """Returns the entry of PROTOCOLS for a type and an assignor; None if it is not modelled."""
    if kind == "consumer":
        return kind
    return assignor if kind == "classic" and assignor in PROTOCOLS else None


def recorded_group(
    name: str, rebalances: Sequence[Rebalance], spans: Iterable[MembershipSpan]
) -> RecordedGroup:
    """Builds it from rows, oldest first. Raises FleetError if they are not enough."""
    if not rebalances:
        raise FleetError(
            f"group {name} has no recorded rebalance; run `fleet rebalances` to see all recorded "
            "groups"
        )
    last = rebalances[-1]
    protocol = model_protocol(last.protocol, last.assignor)
    if protocol is None:
        raise FleetError(
            f"group {name} has protocol {last.protocol} with assignor "
            f"{last.assignor or 'unknown'}, which is not modelled (allowed: {', '.join(PROTOCOLS)})"
        )
    there: dict[str, MembershipSpan] = {}
    for span in spans:
        if span.event == "left":
            there.pop(span.member, None)
        else:
            there[span.member] = span
    owned = {tp for span in there.values() for tp in span.owned}
    if not last.members or not owned:
        raise FleetError(
            f"group {name} had no member with a partition at its last recorded rebalance"
        )
    static = all(span.instance_id is not None for span in there.values())
    return RecordedGroup(last.members, static, len(owned), protocol)


def build_scaling_scenario(
    group: RecordedGroup, members: int, worker: Worker | None, rng: random.Random
) -> Scenario:
    """Builds the scenario of a change to `members`, as Fleet does it if `worker` is declared."""
    more, fewer = max(0, members - group.members), max(0, group.members - members)
    if worker is not None:
        simulated = group_of_workers(worker, group.partitions, batch=SMALL_BATCH)
        simulated = simulated._replace(protocol=group.protocol, static=group.static)
        return build_scenario(
            simulated,
            "open" if more else "leave",
            staying=group.members - fewer,
            changing=more or fewer,
            rng=rng,
        )
    changes = (
        *(ScenarioEvent(_BEGINS + _APART * n, "start", group.members + n) for n in range(more)),
        *(ScenarioEvent(_BEGINS + _APART * n, "leave", members + n) for n in range(fewer)),
    )
    usual = Scenario(group.members, group.static, group.partitions, events=changes)
    return usual.by(group.protocol)


# Scaling external consumers: starting pods join 2 s apart, stopping pods leave together, and one
# request removes their static members a second later. If members run elsewhere too, or a pod has
# none, there is no estimate.


MOST_PODS: Final = 48
MOST_PARTITIONS: Final = 384
_RUNS: Final = 3
_SEEN_AFTER: Final = 1_000
"""Milliseconds from the stop of static members to the request that removes them."""


def with_adopted_costs(plan: Plan, group: GroupSnapshot | None, adopted: Adopted) -> Plan:
    """Adds an expected cost to a plan of `make_adopted_plan`, if it can be estimated."""
    found = _played(group, adopted)
    if found is None or len(plan.steps) != 1 or not plan.wanted or plan.wanted > MOST_PODS:
        return plan
    cost = _recorded_cost(found, plan.wanted)
    if cost is None:
        return plan
    (step,) = plan.steps
    return replace(
        plan, steps=(replace(step, expected_cost=with_step_cost(step.expected_cost, cost, None)),)
    )


def _played(group: GroupSnapshot | None, adopted: Adopted) -> RecordedGroup | None:
    """Describes a group with one member in each pod and no others; None for any other group."""
    if group is None or not group.exists:
        return None
    ours = members_of(group, adopted)
    if len(ours) != adopted.replicas or len(group.members) != len(ours):
        return None
    protocol = model_protocol(group.type, group.assignor)
    partitions = len({tp for member in ours for tp in member.partitions})
    if protocol is None or not 0 < partitions <= MOST_PARTITIONS or len(ours) > MOST_PODS:
        return None
    static = all(member.instance_id is not None for member in ours)
    return RecordedGroup(len(ours), static, partitions, protocol)


def _recorded_cost(found: RecordedGroup, members: int) -> StepCost | None:
    runs = []
    for seed in range(_RUNS):
        rng = random.Random(seed)
        runs.append(play(_story(found, members, rng), rng))
    return combine_runs(runs)


def _story(found: RecordedGroup, members: int, rng: random.Random) -> Scenario:
    usual = build_scaling_scenario(found, members, None, rng)
    going = found.members - members
    if going < 0:
        return usual
    at = _BEGINS + rng.randint(0, usual.heartbeat_interval)
    if found.static:
        left = ScenarioEvent(at, "batched-leave", members, _SEEN_AFTER, together=going)
    else:
        left = ScenarioEvent(at, "leave", members, together=going)
    return usual._replace(events=(left,))


# A policy's scale-up must end the backlog sooner by the group's measured rates. A scale-up by a
# person, by a fixed number or to the declared minimum need not. `drain_time` need not either: it
# grows for its busiest member, if that is late even after a new worker's start. The rates here are
# those of the whole group, in which that member would not show.


def find_wasteful_growth(state: StateSnapshot, plan: Plan) -> str:
    """Returns why a policy's scale-up with expected costs waits; empty if it need not."""
    spec, held = state.spec, len(state.open_slots())
    flow = Flow.measured(state)
    least = max(1, least_slots(spec, state.snapshot_at))
    if not isinstance(spec.scaling, LagScaling) or held < least:
        return ""
    if flow is None or [step.kind for step in plan.steps] != [StepKind.OPEN]:
        return ""
    expected_cost = plan.steps[0].expected_cost
    alone = flow.gone_after(flow.waiting, members=held)
    if alone is None or expected_cost.settled_s is None or expected_cost.backlog is None:
        return ""
    more = held + len(plan.steps[0].slots)
    left = flow.gone_after(expected_cost.backlog, members=more)
    if left is None or expected_cost.settled_s + left < alone:
        return ""
    return (
        f"{plural(more - held, 'more slot')} would not pay off: {held} slots read the "
        f"{plural(round(flow.waiting), 'waiting record')} in {duration(alone)}, {more} slots in "
        f"{duration(expected_cost.settled_s + left)}. Of that, {expected_cost.settled_s:.1f} s are "
        f"for {plural(expected_cost.rebalances_expected or 0, 'rebalance')} with "
        f"{plural(expected_cost.moved_expected or 0, 'partition')} moved. Fleet adds them if the "
        f"backlog grows; to add them now, run `fleet scale {spec.group} {more}`"
    )


_MOST_PARTS: Final = 3
"""Most parts of an alternative that are simulated."""


class _Change(NamedTuple):
    """Describes a step, or all rolling batches of a roll of dynamic members."""

    first: int
    kind: StepKind
    held: int
    """Members before it."""
    changing: int
    """Members that it adds, removes or replaces."""

    @property
    def members_after(self) -> int:
        """Returns the number of members after it."""
        more = {StepKind.OPEN: self.changing, StepKind.LEAVE: -self.changing}
        return self.held + more.get(self.kind, 0)


def with_alternatives(state: StateSnapshot, plan: Plan) -> Plan:
    """Adds the costs of alternatives to a plan; its id stays."""
    group = simulated_group(state)
    if group is None:
        return plan
    found: list[Alternative] = []
    for change in _changes(plan, len(state.open_slots())):
        found += _ways(state, group, change)
    return replace(plan, alternatives=tuple(found))


def _changes(plan: Plan, held: int) -> Iterator[_Change]:
    """Yields changes of several members that leave others working."""
    rolling_batches = 0
    for index, step in enumerate(plan.steps):
        count = len(step.slots)
        match step.kind:
            case StepKind.OPEN:
                if held and count > 1:
                    yield _Change(index, step.kind, held, count)
                held += count
            case StepKind.LEAVE | StepKind.STOP_ALL:
                held -= count
                if held and count > 1 and step.kind is StepKind.LEAVE:
                    yield _Change(index, step.kind, held + count, count)
            case StepKind.ROLL if step.expected_cost.rebalances_max == 0:
                if count > 1:
                    yield _Change(index, step.kind, held, count)
            case StepKind.ROLL if _is_rolling_batch(step):
                rolling_batches += 1
                rolled = sum(len(each.slots) // 2 for each in plan.steps if _is_rolling_batch(each))
                if rolling_batches == 1 and rolled > 1:
                    yield _Change(index, step.kind, held, rolled)


def _is_rolling_batch(step: Step) -> bool:
    return step.kind is StepKind.ROLL and step.expected_cost.rebalances_min > 1


def _ways(state: StateSnapshot, group: SimulatedGroup, change: _Change) -> list[Alternative]:
    rollout, flow = state.spec.rollout, Flow.measured(state)
    is_roll = change.kind is StepKind.ROLL
    usual = min(rollout.max_parallel, change.changing) if is_roll else change.changing
    sizes = sorted({change.changing, usual, -(-change.changing // 2), 1}, reverse=True)
    members = change.members_after
    costs = {size: _cost(state, group, change, size) for size in sizes}
    known = {size: cost for size, cost in costs.items() if cost is not None}
    storm = state.spec.storm
    exceeded = {
        size: ("storm.rebalances",) * (cost.rebalances > storm.rebalances)
        + ("storm.moved",) * (storm.moved is not None and cost.moved > storm.moved)
        + ("rollout.max_parallel",) * (is_roll and size > rollout.max_parallel)
        for size, cost in known.items()
    }
    allowed = [size for size in known if not exceeded[size]]
    best = min(allowed, key=lambda size: _worse(known[size], size == usual), default=None)

    def backlog(cost: StepCost) -> int | None:
        return None if flow is None else round(flow.after(flow.waiting, cost, members=members))

    made = [
        Alternative(
            step=change.first,
            way=_name(size, change.changing),
            rebalances=cost.rebalances,
            moved=cost.moved,
            downtime_s=downtime_of(cost, 50),
            downtime_p95_s=downtime_of(cost, 95),
            settled_s=cost.settled,
            backlog=backlog(cost),
            keeps_limits=not exceeded[size],
            exceeded=exceeded[size],
            chosen=size == usual,
            cheapest=size == best,
        )
        for size, cost in known.items()
    ]
    wait = None if flow is None else flow.gone_after(flow.waiting, members=change.held)
    if flow is not None and wait and usual in known:
        later = flow.after(0.0, known[usual], members=members)
        taken = next(each for each in made if each.chosen)
        name = f"{taken.way}, after the backlog is read"
        made.append(
            replace(
                taken,
                way=name,
                starts_in_s=round(wait, 1),
                backlog=round(later),
                chosen=False,
                cheapest=False,
            )
        )
    return made


def _name(size: int, count: int) -> str:
    return "all at once" if size == count else "one by one" if size == 1 else f"{size} at a time"


def _worse(cost: StepCost, usual: bool) -> tuple[float, ...]:
    return (
        cost.rebalances,
        round(sum(cost.unowned) / len(cost.unowned), 2),
        cost.settled,
        not usual,
    )


def _cost(
    state: StateSnapshot, group: SimulatedGroup, change: _Change, size: int
) -> StepCost | None:
    """Returns the cost of a change in parts of `size`."""
    if change.kind is StepKind.ROLL and group.static:
        return simulate_roll(state, group, held=change.held, count=change.changing, width=size)
    parts = [min(size, change.changing - done) for done in range(0, change.changing, size)]
    places = [0, *accumulate(parts)][:-1]
    chosen = _spread(len(parts))
    total: StepCost | None = None
    for at in chosen:
        cost = _part(group, change, places[at], parts[at])
        if cost is None:
            return None
        total = cost if total is None else add_costs(total, cost)
    if total is None or len(chosen) == len(parts):
        return total
    times = len(parts) / len(chosen)
    return StepCost(
        round(total.rebalances * times),
        round(total.moved * times),
        total.unowned,
        round(total.settled * times, 3),
        total.pauses,
    )


def _part(group: SimulatedGroup, change: _Change, done: int, size: int) -> StepCost | None:
    match change.kind:
        case StepKind.OPEN:
            return simulate_change(group, "open", change.held + done, size)
        case StepKind.LEAVE:
            return simulate_change(group, "leave", change.held - done - size, size)
    joined, left = (
        simulate_change(group, "open", change.held, size),
        simulate_change(group, "leave", change.held, size),
    )
    return None if joined is None or left is None else add_costs(joined, left)


def _spread(parts: int) -> Sequence[int]:
    """Selects the parts to simulate: first, middle and last."""
    if parts <= _MOST_PARTS:
        return range(parts)
    return [n * (parts - 1) // (_MOST_PARTS - 1) for n in range(_MOST_PARTS)]
