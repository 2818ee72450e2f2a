"""Detects storms in all groups of a cluster, refresh by refresh. Pure.

Problem: an exporter, a sensor and a schedule each check thousands of mostly quiet groups every few
seconds, and a restart must not forget a storm. Choice: one value holds the current storms. A
refresh takes the last rebalances of all groups and returns the next value. Groups without
rebalances and without a storm cost nothing. Cost: a storm shows at the first refresh after the
rebalance above the budget, within two intervals.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.config.spec import StormSpec as Budget
from fleet.model import ReceiptResult
from fleet.model.rebalances import Cause, CoordinatorMove, Rebalance
from fleet.slots import Change, ChangeState
from fleet.text import brief, duration, few, plural

# Whether a group or a whole cluster is in a storm, since when, and who causes it. Pure.
#
# Problem: a threshold on a count flaps, counts a planned deploy, and names neither cause nor
# member. Choice: a storm begins with the first rebalance (or moved partition) above the budget of
# its window. It ends when the window has held at most half of the budget for `cooldown` seconds.
# The expected rebalances of Fleet's own changes are subtracted first (`expected_rebalances`). All
# is computed from the records' times, so that the number of refreshes does not matter. The summary
# names the member with the most joins and leaves. Cost: the caller reads rebalances of two windows
# (`reach`).


# A storm's timeline: times are sorted once, and the window before any moment is two bisections.


class Window:
    """Indexes rebalances by time and returns the window before any moment up to `now`."""

    def __init__(self, counted: Sequence[Rebalance], budget: Budget, now: float) -> None:
        self._counted = counted
        self.budget = budget
        self._now = now
        # A coordinator's clock may be ahead of ours; its records are in the past.
        self._times = [min(r.ended_at, now) for r in counted]
        self._leaves = [t + budget.window for t in self._times]
        self._moved = [0, *accumulate(len(r.moved) for r in counted)]

    def moments(self, *, after: float | None) -> list[float]:
        """Returns the moments at which a rebalance entered or left the window, and now."""
        # From `known` on, all of the window was read.
        known = self._now - self.budget.window - self.budget.cooldown
        events = {*self._times, *self._leaves, known, self._now}
        return sorted(t for t in events if t <= self._now and (after is None or t > after))

    def _bounds(self, at: float) -> tuple[int, int]:
        return bisect_right(self._leaves, at), bisect_right(self._times, at)

    def inside(self, at: float) -> Sequence[Rebalance]:
        """Returns the rebalances in the window before a moment."""
        first, last = self._bounds(at)
        return self._counted[first:last]

    def moved(self, at: float) -> int:
        """Counts the partitions moved in the window before a moment."""
        first, last = self._bounds(at)
        return self._moved[last] - self._moved[first]

    def _above(self, at: float, *, share: int) -> bool:
        first, last = self._bounds(at)
        budget = self.budget
        churn = budget.moved is not None and self.moved(at) > budget.moved // share
        return last - first > budget.rebalances // share or churn

    def over(self, at: float) -> bool:
        """Tells whether the window is above the budget."""
        return self._above(at, share=1)

    def low(self, at: float) -> bool:
        """Tells whether the window holds at most half of the budget."""
        return not self._above(at, share=2)


class StormTimeline(NamedTuple):
    """Tracks since when a storm lasts, and since when it is cooling down."""

    since: float | None = None
    cooldown_since: float | None = None

    def ended(self, at: float, budget: Budget) -> bool:
        """Tells whether the cooldown has passed, so that the storm is over."""
        return self.cooldown_since is not None and at - self.cooldown_since >= budget.cooldown

    def then(self, at: float, window: Window) -> "StormTimeline":
        """Returns the timeline at the next moment."""
        since, cooldown_since = (None, None) if self.ended(at, window.budget) else self
        if since is None:
            return StormTimeline(at if window.over(at) else None)
        if not window.low(at):
            return StormTimeline(since)
        return StormTimeline(since, at if cooldown_since is None else cooldown_since)


# Who causes a storm: members are counted by instance id, else by client id, since a dynamic member
# returns under a new id. The top offender takes part in at least half of the rebalances. Second
# cooperative rounds belong to the round before them.


JOIN_AND_LEAVE: Final = "join and leave"
_GENERATED: Final = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""Suffix that the coordinator appends to the client id of a classic dynamic member."""
_KIP_848: Final = re.compile(r"[A-Za-z0-9_-]{22}")
"""Member id that the client generated: a UUID in base64."""
_JOINS: Final = {Cause.JOIN, Cause.CREATED}
_LEAVES: Final = {Cause.LEAVE, Cause.BATCHED_LEAVE, Cause.REMOVAL, Cause.EXPIRY}
_WITHOUT_MEMBERS: Final[Mapping[Cause, str]] = {
    Cause.PARTITIONS: "the number of partitions of its topics changes",
    Cause.SUBSCRIPTION: "a member changes its subscription",
    Cause.ASSIGNOR: "the assignor changes",
    Cause.LEADER_REJOIN: "the leader joins again without a change",
    Cause.COORDINATOR_MOVE: "its coordinator moves",
    Cause.MIGRATION: "it migrates between protocols",
    Cause.RECREATED: "it is deleted and recreated",
}


def stable_name(name: str, clients: Mapping[str, str]) -> str:
    """Returns a name that stays the same over rejoins: instance id, else client id."""
    client = clients.get(name) or (_GENERATED.sub("", name) if _GENERATED.search(name) else None)
    return name if client is None else f"client {client}"


def describe(
    rebalances: Iterable[Rebalance], clients: Mapping[str, str]
) -> tuple[str, str | None, str]:
    """Returns cause, top offender and summary for the rebalances of a storm."""
    seen = list(rebalances)
    first = [r for r in seen if r.cause is not Cause.SECOND_ROUND] or seen
    if not first:
        return str(Cause.UNKNOWN), None, "no rebalance is recorded"
    comings: dict[str, list[float]] = defaultdict(list)
    goings: dict[str, list[float]] = defaultdict(list)
    parts: Counter[str] = Counter()
    for rebalance in first:
        came = {stable_name(name, clients) for name in rebalance.joined}
        went = {stable_name(name, clients) for name in rebalance.left}
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
    """Returns the most frequent cause; joins and leaves together are one."""
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
    """Describes one member: `orders-3 joins and leaves every 40 s`."""
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
    """Describes many members: a deploy one by one, or ids that are new each time."""
    came, went = (sum(map(len, by.values())) for by in (comings, goings))
    lasted = duration(rebalances[-1].ended_at - rebalances[0].ended_at)
    done = [f"{plural(n, word)}" for n, word in ((came, "join"), (went, "leave")) if n]
    members = len(comings.keys() | goings.keys())
    words = f"{plural(members, 'member')}, one after another: {' and '.join(done)} in {lasted}"
    if all(_KIP_848.fullmatch(name) for name in comings.keys() | goings.keys()) and came and went:
        return f"{words} (or one that returns under a new id each time)"
    return f"{words}, most often {worst} ({part} times)" if part > 1 else words


def _of_none(rebalances: Sequence[Rebalance], cause: str) -> str:
    """Describes a storm in which no member joined or left."""
    words = _WITHOUT_MEMBERS.get(Cause(cause), "no member joined or left; the cause is unknown")
    period = _period([r.ended_at for r in rebalances])
    return f"{words}, every {duration(period)}" if period else words


TOGETHER: Final = 10
"""Groups in a storm at the same time that make a storm of the cluster."""
_ONE_MOVE: Final = 60.0
"""Seconds between two moves that are one: partitions get their leaders one after another."""
_SKEW: Final = 60.0
"""Seconds by which a coordinator's clock may differ from ours."""

_S = TypeVar("_S", "Storm", "ClusterStorm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """Describes a storm of one group at the time `seen_at`."""

    cluster: str
    group: str
    since: float
    """Time at which the budget was exceeded."""
    seen_at: float
    cooldown_since: float | None = None
    """Time since which the window holds at most half of the budget; None: it holds more."""
    rebalances: int
    """Rebalances in the window, without the expected ones of Fleet's changes."""
    moved: int
    budget: int
    budget_moved: int | None
    window: float
    cause: str
    """A `fleet.model.rebalances.Cause`, or `join and leave`."""
    top_offender: str | None
    """Member that joins or leaves most often: instance id, else client id; None: no such member."""
    summary: str
    """Summary such as `orders-3 joins and leaves every 40 s`."""

    @property
    def sentence(self) -> str:
        """Describes the storm in one sentence without a full stop."""
        count = f"{plural(self.rebalances, 'rebalance')} in the last {duration(self.window)}"
        figures = f"{count}, budget {self.budget}"
        if self.budget_moved is not None:
            figures += f" ({plural(self.moved, 'partition')} moved, budget {self.budget_moved})"
        lasts = duration(max(0.0, self.seen_at - self.since))
        cooling_down = "; cooling down" if self.cooldown_since is not None else ""
        return f"storm for {lasts}: {figures}; {self.summary}{cooling_down}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRebalances:
    """Describes the rebalances that a step of Fleet was expected to cost."""

    most: int
    since: float
    until: float | None
    """None: the step is running."""
    numbers: tuple[int, int] | None
    """Generations or epochs after the first, up to the second; None: unknown."""
    instances: frozenset[str]
    """Members that may take part; empty: unknown (dynamic members)."""

    def covers(self, rebalance: Rebalance) -> bool:
        """Tells whether a rebalance may be one of the step's."""
        late = self.until is not None and rebalance.ended_at > self.until + _SKEW
        if late or rebalance.ended_at < self.since - _SKEW:
            return False
        if self.numbers and not self.numbers[0] < rebalance.number <= self.numbers[1]:
            return False
        changed = {*rebalance.joined, *rebalance.left, *rebalance.replaced}
        return not self.instances or not changed or bool(changed & self.instances)


def expected_rebalances(
    changes: Iterable[Change], *, static: bool = True
) -> tuple[ExpectedRebalances, ...]:
    """Returns the expected rebalances of a group's changes; `static`: members have instance ids."""
    found = []
    for change in changes:
        steps = change.plan.steps
        for receipt in change.receipts:
            expected_cost, ours = receipt.expected_cost.rebalances_max, receipt.rebalances
            first, last = receipt.from_generation, receipt.to_generation
            found.append(
                ExpectedRebalances(
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
                ExpectedRebalances(
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


def count_against_budget(
    rebalances: Iterable[Rebalance], excuses: Sequence[ExpectedRebalances] = ()
) -> tuple[Rebalance, ...]:
    """Returns the rebalances that count against the budget, by time, each once."""
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


def settled_start(excuses: Iterable[ExpectedRebalances], at: float) -> float:
    """Returns the last time up to `at` that none of these spans; from there on, rebalances count
    the same as among all.
    """
    for each in sorted(excuses, key=lambda e: -e.since):
        if each.since - _SKEW < at and (each.until is None or each.until + _SKEW >= at):
            at = each.since - _SKEW
    return at


def reach(budget: Budget) -> float:
    """Returns how many seconds of rebalances `assess` needs."""
    return 2 * budget.window + budget.cooldown


def _not_ahead(before: _S, now: float) -> _S:
    """Removes times in the future from the last storm, in case a clock was set back."""
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
    excuses: Sequence[ExpectedRebalances] = (),
    clients: Mapping[str, str] | None = None,
) -> Storm | None:
    """Returns the group's storm at `now`, or None.

    `rebalances` are the group's of at least the last `reach(budget)` seconds. `before` is the last
    result, for older storms. `clients` gives client ids by member id for KIP-848 members
    (`fleet.model.rebalances.MembershipSpan`).
    """
    counted = Window(count_against_budget(rebalances, excuses), budget, now)
    # If a clock was set back, the last refresh is in the future, and the window counts anew.
    seen_at = before.seen_at if before and before.seen_at <= now else None
    before = before and _not_ahead(before, now)
    line = StormTimeline(before.since, before.cooldown_since) if before else StormTimeline()
    for at in counted.moments(after=seen_at):
        line = line.then(at, counted)
    since, cooldown_since = line
    if since is None or line.ended(now, budget):
        return None
    seen = counted.inside(now if cooldown_since is None else cooldown_since - 0.001)
    found = describe(seen, clients or {})
    if before is not None and before.since == since and (cooldown_since is not None or not seen):
        found = (before.cause, before.top_offender, before.summary)
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
        cause=found[0],
        top_offender=found[1],
        summary=found[2],
    )


# --- a whole cluster ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStorm:
    """Describes a storm of many groups, or of moved coordinators: one cause, so one alert."""

    cluster: str
    since: float
    seen_at: float
    cooldown_since: float | None
    cause: str
    """`many groups` or `coordinator move`."""
    groups: int
    """Groups that are in a storm now."""
    summary: str
    move: CoordinatorMove | None = None
    """Last move, as long as a storm that it caused may last."""

    @property
    def sentence(self) -> str:
        """Describes the storm in one sentence without a full stop."""
        cooling_down = "; cooling down" if self.cooldown_since is not None else ""
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
    """Returns the cluster's storm at `now`, or None: ten groups at once, or moved coordinators.

    `moves` are new ones. A move counts for as long as a storm that it caused may last (the budget's
    window and cooldown); ten groups count until fewer than half of them are left.
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
    """Applies the cooldown to a storm of many groups; a move has already waited."""
    if before is None or before.cause == "coordinator move":
        return None
    since = now if before.cooldown_since is None else before.cooldown_since
    if now - since >= cooldown:
        return None
    return replace(before, seen_at=now, cooldown_since=since, groups=groups, move=None)


_KEPT_UNREAD: Final = 3600.0
"""Seconds that a storm stays without a refresh: tables may be written every 10 min."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StormWatch:
    """Holds the storms of one cluster at the last refresh."""

    storms: Mapping[str, Storm] = field(default_factory=dict)
    """By group."""
    cluster: ClusterStorm | None = None

    def refresh(
        self,
        spec: FleetSpec,
        rebalances: Iterable[Rebalance],
        *,
        now: float,
        changes: Mapping[str, Sequence[Change]] | None = None,
        moves: Sequence[CoordinatorMove] = (),
        clients: Mapping[str, str] | None = None,
        is_read: Callable[[str], bool] = lambda _: True,
        assessed: Mapping[str, Storm | None] = MappingProxyType({}),
    ) -> "StormWatch":
        """Returns the next state.

        `rebalances` are those of all groups within `watch_reach(spec)` seconds, in any order;
        `changes` are Fleet's own by group; `moves` are new ones; `clients` gives client ids by
        member id. The storm of a group that was not read stays for a while. `assessed` are the
        storms of groups that the caller has assessed.
        """
        by_group: dict[str, list[Rebalance]] = defaultdict(list)
        for rebalance in rebalances:
            by_group[rebalance.group].append(rebalance)
        declared = {fleet.group: fleet for fleet in spec.fleets}
        storms = {group: storm for group, storm in assessed.items() if storm is not None}
        for group in (by_group.keys() | self.storms.keys()) - assessed.keys():
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
                excuses=_expected_rebalances(declared.get(group), (changes or {}).get(group, ())),
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
    """Returns the budget of a group, or the file's for undeclared groups."""
    return _budget(spec, spec.fleet(group))


def expected_rebalances_of(
    spec: FleetSpec, group: str, changes: Sequence[Change]
) -> tuple[ExpectedRebalances, ...]:
    """Returns the expected rebalances of the group's changes."""
    return _expected_rebalances(spec.fleet(group), changes)


def _budget(spec: FleetSpec, declared: GroupSpec | None) -> Budget:
    return declared.storm if declared is not None else spec.storm


def _expected_rebalances(
    declared: GroupSpec | None, changes: Sequence[Change]
) -> tuple[ExpectedRebalances, ...]:
    worker = declared.worker if declared is not None else None
    return expected_rebalances(changes, static=worker is None or worker.membership == "static")


def watch_most(spec: FleetSpec) -> int:
    """Returns the largest budget of rebalances; more of a group than that are not needed."""
    return max(spec.storm.rebalances, *(fleet.storm.rebalances for fleet in spec.fleets), 0)


def watch_reach(spec: FleetSpec) -> float:
    """Returns how many seconds of rebalances `StormWatch.refresh` needs."""
    return max(reach(spec.storm), *(reach(fleet.storm) for fleet in spec.fleets), 0.0)
