"""One tick's look at the cluster: every group, and what is said of it.

A snapshot of all groups is one batched question. Where the history's tables are fresh they
tell the rebalances of all groups at once (fleet.dagster.watch.recent_rebalances). Elsewhere
counting a group's is a read of its partition of `__consumer_offsets` (10 to 100 ms), too much for
300 groups in a tick: it is done for groups that changed, for those that were over their budget, and
in turns for some of the others, so that each is counted several times within the usual window.
Whether a group keeps up is judged as `fleet status` does; its past is read only where something has
waited.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dagster import AssetCheckEvaluation, AssetObservation

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.dagster import asset_keys
from fleet.dagster.judgements import Judgement, lag_judgement, receipt_judgement, storm_judgement
from fleet.dagster.watch.recent_rebalances import RecentRebalances, from_tables
from fleet.dagster.watch.sensor_cursor import GroupSummary, SensorMemory, due
from fleet.decide.storms.storm_watch import watch_reach
from fleet.decide.verdicts import GroupVerdict
from fleet.errors import Damaged, FleetError, SchemaTooNew
from fleet.lag.snapshot import Snapshot
from fleet.manager.keeping_up import in_doubt, judged
from fleet.manager.lag_judge import verdicts
from fleet.manager.recent import minutes_of
from fleet.model import GroupSnapshot, GroupState
from fleet.model.rebalances import Rebalance
from fleet.slots import Change, ChangeState
from fleet.text import duration

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet

COUNTED_A_TICK = 20
"""Unchanged groups whose rebalances are counted in a tick, in turns."""
COUNTING_SECONDS = 8.0
Event = AssetObservation | AssetCheckEvaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTick:
    """One group in one tick, with all that is said of it."""

    group: str
    state: GroupSnapshot
    fleet: GroupSpec | None = None
    """None: not declared."""
    lag: Judgement | None = None
    budget: Judgement | None = None
    """None: not counted in this tick."""
    change: Change | None = None
    unread: str = ""
    """Why nothing is known of its changes: what is stored of them cannot be read."""
    was_over: bool = False

    @property
    def look(self) -> GroupSummary:
        """What is compared from tick to tick."""
        lag = self.lag and (self.lag.passed, self.lag.severity.value, self.lag.verdict)
        done = self.change and (self.change.plan.id, self.change.state.value)
        over = self.was_over if self.budget is None else not self.budget.passed
        return replace(GroupSummary.of(self.state, lag, done), over=over)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a tick saw."""

    at: float
    spec: FleetSpec
    groups: tuple[GroupTick, ...]
    problems: tuple[str, ...]
    unread: str = ""
    """Why the history's tables told of no group, though they are there."""
    writable: bool = True
    """Whether those who carry out changes could have renewed their leases [38]."""


def look(cycle: "Fleet", memory: SensorMemory) -> Looked:
    """One snapshot of the whole cluster, judged."""
    snapshot = cycle.snapshot()
    known = {fleet.group for fleet in cycle.spec.fleets}
    history = from_tables(cycle, since=snapshot.at - watch_reach(cycle.spec), now=snapshot.at)
    unread = "" if history is None else history.problem
    keep_up = keeping_up(cycle, snapshot, known, unread=unread)
    declared = [
        declared_group(cycle, fleet, snapshot.groups.get(fleet.group), keep_up, memory)
        for fleet in cycle.spec.fleets
    ]
    others = [
        GroupTick(group=group, state=state)
        for group, state in snapshot.groups.items()
        if group not in known and state.exists
    ]
    counted = with_budgets(cycle, declared, memory, history, now=snapshot.at)
    return Looked(
        at=snapshot.at,
        spec=cycle.spec,
        groups=(*counted, *others),
        problems=(*snapshot.problems, *(seen.unread for seen in declared if seen.unread)),
        unread=unread,
        writable=all(
            is_writable(cycle, seen.group)
            for seen in declared
            if seen.change is not None and seen.change.state is ChangeState.RUNNING
        ),
    )


def is_writable(cycle: "Fleet", group: str) -> bool:
    """Whether what is written of a group is stored, tried as its changer would write it."""
    try:
        cycle.store.beat(group)
    except FleetError:
        return False
    return True


def keeping_up(
    cycle: "Fleet", snapshot: Snapshot, groups: Iterable[str], *, unread: str = ""
) -> Mapping[str, GroupVerdict]:
    """Judge these groups; the past is read of those alone in which something has waited for long.

    unread: why the tables cannot be read, where that is known: a store that is away is waited for
    once in a tick.
    """
    mine = snapshot.only(frozenset(groups).__contains__)
    doubted = in_doubt(mine, ())
    found = verdicts(mine.only(lambda group: group not in doubted))
    if not doubted:
        return found
    past = minutes_of(cycle, doubted, unread=unread)
    return found | judged(cycle, mine.only(doubted.__contains__), past, doubted)[1]


def declared_group(
    cycle: "Fleet",
    fleet: GroupSpec,
    state: GroupSnapshot | None,
    keep_up: Mapping[str, GroupVerdict],
    memory: SensorMemory,
) -> GroupTick:
    """A declared group, whether Kafka knows it or not."""
    known = memory.known(fleet.group)
    state = state or missing(fleet.group)
    change, unread = None, ""
    try:
        change = cycle.change(fleet.group) if fleet.worker is not None else None
    except (Damaged, SchemaTooNew) as error:  # of this group: the others are looked at
        unread = str(error)
    return GroupTick(
        group=fleet.group,
        state=state,
        fleet=fleet,
        lag=lag_judgement(fleet, state, keep_up.get(fleet.group)),
        change=change,
        unread=unread,
        was_over=known is not None and known.over,
    )


def with_budgets(
    cycle: "Fleet",
    declared: list[GroupTick],
    memory: SensorMemory,
    history: RecentRebalances | None,
    *,
    now: float,
) -> Iterator[GroupTick]:
    """Count the rebalances of groups that need it, as far as the time reaches.

    The groups whose turn it is come first, then those behind them: in a storm of many groups the
    time is up before the end of any order, and another end each tick.
    """
    began = cycle.clock.monotonic()
    telling = {told.group for told in due((s.look for s in declared), memory, now=now)}
    turn = in_turn([s.group for s in declared], now=now)
    first = next((n for n, seen in enumerate(declared) if seen.group in turn), 0)
    for seen in [*declared[first:], *declared[:first]]:
        known = None if history is None else history.of(seen.group)
        needed = seen.was_over or seen.group in telling or seen.group in turn or bool(known)
        if not needed or cycle.clock.monotonic() - began > COUNTING_SECONDS or seen.fleet is None:
            yield seen
            continue
        yield replace(seen, budget=budget_of(cycle, seen.fleet, known, now=now))


def budget_of(
    cycle: "Fleet", fleet: GroupSpec, known: Sequence[Rebalance] | None, *, now: float
) -> Judgement:
    """The check on storms; `known` are the group's rebalances by the tables, None: by the log."""
    window = fleet.storm.window
    if known is None:
        recorded = cycle.rebalances(fleet.group, window=window)
    else:
        recorded = sum(each.ended_at >= now - window for each in known)
    return storm_judgement(fleet, recorded, cycle.storm(fleet.group, known))


def in_turn(groups: list[str], *, now: float, interval: float = 15.0) -> set[str]:
    """The next twenty groups, another twenty each interval."""
    turns = -(-len(groups) // COUNTED_A_TICK) or 1
    start = int(now // interval) % turns * COUNTED_A_TICK
    return set(groups[start : start + COUNTED_A_TICK])


def missing(group: str) -> GroupSnapshot:
    """A declared group that Kafka does not know."""
    return GroupSnapshot(
        group=group,
        exists=False,
        state=GroupState.DEAD,
        type="unknown",
        assignor=None,
        members=(),
        partitions=(),
    )


def observation(cluster: str, seen: GroupTick) -> AssetObservation:
    """What the web page shows of a group; numbers are plotted over time."""
    state = seen.state
    parts = [f"{state.state.value if state.exists else 'does not exist'}"]
    count = len(state.members)
    parts.append(f"{count} member{'' if count == 1 else 's'}")
    metadata: dict[str, Any] = {
        "group": seen.group,
        "state": state.state.value,
        "type": state.type,
        "members": len(state.members),
        "partitions": len(state.partitions),
    }
    if state.assignor:
        metadata["assignor"] = state.assignor
    if state.lag is not None:
        metadata["lag (records)"] = state.lag
    if state.lag_seconds is not None:
        metadata["lag (s)"] = round(state.lag_seconds, 3)
    if seen.lag is None:  # else the judgement's own sentence tells it
        parts += _waiting(state)
    if seen.change is not None:
        metadata["last change"] = f"{seen.change.state.value}, by {seen.change.actor}"
    elif seen.unread:
        metadata["last change"] = seen.unread
    sentence = ", ".join(parts) + "."
    if seen.lag is not None:
        sentence += " " + seen.lag.sentence
    declared = seen.fleet is not None
    return AssetObservation(
        asset_key=asset_keys.group_key(cluster, seen.group)
        if declared
        else asset_keys.discovered_key(cluster),
        partition=None if declared else asset_keys.name_of(seen.group),
        description=sentence,
        metadata={"sentence": sentence, **metadata},
    )


def _waiting(state: GroupSnapshot) -> Iterator[str]:
    if state.lag is not None:
        yield f"{state.lag:,} records waiting"
    if state.lag_seconds is not None:
        yield f"the oldest for {duration(state.lag_seconds)}"


def events_of(cluster: str, seen: GroupTick) -> Iterable[Event]:
    """One observation, and for a declared group its checks."""
    yield observation(cluster, seen)
    key = asset_keys.group_key(cluster, seen.group)
    if seen.lag is not None:
        yield seen.lag.evaluation(asset_keys.LAG, key)
    if seen.budget is not None:
        yield seen.budget.evaluation(asset_keys.STORM, key)
    if seen.change is not None and seen.change.ended_at is not None:
        yield receipt_judgement(seen.change).evaluation(asset_keys.RECEIPT, key)
