"""What each step of a plan will cost: rebalances, moves, pauses, time and backlog. Pure.

Problem: a bound says what a change may cost, not what it will. Choice: each step is played some
times to the coordinator's model by fixed seeds, so that one world has one expected cost; counts are
the median of the runs, pauses are percentiles over all partitions of all runs that pause. What was
played once is kept, since a plan is made anew at every look. The bounds of `fleet.decide.plans`
stand, and where they say exactly who moves, that is what is expected. Cost: milliseconds of CPU a
step; what the model does not know (members that are not ours, a subscription that changes) has no
figures.

The backlog is a flow: what waits now, by the age of what waits the rate at which it comes, and
the members' own records per busy second; evenly over partitions, each read while it has an owner.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, median
from typing import Final, Literal, NamedTuple

from fleet.config.spec import CONSUMER_HEARTBEAT, CONSUMER_SESSION, ClassicWorker, Worker
from fleet.decide.scaling import expected_topics, subscribed
from fleet.decide.state_snapshot import StateSnapshot
from fleet.model import ExpectedCost, Plan, Step, StepKind
from fleet.sim.scenarios.group_scenario import Scenario, ScenarioEvent
from fleet.sim.scenarios.library import FLEET_RESUBSCRIBE, HANDOVER
from fleet.sim.scenarios.play import ScenarioOutcome, play

# A membership change as a story for the coordinator's model, told as it is carried out: joint
# joins, one batched leave after the drain, handovers one after the other; each worker has a part of
# a batch in hand. The group is balanced when it begins, and its topics are one; a large group is
# played by a smaller one of the same proportions (`scaled`).


ChangeKind = Literal["open", "leave", "hand over", "rejoin"]

MOST_MEMBERS: Final = 32
"""Of a story, with those that come; a larger group is scaled to so many."""
MOST_HANDOVERS: Final = 6
"""Of a story; a roll of more takes as much longer."""
MOST_PARTITIONS: Final = 384
_LEAVE_REQUEST: Final = 80
"""From the last drain until the coordinator has the request: it is seen, and then asked."""
_SECOND_ROUND: Final = 250
"""A cooperative worker's wait before it asks for the next round: its protocol's `rejoins_after`."""
_BEGINS: Final = {"classic": 10_000, "consumer": 30_000}
"""When the group has settled after its start."""
_LOOKS_EVERY: Final = 100
"""How often whoever carries out a change looks whether all have drained."""
_JOINS_APART: Final = 30
"""Workers that the slot targets let in subscribe within so long."""


class PlayedGroup(NamedTuple):
    """What a story has to know of a group. Times in ms."""

    protocol: str
    """range, cooperative-sticky, or consumer (KIP-848)."""
    static: bool
    partitions: int
    heartbeat: int
    session: int
    max_poll: int
    batch: int
    """How long one batch takes."""
    initial_delay: int = 3_000
    """group.initial.rebalance.delay.ms"""
    rest: int = 0
    """From the end of one batch to the next; 0 of a group that is behind."""


def scaled(group: PlayedGroup, kind: ChangeKind, staying: int, changing: int) -> float:
    """What part of the group is played: 1.0 for all of it."""
    members = staying + changing if kind in {"open", "leave"} else staying
    most = MOST_HANDOVERS if kind == "hand over" else MOST_MEMBERS
    of = changing if kind == "hand over" else members
    return min(1.0, most / max(1, of), MOST_PARTITIONS / max(1, group.partitions))


def story_of(
    group: PlayedGroup,
    kind: ChangeKind,
    *,
    staying: int,
    changing: int,
    width: int = 1,
    rng: random.Random,
) -> Scenario:
    """One change: `changing` members join beside `staying`, or leave them, or are handed over.

    Handed over and rejoining members are among the `staying`; `width` hand over at once.
    """
    is_consumer = group.protocol == "consumer"
    at = _BEGINS["consumer" if is_consumer else "classic"] + rng.randint(0, group.heartbeat)
    usual = Scenario(
        members=staying + (changing if kind == "leave" else 0),
        static=group.static,
        partitions=group.partitions,
        session_timeout=group.session,
        heartbeat_interval=group.heartbeat,
        max_poll_interval=group.max_poll,
        protocol=group.protocol,
        initial_delay=group.initial_delay,
        resubscribe=FLEET_RESUBSCRIBE if is_consumer else 0,
        connects_within=_JOINS_APART,
        connected=True,
        rejoins_after=_SECOND_ROUND,
    )
    happens: tuple[ScenarioEvent, ...]
    match kind:
        case "open":
            happens = (ScenarioEvent(at, "start", staying, together=changing),)
        case "leave":
            happens = (_leave(at, staying, changing, group, rng),)
        case "hand over":
            happens = _handovers(at, changing, width, group)
        case "rejoin":
            happens = (
                ScenarioEvent(at, "batched-leave", staying - 1, lasts=0),
                ScenarioEvent(at + 4 * usual.longest_delay, "start", staying - 1),
            )
    busy = _batches_in_hand(at, staying, group, rng) if kind != "hand over" else ()
    return usual._replace(events=(*busy, *happens))


def _leave(
    at: int, first: int, leaving: int, group: PlayedGroup, rng: random.Random
) -> ScenarioEvent:
    """The request comes when the last of them has drained."""
    drains = [rng.randint(0, group.batch) for _ in range(leaving)]
    waits = max(drains) - sum(drains) // leaving + _LEAVE_REQUEST
    return ScenarioEvent(at, "batched-leave", first, lasts=waits, together=leaving)


def beyond_usual(group: PlayedGroup, kind: ChangeKind, unowned: int) -> int:
    """The pause that commits show of a partition that had no owner for so long, as receipts do.

    From the last commit before to the first one after, less the usual time between two, which is
    a rest and a batch: what was left of the last batch was done before the partition went, and
    the new owner's first one, with the fetch before it, has fewer records than usual. Where a
    cooperative member gives partitions up, it begins one more batch with what it has read of them
    (docs/contributing/rules.md, 52).
    """
    last = group.batch if kind == "open" and group.protocol == "cooperative-sticky" else 0
    return max(0, unowned - group.rest - last)


def handover_every(group: PlayedGroup) -> int:
    """Milliseconds from one handover to the next: a drain, a first batch, and a look at both."""
    return group.batch // 2 + HANDOVER + group.batch + _LOOKS_EVERY


def _handovers(at: int, rolled: int, width: int, group: PlayedGroup) -> tuple[ScenarioEvent, ...]:
    return tuple(
        ScenarioEvent(
            at + turn * handover_every(group),
            "restart",
            first,
            lasts=HANDOVER,
            together=min(width, rolled - first),
        )
        for turn, first in enumerate(range(0, rolled, width))
    )


def _batches_in_hand(
    at: int, members: int, group: PlayedGroup, rng: random.Random
) -> tuple[ScenarioEvent, ...]:
    """Who hears of a rebalance within a batch ends it first."""
    return tuple(
        ScenarioEvent(at, "slow", number, lasts=left)
        for number in range(members)
        if (left := rng.randint(0, group.batch))
    )


SMALL_BATCH: Final = 0.25
"""Seconds one inline batch takes when workers keep up (measured); of a group with no figures."""
_BEHIND: Final = 5.0
"""Seconds for which a record of a group that keeps up does not wait."""
_ENOUGH: Final = 10
"""Batches from which on a worker's rhythm is known."""
_FEW: Final = 8
"""Up to so many members are played `_RUNS` times, larger groups less often."""
_RUNS: Final = 5


class StepCost(NamedTuple):
    """Of one change. Seconds."""

    rebalances: int
    moved: int
    unowned: tuple[float, ...]
    """Of every partition in every run, ascending; 0 where it had an owner all the time."""
    settled: float
    pauses: tuple[float, ...] = ()
    """What commits show of it, beyond the usual time between them; the same order."""


def foretold(state: StateSnapshot, plan: Plan) -> Plan:
    """The same plan, its expected costs filled in from the coordinator's model; its id stays."""
    group = played_group(state)
    if group is None or not plan.steps:
        return plan
    held = frozenset(state.open_slots())
    flow = Flow.measured(state)
    waiting = None if flow is None else flow.waiting
    owned = not state.is_empty()
    steps = []
    for step in plan.steps:
        cost = _cost(state, group, step, len(held - {*step.slots}), len(held))
        held = _held_after(held, step)
        if cost is not None and flow is not None and waiting is not None:
            waiting = flow.after(waiting, cost, members=len(held))
        else:
            waiting = waiting if step.kind is StepKind.WARM else None
        expected_cost = (
            step.expected_cost if cost is None else priced_by(step.expected_cost, cost, waiting)
        )
        if not held:  # it stands still until somebody joins, whenever that is
            expected_cost = replace(expected_cost, settled_s=None, backlog=None)
        if not held or not owned:  # nobody owned anything before
            expected_cost = replace(expected_cost, downtime_s=None, downtime_p95_s=None)
        steps.append(replace(step, expected_cost=expected_cost))
        owned = owned or step.kind is StepKind.OPEN
    return replace(plan, steps=tuple(steps))


def played_group(state: StateSnapshot) -> PlayedGroup | None:
    """What a story has to know of this group; None where others are in it, or it has no topic."""
    worker = state.spec.worker
    topics = subscribed(expected_topics(state.topics, state.spec), state.spec)
    if worker is None or state.external_members() or not sum(topics.values()):
        return None
    group = group_of_workers(worker, sum(topics.values()), batch=_batch(state))
    group = group._replace(rest=_ms(_rest(state, worker.batch.max_wait)))
    delay = state.initial_delay
    return group if delay is None else group._replace(initial_delay=_ms(delay))


def group_of_workers(worker: Worker, partitions: int, *, batch: float) -> PlayedGroup:
    """A group of such workers; a batch in seconds."""
    classic = worker if isinstance(worker, ClassicWorker) else None
    return PlayedGroup(
        protocol=classic.assignor if classic else "consumer",
        static=worker.membership == "static",
        partitions=partitions,
        heartbeat=_ms(classic.heartbeat_interval if classic else CONSUMER_HEARTBEAT),
        session=_ms(classic.session_timeout if classic else CONSUMER_SESSION),
        max_poll=_ms(worker.max_poll_interval),
        batch=_ms(batch),
    )


def _batch(state: StateSnapshot) -> float:
    batches = sum(each.batches for each in state.reports)
    if not batches:
        return SMALL_BATCH
    return sum(each.busy_seconds for each in state.reports) / batches


def _rest(state: StateSnapshot, max_wait: float) -> float:
    """Seconds from the end of a batch to the next, as its workers had them since they joined.

    At least `max_wait`, and where nothing came for a while at most twice that and a batch; 0 where
    records wait for longer than a trickle's do, since then no batch waits for more of them.
    """
    seen = state.group.partitions if state.group is not None else ()
    if any((each.lag_seconds or 0.0) > _BEHIND for each in seen if each.lag):
        return 0.0
    found = [
        (state.snapshot_at - each.joined_at - each.busy_seconds) / each.batches
        for each in state.reports
        if each.joined_at is not None and each.batches >= _ENOUGH
    ]
    usual = median(found) if found else max_wait
    return min(max(usual, max_wait), 2 * max_wait + _batch(state))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


# --- steps -------------------------------------------------------------------------------------


def _held_after(held: frozenset[int], step: Step) -> frozenset[int]:
    match step.kind:
        case StepKind.OPEN:
            return held | {*step.slots}
        case StepKind.LEAVE | StepKind.STOP_ALL:
            return held - {*step.slots}
        case StepKind.ROLL:
            fresh = frozenset(step.slots) - held
            return held if not fresh else (held | fresh) - (held & frozenset(step.slots))
    return held


def _cost(
    state: StateSnapshot, group: PlayedGroup, step: Step, others: int, held: int
) -> StepCost | None:
    """`others` of the `held` members are not named by the step. None: the model cannot say."""
    count, width = len(step.slots), state.spec.rollout.max_parallel
    match step.kind:
        case StepKind.OPEN:
            return played(group, "open", held, count)
        case StepKind.LEAVE | StepKind.STOP_ALL:
            return played(group, "leave", others, count)
        case StepKind.REJOIN:
            return played(group, "rejoin", held, 1)
        case StepKind.ROLL if not group.static:
            rolling_batch = count // 2
            joined, left = (
                played(group, "open", held, rolling_batch),
                played(group, "leave", held, rolling_batch),
            )
            return None if joined is None or left is None else one_after_other(joined, left)
        case StepKind.ROLL if step.expected_cost.rebalances_max == 0:
            return handovers(state, group, held=held, count=count, width=width)
    return None  # standbys are no members; a subscription is not played


def handovers(
    state: StateSnapshot, group: PlayedGroup, *, held: int, count: int, width: int
) -> StepCost | None:
    """A roll of `count` static members, with the canary's proof where there is what to read."""
    worker = state.spec.worker
    wait = worker.batch.max_wait if worker is not None else 0.0
    proof = state.spec.rollout.canary_batches * (group.batch / 1000 + wait)
    cost = played(group, "hand over", max(held, count), count, width)
    return None if cost is None else cost._replace(settled=round(cost.settled + proof, 3))


def one_after_other(first: StepCost, second: StepCost) -> StepCost:
    """Of two changes, the second when the first has settled."""
    return StepCost(
        first.rebalances + second.rebalances,
        first.moved + second.moved,
        tuple(sorted((*first.unowned, *second.unowned))),
        round(first.settled + second.settled, 3),
        tuple(sorted((*first.pauses, *second.pauses))),
    )


@lru_cache(maxsize=512)
def played(
    group: PlayedGroup, kind: ChangeKind, staying: int, changing: int, width: int = 1
) -> StepCost | None:
    """What a change costs in the model; see `story_of` for the members that it names."""
    part = scaled(group, kind, staying, changing)
    small = group._replace(partitions=max(1, round(group.partitions * part)))
    few, some = _part(staying, part), _part(changing, part)
    runs = []
    for seed in range(max(1, _RUNS * _FEW // max(_FEW, few + some))):
        rng = random.Random(seed)
        stay = max(few, some) if kind == "hand over" else few
        story = story_of(small, kind, staying=stay, changing=some, width=width, rng=rng)
        run = play(story, rng)
        if kind == "leave" and run.settled is not None:  # the request comes after the drain
            run = run._replace(settled=run.settled - story.events[-1].lasts)
        runs.append(run)
    cost = summed(
        runs,
        of=group.partitions / small.partitions,
        shown=lambda unowned: beyond_usual(group, kind, unowned),
    )
    if cost is not None and kind == "hand over":
        later = -(-changing // width) - -(-some // width)
        return cost._replace(settled=round(cost.settled + later * handover_every(group) / 1000, 3))
    return cost


def summed(
    runs: Sequence[ScenarioOutcome],
    *,
    of: float = 1.0,
    shown: Callable[[int], int] = lambda unowned: unowned,
) -> StepCost | None:
    """Of some runs of one story; `of` so many times the partitions that were played.

    `shown` says what commits show of so many milliseconds without an owner. None: some run was not
    settled within a simulated day.
    """
    ends = [run.settled for run in runs if run.settled is not None]
    if len(ends) < len(runs):
        return None
    unowned = sorted(each for run in runs for each in run.pauses)
    return StepCost(
        round(median(run.rebalances for run in runs)),
        round(median(run.moved for run in runs) * of),
        tuple(each / 1000 for each in unowned),
        round(median(ends) / 1000, 3),
        tuple(shown(each) / 1000 for each in unowned),
    )


def _part(members: int, part: float) -> int:
    return max(1, round(members * part)) if members else 0


# --- figures -----------------------------------------------------------------------------------


def priced_by(expected_cost: ExpectedCost, cost: StepCost, waiting: float | None) -> ExpectedCost:
    """The expected cost with what is expected, within its bounds on moves."""
    moved = cost.moved
    if (
        expected_cost.moved_min is not None
    ):  # what today's owners demand, which need not be balanced
        moved = max(moved, expected_cost.moved_min)
    if expected_cost.moved_max is not None:
        moved = min(moved, expected_cost.moved_max)
    return replace(
        expected_cost,
        rebalances_expected=cost.rebalances,
        moved_expected=moved,
        downtime_s=downtime_of(cost, 50),
        downtime_p95_s=downtime_of(cost, 95),
        settled_s=cost.settled,
        backlog=None if waiting is None else round(waiting),
    )


def downtime_of(cost: StepCost, percent: int) -> float | None:
    """The pause that so many percent of the partitions that pause do not exceed; 0: none does."""
    if not cost.pauses:
        return None
    return percentile([pause for pause in cost.pauses if pause], percent) or 0.0


def percentile(ascending: Sequence[float], percent: int) -> float | None:
    """The smallest value that so many percent do not exceed; None of nothing."""
    if not ascending:
        return None
    return ascending[max(0, -(-len(ascending) * percent // 100) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Records of a group, by its own measurements. Rates are records/s."""

    waiting: float
    comes: float
    reads: float
    """One member's, while it is busy."""

    @classmethod
    def measured(cls, state: StateSnapshot) -> "Flow | None":
        """None where a lag, an age or a worker's capacity is not known."""
        seen = state.group.partitions if state.group is not None else ()
        busy = sum(each.busy_seconds for each in state.reports)
        if not seen or not busy or any(each.lag is None for each in seen):
            return None
        behind = [(each.lag or 0, each.lag_seconds or 0.0) for each in seen if each.lag]
        if not behind or any(age <= 0 for _, age in behind):
            return None
        return cls(
            waiting=float(sum(lag for lag, _ in behind)),
            comes=sum(lag / age for lag, age in behind),
            reads=sum(each.records for each in state.reports) / busy,
        )

    def gone_after(self, waiting: float, *, members: int) -> float | None:
        """Seconds until `members` have read what waits; None: they never will."""
        net = self.reads * members - self.comes
        return waiting / net if net > 0 else None

    def after(self, waiting: float, cost: StepCost, *, members: int) -> float:
        """What waits when it is settled; `members` read, but for partitions without an owner."""
        if not cost.unowned:
            return waiting
        net = self.comes - self.reads * members

        def left(unowned: float) -> float:
            read_for = max(0.0, cost.settled - unowned)
            return max(0.0, waiting + net * read_for) + self.comes * unowned

        return fmean(left(min(unowned, cost.settled)) for unowned in cost.unowned)
