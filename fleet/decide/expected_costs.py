"""Estimates the cost of each step of a plan: rebalances, moves, downtime, time, backlog. Pure.

Problem: a bound says what a change may cost, not what it will cost. Choice: each step is simulated
several times with fixed seeds, so that one state gives one expected cost. Counts are the median of
the runs. Downtimes are percentiles over all partitions with downtime in all runs. Results are
cached, since every plan is computed anew. The bounds of `fleet.decide.plans` remain. Cost:
milliseconds of CPU per step. External members and a changed subscription are not modelled and have
no figures.

The backlog is a flow. The age of the waiting records gives the arrival rate, and the members'
records per busy second give the read rate. Both are spread evenly over partitions; a partition is
read while it has an owner.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, median
from typing import Final, Literal, NamedTuple

from fleet.config.spec import CONSUMER_HEARTBEAT, CONSUMER_SESSION, ClassicWorker, Worker
from fleet.decide.scaling import expected_topics, subscribed_topics
from fleet.decide.state_snapshot import StateSnapshot
from fleet.model import ExpectedCost, Plan, Step, StepKind
from fleet.sim.scenarios.group_scenario import FLEET_RESUBSCRIBE, HANDOVER, Scenario, ScenarioEvent
from fleet.sim.scenarios.play import ScenarioOutcome, play

# A membership change as a scenario for the coordinator's model, as Fleet performs it: joint joins,
# one batched leave after the drain, handovers one by one; each worker has an unfinished batch. The
# group begins balanced and has one topic. A smaller group of the same proportions stands for a
# large one (`play_scale`).


ChangeKind = Literal["open", "leave", "hand over", "rejoin"]

MOST_MEMBERS: Final = 32
"""Most members of a scenario, new ones included; a larger group is scaled down."""
MOST_HANDOVERS: Final = 6
"""Most handovers of a scenario; a larger roll takes proportionally longer."""
MOST_PARTITIONS: Final = 384
_LEAVE_REQUEST: Final = 80
"""Milliseconds from the last drain until the coordinator has the leave request."""
_SECOND_ROUND: Final = 250
"""Milliseconds before a cooperative worker starts the next round (`rejoins_after`)."""
_BEGINS: Final = {"classic": 10_000, "consumer": 30_000}
"""Milliseconds after which the group has settled after its start."""
_LOOKS_EVERY: Final = 100
"""Milliseconds between two checks of the manager whether all workers have drained."""
_JOINS_APART: Final = 30
"""Milliseconds within which workers of a synchronized join subscribe."""


class SimulatedGroup(NamedTuple):
    """Describes a group for a scenario. Times are in milliseconds."""

    protocol: str
    """range, cooperative-sticky, or consumer (KIP-848)."""
    static: bool
    partitions: int
    heartbeat: int
    session: int
    max_poll: int
    batch: int
    """Duration of one batch."""
    initial_delay: int = 3_000
    """group.initial.rebalance.delay.ms"""
    rest: int = 0
    """From the end of one batch to the next; 0 for a group that is behind."""


def play_scale(group: SimulatedGroup, kind: ChangeKind, staying: int, changing: int) -> float:
    """Returns the simulated part of the group; 1.0 for all of it."""
    members = staying + changing if kind in {"open", "leave"} else staying
    most = MOST_HANDOVERS if kind == "hand over" else MOST_MEMBERS
    of = changing if kind == "hand over" else members
    return min(1.0, most / max(1, of), MOST_PARTITIONS / max(1, group.partitions))


def build_scenario(
    group: SimulatedGroup,
    kind: ChangeKind,
    *,
    staying: int,
    changing: int,
    width: int = 1,
    rng: random.Random,
) -> Scenario:
    """Builds the scenario of one change: `changing` members join, leave, rejoin or are handed over.

    Members that rejoin or are handed over are among the `staying`; `width` hand over at once.
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
    at: int, first: int, leaving: int, group: SimulatedGroup, rng: random.Random
) -> ScenarioEvent:
    """Builds the leave request, which the manager sends when the last member has drained."""
    drains = [rng.randint(0, group.batch) for _ in range(leaving)]
    waits = max(drains) - sum(drains) // leaving + _LEAVE_REQUEST
    return ScenarioEvent(at, "batched-leave", first, lasts=waits, together=leaving)


def shown_downtime(group: SimulatedGroup, kind: ChangeKind, unowned: int) -> int:
    """Returns the downtime that commits show of a partition without an owner, as receipts do.

    It is the time between the two commits around it, less the usual time between commits (a rest
    and a batch). The old owner finishes its batch first, and the new owner's first batch is
    smaller than usual. A cooperative member that gives partitions up begins one more batch with
    their records [52].
    """
    last = group.batch if kind == "open" and group.protocol == "cooperative-sticky" else 0
    return max(0, unowned - group.rest - last)


def handover_interval(group: SimulatedGroup) -> int:
    """Returns milliseconds between two handovers: a drain, a first batch and a check of both."""
    return group.batch // 2 + HANDOVER + group.batch + _LOOKS_EVERY


def _handovers(
    at: int, rolled: int, width: int, group: SimulatedGroup
) -> tuple[ScenarioEvent, ...]:
    return tuple(
        ScenarioEvent(
            at + turn * handover_interval(group),
            "restart",
            first,
            lasts=HANDOVER,
            together=min(width, rolled - first),
        )
        for turn, first in enumerate(range(0, rolled, width))
    )


def _batches_in_hand(
    at: int, members: int, group: SimulatedGroup, rng: random.Random
) -> tuple[ScenarioEvent, ...]:
    """Who hears of a rebalance within a batch ends it first."""
    return tuple(
        ScenarioEvent(at, "slow", number, lasts=left)
        for number in range(members)
        if (left := rng.randint(0, group.batch))
    )


SMALL_BATCH: Final = 0.25
"""Seconds of one inline batch of workers that keep up (measured), if the group has no figures."""
_BEHIND: Final = 5.0
"""Seconds that a record waits at most in a group that keeps up."""
_ENOUGH: Final = 10
"""Batches after which a worker's usual time between batches is known."""
_FEW: Final = 8
"""Most members of a group that is simulated `_RUNS` times; larger groups get fewer runs."""
_RUNS: Final = 5


class StepCost(NamedTuple):
    """Holds the cost of one change; times are in seconds."""

    rebalances: int
    moved: int
    unowned: tuple[float, ...]
    """Time without an owner of every partition in every run, ascending."""
    settled: float
    pauses: tuple[float, ...] = ()
    """Downtime that commits show of it; in the same order."""


def with_expected_costs(state: StateSnapshot, plan: Plan) -> Plan:
    """Adds expected costs from the coordinator's model to a plan; its id stays."""
    group = simulated_group(state)
    if group is None or not plan.steps:
        return plan
    open_now = frozenset(state.open_slots())
    flow = Flow.measured(state)
    waiting = None if flow is None else flow.waiting
    owned = not state.is_empty()
    steps = []
    for step in plan.steps:
        cost = _cost(state, group, step, len(open_now - {*step.slots}), len(open_now))
        open_now = _open_after(open_now, step)
        if cost is not None and flow is not None and waiting is not None:
            waiting = flow.after(waiting, cost, members=len(open_now))
        else:
            waiting = waiting if step.kind is StepKind.WARM else None
        expected_cost = (
            step.expected_cost
            if cost is None
            else with_step_cost(step.expected_cost, cost, waiting)
        )
        if not open_now:  # the group stands still until a member joins
            expected_cost = replace(expected_cost, settled_s=None, backlog=None)
        if not open_now or not owned:  # no partition had an owner before
            expected_cost = replace(expected_cost, downtime_s=None, downtime_p95_s=None)
        steps.append(replace(step, expected_cost=expected_cost))
        owned = owned or step.kind is StepKind.OPEN
    return replace(plan, steps=tuple(steps))


def simulated_group(state: StateSnapshot) -> SimulatedGroup | None:
    """Describes the group for a scenario; None if it has external members or no topic."""
    worker = state.spec.worker
    topics = subscribed_topics(expected_topics(state.topics, state.spec), state.spec)
    if worker is None or state.external_members() or not sum(topics.values()):
        return None
    group = group_of_workers(worker, sum(topics.values()), batch=_batch(state))
    group = group._replace(rest=_ms(_rest(state, worker.batch.max_wait)))
    delay = state.initial_delay
    return group if delay is None else group._replace(initial_delay=_ms(delay))


def group_of_workers(worker: Worker, partitions: int, *, batch: float) -> SimulatedGroup:
    """Describes a group of such workers; `batch` in seconds."""
    classic = worker if isinstance(worker, ClassicWorker) else None
    return SimulatedGroup(
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
    """Returns the mean seconds between two batches of its workers since they joined.

    At least `max_wait`; at most twice that and a batch, since idle time counts too. 0 if records
    wait for long, since then no batch waits for more of them.
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


def _open_after(held: frozenset[int], step: Step) -> frozenset[int]:
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
    state: StateSnapshot, group: SimulatedGroup, step: Step, others: int, held: int
) -> StepCost | None:
    """Returns a step's cost; the step names all but `others` of `held` members. None: unknown."""
    count, width = len(step.slots), state.spec.rollout.max_parallel
    match step.kind:
        case StepKind.OPEN:
            return simulate_change(group, "open", held, count)
        case StepKind.LEAVE | StepKind.STOP_ALL:
            return simulate_change(group, "leave", others, count)
        case StepKind.REJOIN:
            return simulate_change(group, "rejoin", held, 1)
        case StepKind.ROLL if not group.static:
            rolling_batch = count // 2
            joined, left = (
                simulate_change(group, "open", held, rolling_batch),
                simulate_change(group, "leave", held, rolling_batch),
            )
            return None if joined is None or left is None else add_costs(joined, left)
        case StepKind.ROLL if step.expected_cost.rebalances_max == 0:
            return simulate_roll(state, group, held=held, count=count, width=width)
    return None  # standbys are not members; a changed subscription is not modelled


def simulate_roll(
    state: StateSnapshot, group: SimulatedGroup, *, held: int, count: int, width: int
) -> StepCost | None:
    """Returns the cost of rolling `count` static members, with the canary's batches."""
    worker = state.spec.worker
    wait = worker.batch.max_wait if worker is not None else 0.0
    proof = state.spec.rollout.canary_batches * (group.batch / 1000 + wait)
    cost = simulate_change(group, "hand over", max(held, count), count, width)
    return None if cost is None else cost._replace(settled=round(cost.settled + proof, 3))


def add_costs(first: StepCost, second: StepCost) -> StepCost:
    """Adds the costs of two changes, the second after the first has settled."""
    return StepCost(
        first.rebalances + second.rebalances,
        first.moved + second.moved,
        tuple(sorted((*first.unowned, *second.unowned))),
        round(first.settled + second.settled, 3),
        tuple(sorted((*first.pauses, *second.pauses))),
    )


@lru_cache(maxsize=512)
def simulate_change(
    group: SimulatedGroup, kind: ChangeKind, staying: int, changing: int, width: int = 1
) -> StepCost | None:
    """Simulates a change and returns its cost; parameters as in `build_scenario`."""
    part = play_scale(group, kind, staying, changing)
    small = group._replace(partitions=max(1, round(group.partitions * part)))
    few, some = _part(staying, part), _part(changing, part)
    runs = []
    for seed in range(max(1, _RUNS * _FEW // max(_FEW, few + some))):
        rng = random.Random(seed)
        stay = max(few, some) if kind == "hand over" else few
        story = build_scenario(small, kind, staying=stay, changing=some, width=width, rng=rng)
        run = play(story, rng)
        if kind == "leave" and run.settled is not None:  # the request comes after the drain
            run = run._replace(settled=run.settled - story.events[-1].lasts)
        runs.append(run)
    cost = combine_runs(
        runs,
        of=group.partitions / small.partitions,
        shown=lambda unowned: shown_downtime(group, kind, unowned),
    )
    if cost is not None and kind == "hand over":
        later = -(-changing // width) - -(-some // width)
        return cost._replace(
            settled=round(cost.settled + later * handover_interval(group) / 1000, 3)
        )
    return cost


def combine_runs(
    runs: Sequence[ScenarioOutcome],
    *,
    of: float = 1.0,
    shown: Callable[[int], int] = lambda unowned: unowned,
) -> StepCost | None:
    """Combines several runs of one scenario; the group has `of` times their partitions.

    `shown` converts milliseconds without an owner to the downtime that commits show. None: a run
    did not settle within a simulated day.
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


def with_step_cost(
    expected_cost: ExpectedCost, cost: StepCost, waiting: float | None
) -> ExpectedCost:
    """Adds a simulated cost to an expected cost, within its bounds on moves."""
    moved = cost.moved
    if expected_cost.moved_min is not None:  # from today's owners, which need not be balanced
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
    """Returns a percentile of the downtimes of partitions with downtime; 0 if there are none."""
    if not cost.pauses:
        return None
    return percentile([pause for pause in cost.pauses if pause], percent) or 0.0


def percentile(ascending: Sequence[float], percent: int) -> float | None:
    """Returns a percentile of ascending values; None if there are none."""
    if not ascending:
        return None
    return ascending[max(0, -(-len(ascending) * percent // 100) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Holds a group's measured backlog and rates in records/s."""

    waiting: float
    comes: float
    reads: float
    """Read rate of one busy member."""

    @classmethod
    def measured(cls, state: StateSnapshot) -> "Flow | None":
        """Measures the flow; None if a lag, an age or a worker's rate is unknown."""
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
        """Returns seconds until `members` have read the backlog; None if they never will."""
        net = self.reads * members - self.comes
        return waiting / net if net > 0 else None

    def after(self, waiting: float, cost: StepCost, *, members: int) -> float:
        """Returns the backlog after a change; partitions without an owner are not read."""
        if not cost.unowned:
            return waiting
        net = self.comes - self.reads * members

        def left(unowned: float) -> float:
            read_for = max(0.0, cost.settled - unowned)
            return max(0.0, waiting + net * read_for) + self.comes * unowned

        return fmean(left(min(unowned, cost.settled)) for unowned in cost.unowned)
