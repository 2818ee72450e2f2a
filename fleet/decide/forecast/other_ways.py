"""The same change done otherwise: one by one, in batches, all at once, or when the backlog is gone.

Problem: that a plan changes all members at once is only believed where the other ways stand beside
it. Choice: each change of a plan is priced in up to three sizes, one part after the other has
settled, and once more for the time when nothing waits any more, where the measured rates say that
it ever comes. Cheapest is what rebalances least, then pauses partitions least, then settles first,
and keeps the limits: the storm budget of one window, and of a roll `rollout.max_parallel`.
Plans take the largest size that they may; that it is the cheapest is told, not assumed. Cost: of a
way in many parts a few are played, and the others cost as much as those.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final, NamedTuple

from fleet.decide.forecast.expected_costs import (
    Flow,
    StepCost,
    handovers,
    one_after_other,
    pause_of,
    played,
    played_group,
)
from fleet.decide.forecast.step_stories import PlayedGroup
from fleet.decide.world import GroupWorld
from fleet.model import Alternative, Plan, Step, StepKind

_MOST_PARTS: Final = 3
"""Parts of a way that are played."""


class _Change(NamedTuple):
    """A step, or all waves of a roll of dynamic members."""

    first: int
    kind: StepKind
    held: int
    """Members before it."""
    changing: int
    """Members that it joins, takes out or replaces."""

    @property
    def members_after(self) -> int:
        """Who reads when it is done."""
        more = {StepKind.OPEN: self.changing, StepKind.LEAVE: -self.changing}
        return self.held + more.get(self.kind, 0)


def with_other_ways(world: GroupWorld, plan: Plan) -> Plan:
    """The plan with what its changes would cost in other ways; its id stays."""
    group = played_group(world)
    if group is None:
        return plan
    found: list[Alternative] = []
    for change in _changes(plan, len(world.open_slots())):
        found += _ways(world, group, change)
    return replace(plan, alternatives=tuple(found))


def _changes(plan: Plan, held: int) -> Iterator[_Change]:
    """Those of several members, beside which others may work on."""
    waves = 0
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
            case StepKind.ROLL if step.price.rebalances_max == 0:
                if count > 1:
                    yield _Change(index, step.kind, held, count)
            case StepKind.ROLL if _is_wave(step):
                waves += 1
                rolled = sum(len(each.slots) // 2 for each in plan.steps if _is_wave(each))
                if waves == 1 and rolled > 1:
                    yield _Change(index, step.kind, held, rolled)


def _is_wave(step: Step) -> bool:
    return step.kind is StepKind.ROLL and step.price.rebalances_min > 1


def _ways(world: GroupWorld, group: PlayedGroup, change: _Change) -> list[Alternative]:
    rollout, flow = world.spec.rollout, Flow.measured(world)
    is_roll = change.kind is StepKind.ROLL
    usual = min(rollout.max_parallel, change.changing) if is_roll else change.changing
    sizes = sorted({change.changing, usual, -(-change.changing // 2), 1}, reverse=True)
    members = change.members_after
    costs = {size: _cost(world, group, change, size) for size in sizes}
    known = {size: cost for size, cost in costs.items() if cost is not None}
    storm = world.spec.storm
    keeps = {
        size: cost.rebalances <= storm.rebalances
        and (storm.moved is None or cost.moved <= storm.moved)
        and (not is_roll or size <= rollout.max_parallel)
        for size, cost in known.items()
    }
    allowed = [size for size in known if keeps[size]]
    best = min(allowed, key=lambda size: _worse(known[size], size == usual), default=None)
    made = [
        _alternative(
            change,
            _name(size, change.changing),
            cost,
            keeps_limits=keeps[size],
            taken=size == usual,
            cheapest=size == best,
            backlog=None if flow is None else flow.after(flow.waiting, cost, members=members),
        )
        for size, cost in known.items()
    ]
    wait = None if flow is None else flow.gone_after(flow.waiting, members=change.held)
    if flow is not None and wait and usual in known:
        later = flow.after(0.0, known[usual], members=members)
        taken = next(each for each in made if each.taken)
        name = f"{taken.way}, when the backlog is gone"
        made.append(
            replace(
                taken,
                way=name,
                starts_in_s=round(wait, 1),
                backlog=round(later),
                taken=False,
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


def _cost(world: GroupWorld, group: PlayedGroup, change: _Change, size: int) -> StepCost | None:
    """In parts of `size`, one after the other."""
    if change.kind is StepKind.ROLL and group.static:
        return handovers(world, group, held=change.held, count=change.changing, width=size)
    parts = [min(size, change.changing - done) for done in range(0, change.changing, size)]
    places = [0, *accumulate(parts)][:-1]
    chosen = _spread(len(parts))
    total: StepCost | None = None
    for at in chosen:
        cost = _part(group, change, places[at], parts[at])
        if cost is None:
            return None
        total = cost if total is None else one_after_other(total, cost)
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


def _part(group: PlayedGroup, change: _Change, done: int, size: int) -> StepCost | None:
    match change.kind:
        case StepKind.OPEN:
            return played(group, "open", change.held + done, size)
        case StepKind.LEAVE:
            return played(group, "leave", change.held - done - size, size)
    joined, left = (
        played(group, "open", change.held, size),
        played(group, "leave", change.held, size),
    )
    return None if joined is None or left is None else one_after_other(joined, left)


def _spread(parts: int) -> Sequence[int]:
    """Which parts are played: first, middle and last."""
    if parts <= _MOST_PARTS:
        return range(parts)
    return [n * (parts - 1) // (_MOST_PARTS - 1) for n in range(_MOST_PARTS)]


def _alternative(
    change: _Change,
    way: str,
    cost: StepCost,
    *,
    keeps_limits: bool,
    taken: bool,
    cheapest: bool,
    backlog: float | None,
) -> Alternative:
    return Alternative(
        step=change.first,
        way=way,
        rebalances=cost.rebalances,
        moved=cost.moved,
        pause_s=pause_of(cost, 50),
        pause_p95_s=pause_of(cost, 95),
        settled_s=cost.settled,
        backlog=None if backlog is None else round(backlog),
        keeps_limits=keeps_limits,
        cheapest=cheapest,
        taken=taken,
    )
