"""Whether a group, or a whole cluster, is in a storm, since when, and who makes it. Pure.

Problem: a threshold on a count flaps, charges a deploy that was announced and priced, and tells
the one who is woken neither who nor why. Choice: a storm begins with the first rebalance (or
moved partition) above the budget of its window, and ends only when the window has held at most
half of the budget for `calm` seconds. What our own changes were to cost is taken out first
(`excused`). All is computed from the records' own times, so that it does not matter how often,
or by whom, one looks: the answer for `now` is the same. The state is the storm itself; None is
fair weather. Words name the member with the most joins and leaves
(`fleet.decide.storms.storm_words`). Cost: the caller reads rebalances of up to two windows back
(`reach`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeVar

from fleet.config.spec import StormSpec as Budget
from fleet.decide.storms.storm_window import Course, Window
from fleet.decide.storms.storm_words import describe
from fleet.model import Verdict
from fleet.model.rebalances import CoordinatorMove, Rebalance
from fleet.slots import Change, ChangeState
from fleet.text import duration, few, plural

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
    calm_since: float | None = None
    """Since when the window has held at most half of the budget; None = it does not."""
    rebalances: int
    """In the window at `seen_at`, without what our changes were to cost."""
    moved: int
    budget: int
    budget_moved: int | None
    window: float
    cause: str
    """A `fleet.model.rebalances.Cause`, or `join and leave`."""
    member: str | None
    """Who joins or leaves most often: instance id, else client id; None = nobody stands out."""
    words: str
    """Who does what how often: `orders-3 joins and leaves every 40 s`."""

    @property
    def sentence(self) -> str:
        """What a person needs to know, in one sentence without a full stop."""
        told = f"{plural(self.rebalances, 'rebalance')} in the last {duration(self.window)}"
        said = f"{told}, budget {self.budget}"
        if self.budget_moved is not None:
            said += f" ({plural(self.moved, 'partition')} moved, budget {self.budget_moved})"
        lasts = duration(max(0.0, self.seen_at - self.since))
        calming = "; calming" if self.calm_since is not None else ""
        return f"storm for {lasts}: {said}; {self.words}{calming}"

    def as_json(self) -> dict[str, Any]:
        """For the store."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any] | None) -> "Storm | None":
        """What `as_json` gave; None where it is of another version (all is told anew)."""
        try:
            return cls(**stored) if stored else None
        except TypeError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Excused:
    """Rebalances that a step of ours was to cost: as many as its price, and no more."""

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
            price, ours = receipt.price.rebalances_max, receipt.ours
            first, last = receipt.from_generation, receipt.to_generation
            found.append(
                Excused(
                    most=price if receipt.verdict is Verdict.UNVERIFIED else min(ours, price),
                    since=receipt.started_at,
                    until=receipt.started_at + receipt.seconds,
                    numbers=None if last is None else (-1 if first is None else first, last),
                    instances=_instances(change, receipt.step, static=static),
                )
            )
        if change.state is ChangeState.RUNNING and change.step < len(steps):
            found.append(
                Excused(
                    most=steps[change.step].price.rebalances_max,
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
    return 2 * budget.window + budget.calm


def _not_ahead(before: _S, now: float) -> _S:
    """A storm of the last look without times that are still to come: where a clock was set back
    since then nobody waits for the old time to come again.
    """
    calm_since = before.calm_since
    return replace(
        before,
        since=min(before.since, now),
        calm_since=None if calm_since is None else min(calm_since, now),
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
    course = Course(before.since, before.calm_since) if before else Course()
    for at in counted.moments(after=seen_at):
        course = course.then(at, counted)
    since, calm_since = course
    if since is None or course.ended(now, budget):
        return None
    seen = counted.inside(now if calm_since is None else calm_since - 0.001)
    told = describe(seen, clients or {})
    if before is not None and before.since == since and (calm_since is not None or not seen):
        told = (before.cause, before.member, before.words)
    return Storm(
        cluster=cluster,
        group=group,
        since=since,
        seen_at=now,
        calm_since=calm_since,
        rebalances=len(counted.inside(now)),
        moved=counted.moved(now),
        budget=budget.rebalances,
        budget_moved=budget.moved,
        window=budget.window,
        cause=told[0],
        member=told[1],
        words=told[2],
    )


# --- a whole cluster ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStorm:
    """Many groups at once, or a move of coordinators: one cause, so one alert."""

    cluster: str
    since: float
    seen_at: float
    calm_since: float | None
    cause: str
    """`many groups` or `coordinator move`."""
    groups: int
    """In a storm of their own now."""
    words: str
    move: CoordinatorMove | None = None
    """The last move, as long as a storm that it caused may last."""

    @property
    def sentence(self) -> str:
        """What a person needs to know, in one sentence without a full stop."""
        calming = "; calming" if self.calm_since is not None else ""
        lasts = duration(max(0.0, self.seen_at - self.since))
        return f"storm of cluster {self.cluster} for {lasts}: {self.words}{calming}"

    def as_json(self) -> dict[str, Any]:
        """For the store."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any] | None) -> "ClusterStorm | None":
        """What `as_json` gave; None where it is of another version."""
        try:
            if not stored:
                return None
            move = stored["move"]
            return cls(**{**stored, "move": move and _move(move)})
        except (KeyError, TypeError):
            return None


def _together(first: CoordinatorMove, then: CoordinatorMove) -> CoordinatorMove:
    return replace(
        then,
        partitions=min(then.of, first.partitions + then.partitions),
        lost=tuple(sorted({*first.lost, *then.lost})),
        gained=tuple(sorted({*first.gained, *then.gained})),
    )


def _move(stored: Mapping[str, Any]) -> CoordinatorMove:
    lost, gained = tuple(stored["lost"]), tuple(stored["gained"])
    return CoordinatorMove(**{**stored, "lost": lost, "gained": gained})


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
    if move is not None and now - move.at >= budget.window + budget.calm:
        move = None
    many = len(groups) >= TOGETHER
    lasting = before is not None and before.cause == "many groups" and len(groups) > TOGETHER // 2
    if not many and not lasting and move is None:
        return _calming(before, groups=len(groups), calm=budget.calm, now=now)
    since = before.since if before else min(now, move.at if move else now)
    words = []
    if move is not None:
        words.append(f"{move.words} {duration(now - move.at)} ago")
    if many or lasting:
        words.append(f"{plural(len(groups), 'group')} in a storm at once ({few(groups)})")
    return ClusterStorm(
        cluster=cluster,
        since=since,
        seen_at=now,
        calm_since=None,
        cause="coordinator move" if move is not None else "many groups",
        groups=len(groups),
        words="; ".join(words),
        move=move,
    )


def _calming(
    before: ClusterStorm | None, *, groups: int, calm: float, now: float
) -> ClusterStorm | None:
    """A move has waited its calm already; many groups wait it now."""
    if before is None or before.cause == "coordinator move":
        return None
    since = now if before.calm_since is None else before.calm_since
    if now - since >= calm:
        return None
    return replace(before, seen_at=now, calm_since=since, groups=groups, move=None)
