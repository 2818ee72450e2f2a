"""All groups of a cluster, watched for storms look after look. Pure.

Problem: an exporter, a sensor and a schedule each look every few seconds at thousands of
groups, most of which are calm, and a restart must not forget a storm. Choice: one value holds
the storms there are; a look takes the last rebalances of all groups and gives the next value.
Groups without rebalances and without a storm cost nothing. Detected at the first look after
the rebalance above the budget, so within two intervals whatever the phase.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final, NamedTuple, TypeVar

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.config.spec import StormSpec as Budget
from fleet.model import ReceiptResult
from fleet.model.rebalances import Cause, CoordinatorMove, Rebalance
from fleet.slots import Change, ChangeState
from fleet.text import brief, duration, few, plural

# Whether a group, or a whole cluster, is in a storm, since when, and who makes it. Pure.
#
# Problem: a threshold on a count flaps, charges a deploy that was announced and priced, and tells
# the one who is woken neither who nor why. Choice: a storm begins with the first rebalance (or
# moved partition) above the budget of its window, and ends only when the window has held at most
# half of the budget for `cooldown` seconds. What our own changes were to cost is taken out first
# (`excused`). All is computed from the records' own times, so that it does not matter how often,
# or by whom, one looks: the answer for `now` is the same. The state is the storm itself; None is
# fair weather. Words name the member with the most joins and leaves
# (`fleet.decide.storms`). Cost: the caller reads rebalances of up to two windows back
# (`reach`).


# A storm's course, moment by moment, the same for one moment and for a day's picture: times are
# sorted once, and the window behind any moment is two bisections.


class Window:
    """Rebalances by time, and what the window behind any moment up to `now` holds of them."""

    def __init__(self, counted: Sequence[Rebalance], budget: Budget, now: float) -> None:
        self._counted = counted
        self.budget = budget
        self._now = now
        # A coordinator's clock may be ahead of ours: what it has written has happened.
        self._times = [min(r.ended_at, now) for r in counted]
        self._leaves = [t + budget.window for t in self._times]
        self._moved = [0, *accumulate(len(r.moved) for r in counted)]

    def moments(self, *, after: float | None) -> list[float]:
        """When something may have changed: a rebalance came, or left the window; and now."""
        # From `known` on the window is wholly seen, though nothing may have happened in it.
        known = self._now - self.budget.window - self.budget.cooldown
        events = {*self._times, *self._leaves, known, self._now}
        return sorted(t for t in events if t <= self._now and (after is None or t > after))

    def _bounds(self, at: float) -> tuple[int, int]:
        return bisect_right(self._leaves, at), bisect_right(self._times, at)

    def inside(self, at: float) -> Sequence[Rebalance]:
        """In the window behind a moment."""
        first, last = self._bounds(at)
        return self._counted[first:last]

    def moved(self, at: float) -> int:
        """Partitions moved in the window behind a moment."""
        first, last = self._bounds(at)
        return self._moved[last] - self._moved[first]

    def _above(self, at: float, *, share: int) -> bool:
        first, last = self._bounds(at)
        budget = self.budget
        churn = budget.moved is not None and self.moved(at) > budget.moved // share
        return last - first > budget.rebalances // share or churn

    def over(self, at: float) -> bool:
        """Above the budget."""
        return self._above(at, share=1)

    def low(self, at: float) -> bool:
        """At most half of it."""
        return not self._above(at, share=2)


class Course(NamedTuple):
    """Since when there is a storm, and since when it is calming; None = it is not."""

    since: float | None = None
    cooldown_since: float | None = None

    def ended(self, at: float, budget: Budget) -> bool:
        """Whether it has been calm for so long that it is no storm any more."""
        return self.cooldown_since is not None and at - self.cooldown_since >= budget.cooldown

    def then(self, at: float, window: Window) -> "Course":
        """At the next moment."""
        since, cooldown_since = (None, None) if self.ended(at, window.budget) else self
        if since is None:
            return Course(at if window.over(at) else None)
        if not window.low(at):
            return Course(since)
        return Course(since, at if cooldown_since is None else cooldown_since)


# Who makes a storm: members are counted by instance id, else by client id (a dynamic member comes
# back under a new id); it belongs to one that has a part in at least half of the rebalances. Second
# cooperative rounds belong to the round before them.


JOIN_AND_LEAVE: Final = "join and leave"
_GENERATED: Final = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""What the coordinator appends to the client id of a classic dynamic member."""
_KIP_848: Final = re.compile(r"[A-Za-z0-9_-]{22}")
"""A member id that the client made: a UUID in base64."""
_JOINS: Final = {Cause.JOIN, Cause.CREATED}
_LEAVES: Final = {Cause.LEAVE, Cause.BATCHED_LEAVE, Cause.REMOVAL, Cause.EXPIRY}
_WITHOUT_MEMBERS: Final[Mapping[Cause, str]] = {
    Cause.PARTITIONS: "partitions of its topics come or go",
    Cause.SUBSCRIPTION: "a member changes its subscription",
    Cause.ASSIGNOR: "the assignor changes",
    Cause.LEADER_REJOIN: "the leader joins again without need",
    Cause.COORDINATOR_MOVE: "its coordinator moves",
    Cause.MIGRATION: "it migrates between protocols",
    Cause.RECREATED: "it is deleted and recreated",
}


def person(name: str, clients: Mapping[str, str]) -> str:
    """Who a member is, over all its comings and goings: instance id, else client."""
    client = clients.get(name) or (_GENERATED.sub("", name) if _GENERATED.search(name) else None)
    return name if client is None else f"client {client}"


def describe(
    rebalances: Iterable[Rebalance], clients: Mapping[str, str]
) -> tuple[str, str | None, str]:
    """Cause, top offender and words for the rebalances of a storm."""
    seen = list(rebalances)
    first = [r for r in seen if r.cause is not Cause.SECOND_ROUND] or seen
    if not first:
        return str(Cause.UNKNOWN), None, "nothing is recorded of it"
    comings: dict[str, list[float]] = defaultdict(list)
    goings: dict[str, list[float]] = defaultdict(list)
    parts: Counter[str] = Counter()
    for rebalance in first:
        came = {person(name, clients) for name in rebalance.joined}
        went = {person(name, clients) for name in rebalance.left}
        for name in came:
            comings[name].append(rebalance.ended_at)
        for name in went:
            goings[name].append(rebalance.ended_at)
        parts.update(came | went)
    cause = _cause(first)
    worst, part = min(parts.items(), key=lambda item: (-item[1], item[0]), default=("", 0))
    if part >= 2 and 2 * part >= len(first):
        expired = cause == Cause.EXPIRY
        words = _of_one(brief(worst), comings[worst], goings[worst], expired=expired)
        return cause, brief(worst), words
    if parts:
        words = _of_many(first, comings, goings, brief(worst), part)
        return cause, brief(worst) if part > 1 else None, words
    return cause, None, _of_none(first, cause)


def _cause(rebalances: Sequence[Rebalance]) -> str:
    """The most frequent cause; joins and leaves, in turn or in the same round, are one."""
    parts = [{r.cause, *r.also} for r in rebalances]
    joins, leaves = (sum(bool(p & which) for p in parts) for which in (_JOINS, _LEAVES))
    expiries = sum(Cause.EXPIRY in p for p in parts)
    if expiries and 3 * expiries >= len(parts):
        return str(Cause.EXPIRY)
    if joins and leaves and 2 * (joins + leaves) >= len(parts):
        return JOIN_AND_LEAVE
    count = Counter(r.cause for r in rebalances)
    return str(min(count, key=lambda c: (-count[c], c.value)))


def _period(times: Sequence[float]) -> float | None:
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def _of_one(name: str, comings: Sequence[float], goings: Sequence[float], *, expired: bool) -> str:
    """`orders-3 joins and leaves every 40 s`."""
    if comings and goings:
        does = "times out and joins again" if expired else "joins and leaves"
        period = _period(comings if len(comings) >= len(goings) else goings)
    else:
        does = "joins" if comings else "times out" if expired else "leaves"
        period = _period(comings or goings)
    every = f" every {duration(period)}" if period else ""
    return f"{name} {does}{every}"


def _of_many(
    rebalances: Sequence[Rebalance],
    comings: Mapping[str, Sequence[float]],
    goings: Mapping[str, Sequence[float]],
    worst: str,
    part: int,
) -> str:
    """Many members, each a few times: a deploy one by one, or ids that are new each time."""
    came, went = (sum(map(len, by.values())) for by in (comings, goings))
    lasted = duration(rebalances[-1].ended_at - rebalances[0].ended_at)
    done = [f"{plural(n, word)}" for n, word in ((came, "join"), (went, "leave")) if n]
    members = len(comings.keys() | goings.keys())
    said = f"{plural(members, 'member')}, one after another: {' and '.join(done)} in {lasted}"
    if all(_KIP_848.fullmatch(name) for name in comings.keys() | goings.keys()) and came and went:
        return f"{said} (or one that comes back under a new id each time)"
    return f"{said}, most often {worst} ({part} times)" if part > 1 else said


def _of_none(rebalances: Sequence[Rebalance], cause: str) -> str:
    """Nobody joined or left."""
    said = _WITHOUT_MEMBERS.get(Cause(cause), "no member joined or left, the log tells no cause")
    period = _period([r.ended_at for r in rebalances])
    return f"{said}, every {duration(period)}" if period else said


TOGETHER: Final = 10
"""As many groups in a storm at once are one storm of their cluster."""
_ONE_MOVE: Final = 60.0
"""Seconds between two moves that are one: partitions get their leaders one after another."""
_SKEW: Final = 60.0
"""Seconds by which a coordinator's clock may differ from ours."""

_S = TypeVar("_S", "Storm", "ClusterStorm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """A storm of one group, as it stood at `seen_at`."""

    cluster: str
    group: str
    since: float
    """When the budget was exceeded."""
    seen_at: float
    cooldown_since: float | None = None
    """Since when the window has held at most half of the budget; None = it does not."""
    rebalances: int
    """In the window at `seen_at`, without what our changes were to cost."""
    moved: int
    budget: int
    budget_moved: int | None
    window: float
    cause: str
    """A `fleet.model.rebalances.Cause`, or `join and leave`."""
    top_offender: str | None
    """Who joins or leaves most often: instance id, else client id; None = nobody stands out."""
    summary: str
    """Who does what how often: `orders-3 joins and leaves every 40 s`."""

    @property
    def sentence(self) -> str:
        """What a person needs to know, in one sentence without a full stop."""
        told = f"{plural(self.rebalances, 'rebalance')} in the last {duration(self.window)}"
        said = f"{told}, budget {self.budget}"
        if self.budget_moved is not None:
            said += f" ({plural(self.moved, 'partition')} moved, budget {self.budget_moved})"
        lasts = duration(max(0.0, self.seen_at - self.since))
        cooling_down = "; calming" if self.cooldown_since is not None else ""
        return f"storm for {lasts}: {said}; {self.summary}{cooling_down}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Excused:
    """Rebalances that a step of ours was to cost: as many as its expected cost, and no more."""

    most: int
    since: float
    until: float | None
    """None = the step is in hand."""
    numbers: tuple[int, int] | None
    """Generations or epochs after the first, up to the second; None = not known."""
    instances: frozenset[str]
    """Who may take part; empty = cannot be told (dynamic members)."""

    def covers(self, rebalance: Rebalance) -> bool:
        """Whether a rebalance may be one of the step's."""
        late = self.until is not None and rebalance.ended_at > self.until + _SKEW
        if late or rebalance.ended_at < self.since - _SKEW:
            return False
        if self.numbers and not self.numbers[0] < rebalance.number <= self.numbers[1]:
            return False
        changed = {*rebalance.joined, *rebalance.left, *rebalance.replaced}
        return not self.instances or not changed or bool(changed & self.instances)


def excused(changes: Iterable[Change], *, static: bool = True) -> tuple[Excused, ...]:
    """What these changes of one group were to cost; `static` = its members have instance ids."""
    found = []
    for change in changes:
        steps = change.plan.steps
        for receipt in change.receipts:
            expected_cost, ours = receipt.expected_cost.rebalances_max, receipt.rebalances
            first, last = receipt.from_generation, receipt.to_generation
            found.append(
                Excused(
                    most=expected_cost
                    if receipt.result is ReceiptResult.UNVERIFIED
                    else min(ours, expected_cost),
                    since=receipt.started_at,
                    until=receipt.started_at + receipt.seconds,
                    numbers=None if last is None else (-1 if first is None else first, last),
                    instances=_instances(change, receipt.step, static=static),
                )
            )
        if change.state is ChangeState.RUNNING and change.step < len(steps):
            found.append(
                Excused(
                    most=steps[change.step].expected_cost.rebalances_max,
                    since=change.step_began,
                    until=None,
                    numbers=None,
                    instances=_instances(change, change.step, static=static),
                )
            )
    return tuple(each for each in found if each.most > 0)


def _instances(change: Change, index: int, *, static: bool) -> frozenset[str]:
    if not static or index >= len(change.plan.steps):
        return frozenset()
    return frozenset(f"{change.group}-{n}" for n in change.plan.steps[index].slots)


def charged(
    rebalances: Iterable[Rebalance], excuses: Sequence[Excused] = ()
) -> tuple[Rebalance, ...]:
    """What counts against the budget, by time: each rebalance once, our own changes' left out."""
    once = {
        (r.log_partition, r.log_offset) if r.log_offset >= 0 else (r.number, r.ended_at): r
        for r in rebalances
    }
    left = [each.most for each in excuses]
    kept = []
    for rebalance in sorted(once.values(), key=lambda r: r.ended_at):
        for index, each in enumerate(excuses):
            if left[index] > 0 and each.covers(rebalance):
                left[index] -= 1
                break
        else:
            kept.append(rebalance)
    return tuple(kept)


def whole_from(excuses: Iterable[Excused], at: float) -> float:
    """The last time up to `at` that none of these reaches over: from there on rebalances are
    charged as they are among all.
    """
    for each in sorted(excuses, key=lambda e: -e.since):
        if each.since - _SKEW < at and (each.until is None or each.until + _SKEW >= at):
            at = each.since - _SKEW
    return at


def reach(budget: Budget) -> float:
    """How many seconds of rebalances `assess` wants to see."""
    return 2 * budget.window + budget.cooldown


def _not_ahead(before: _S, now: float) -> _S:
    """A storm of the last look without times that are still to come: where a clock was set back
    since then nobody waits for the old time to come again.
    """
    cooldown_since = before.cooldown_since
    return replace(
        before,
        since=min(before.since, now),
        cooldown_since=None if cooldown_since is None else min(cooldown_since, now),
    )


def assess(
    rebalances: Iterable[Rebalance],
    *,
    cluster: str,
    group: str,
    budget: Budget,
    now: float,
    before: Storm | None = None,
    excuses: Sequence[Excused] = (),
    clients: Mapping[str, str] | None = None,
) -> Storm | None:
    """The group's storm at `now`, or none.

    `rebalances` are the group's of the last `reach(budget)` seconds; more does no harm.
    `before` is the last answer, for storms that are older than that. `clients` names members
    by client id where their member ids do not (KIP-848: `fleet.model.rebalances.MembershipSpan`).
    """
    counted = Window(charged(rebalances, excuses), budget, now)
    # Of a clock that was set back the last look is ahead: what the window holds now counts anew.
    seen_at = before.seen_at if before and before.seen_at <= now else None
    before = before and _not_ahead(before, now)
    course = Course(before.since, before.cooldown_since) if before else Course()
    for at in counted.moments(after=seen_at):
        course = course.then(at, counted)
    since, cooldown_since = course
    if since is None or course.ended(now, budget):
        return None
    seen = counted.inside(now if cooldown_since is None else cooldown_since - 0.001)
    told = describe(seen, clients or {})
    if before is not None and before.since == since and (cooldown_since is not None or not seen):
        told = (before.cause, before.top_offender, before.summary)
    return Storm(
        cluster=cluster,
        group=group,
        since=since,
        seen_at=now,
        cooldown_since=cooldown_since,
        rebalances=len(counted.inside(now)),
        moved=counted.moved(now),
        budget=budget.rebalances,
        budget_moved=budget.moved,
        window=budget.window,
        cause=told[0],
        top_offender=told[1],
        summary=told[2],
    )


# --- a whole cluster ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStorm:
    """Many groups at once, or a move of coordinators: one cause, so one alert."""

    cluster: str
    since: float
    seen_at: float
    cooldown_since: float | None
    cause: str
    """`many groups` or `coordinator move`."""
    groups: int
    """In a storm of their own now."""
    summary: str
    move: CoordinatorMove | None = None
    """The last move, as long as a storm that it caused may last."""

    @property
    def sentence(self) -> str:
        """What a person needs to know, in one sentence without a full stop."""
        cooling_down = "; calming" if self.cooldown_since is not None else ""
        lasts = duration(max(0.0, self.seen_at - self.since))
        return f"storm of cluster {self.cluster} for {lasts}: {self.summary}{cooling_down}"


def _together(first: CoordinatorMove, then: CoordinatorMove) -> CoordinatorMove:
    return replace(
        then,
        partitions=min(then.of, first.partitions + then.partitions),
        lost=tuple(sorted({*first.lost, *then.lost})),
        gained=tuple(sorted({*first.gained, *then.gained})),
    )


def assess_cluster(
    storms: Iterable[Storm],
    *,
    cluster: str,
    budget: Budget,
    now: float,
    moves: Sequence[CoordinatorMove] = (),
    before: ClusterStorm | None = None,
) -> ClusterStorm | None:
    """The cluster's storm at `now`, or none: ten groups at once, or coordinators that moved.

    `moves` are new ones. A move counts for as long as a storm that it caused may last (the
    budget's window and calm); ten groups count until fewer than half of them are left.
    """
    groups = sorted(storm.group for storm in storms)
    before = before and _not_ahead(before, now)
    move = before.move if before else None
    for new in sorted(moves, key=lambda m: m.at):
        move = new if move is None or new.at - move.at > _ONE_MOVE else _together(move, new)
    if move is not None and move.at > now:
        move = replace(move, at=now)
    if move is not None and now - move.at >= budget.window + budget.cooldown:
        move = None
    many = len(groups) >= TOGETHER
    lasting = before is not None and before.cause == "many groups" and len(groups) > TOGETHER // 2
    if not many and not lasting and move is None:
        return _cooling_down(before, groups=len(groups), cooldown=budget.cooldown, now=now)
    since = before.since if before else min(now, move.at if move else now)
    parts = []
    if move is not None:
        parts.append(f"{move.summary} {duration(now - move.at)} ago")
    if many or lasting:
        parts.append(f"{plural(len(groups), 'group')} in a storm at once ({few(groups)})")
    return ClusterStorm(
        cluster=cluster,
        since=since,
        seen_at=now,
        cooldown_since=None,
        cause="coordinator move" if move is not None else "many groups",
        groups=len(groups),
        summary="; ".join(parts),
        move=move,
    )


def _cooling_down(
    before: ClusterStorm | None, *, groups: int, cooldown: float, now: float
) -> ClusterStorm | None:
    """A move has waited its calm already; many groups wait it now."""
    if before is None or before.cause == "coordinator move":
        return None
    since = now if before.cooldown_since is None else before.cooldown_since
    if now - since >= cooldown:
        return None
    return replace(before, seen_at=now, cooldown_since=since, groups=groups, move=None)


_KEPT_UNREAD: Final = 3600.0
"""Seconds for which a storm is believed that is not seen: tables may be written every 10 min."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StormWatch:
    """The storms of one cluster as they were last seen."""

    storms: Mapping[str, Storm] = field(default_factory=dict)
    """By group."""
    cluster: ClusterStorm | None = None

    def look(
        self,
        spec: FleetSpec,
        rebalances: Iterable[Rebalance],
        *,
        now: float,
        changes: Mapping[str, Sequence[Change]] | None = None,
        moves: Sequence[CoordinatorMove] = (),
        clients: Mapping[str, str] | None = None,
        is_read: Callable[[str], bool] = lambda _: True,
    ) -> "StormWatch":
        """The next state.

        `rebalances` are those of all groups within `watch_reach(spec)` seconds, in any order;
        `changes` by group are what our own changes were to cost; `moves` are new ones;
        `clients` gives client ids by member id. A group that is not read is no calm one: its
        storm stays as it was, for as long as it may be read again.
        """
        by_group: dict[str, list[Rebalance]] = defaultdict(list)
        for rebalance in rebalances:
            by_group[rebalance.group].append(rebalance)
        declared = {fleet.group: fleet for fleet in spec.fleets}
        storms = {}
        for group in by_group.keys() | self.storms.keys():
            known = self.storms.get(group)
            if not is_read(group):
                if known is not None and abs(now - known.seen_at) <= _KEPT_UNREAD:
                    storms[group] = known
                continue
            storm = assess(
                by_group[group],
                cluster=spec.cluster.name,
                group=group,
                budget=_budget(spec, declared.get(group)),
                now=now,
                before=known,
                excuses=_excuses(declared.get(group), (changes or {}).get(group, ())),
                clients=clients,
            )
            if storm is not None:
                storms[group] = storm
        cluster = assess_cluster(
            storms.values(),
            cluster=spec.cluster.name,
            budget=spec.storm,
            now=now,
            moves=moves,
            before=self.cluster,
        )
        return StormWatch(storms=storms, cluster=cluster)


def budget_of(spec: FleetSpec, group: str) -> Budget:
    """The group's own, or the file's for groups that no fleet declares."""
    return _budget(spec, spec.fleet(group))


def excuses_of(spec: FleetSpec, group: str, changes: Sequence[Change]) -> tuple[Excused, ...]:
    """What the group's changes were to cost."""
    return _excuses(spec.fleet(group), changes)


def _budget(spec: FleetSpec, declared: GroupSpec | None) -> Budget:
    return declared.storm if declared is not None else spec.storm


def _excuses(declared: GroupSpec | None, changes: Sequence[Change]) -> tuple[Excused, ...]:
    worker = declared.worker if declared is not None else None
    return excused(changes, static=worker is None or worker.membership == "static")


def watch_most(spec: FleetSpec) -> int:
    """The largest budget of rebalances: that many of a group tell a storm."""
    return max(spec.storm.rebalances, *(fleet.storm.rebalances for fleet in spec.fleets), 0)


def watch_reach(spec: FleetSpec) -> float:
    """How many seconds of rebalances `StormWatch.look` wants to see."""
    return max(reach(spec.storm), *(reach(fleet.storm) for fleet in spec.fleets), 0.0)
