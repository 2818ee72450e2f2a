"""Defines the storm sensor: it reports the start and end of storms, and evaluates their check.

Problem: a storm starts within seconds and concerns the whole cluster. Choice: a sensor reads the
last rebalances of all groups and compares them with their budgets, with hysteresis. It stores an
event only if a storm starts, cools down, ends or gets another top offender. Once a day it stores
the check of each declared group, so that no group stays without one or with "not counted". The
cursor holds the current storms. The reconciling schedule blocks changes, because its plans see the
same storm. Cost: without a history the sensor sees only declared groups, at a read of the log each;
with very many groups each tick reads some of them.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from dagster import (
    AssetCheckEvaluation,
    AssetObservation,
    DefaultSensorStatus,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)

from fleet.config.spec import FleetSpec
from fleet.dagster import asset_keys
from fleet.dagster.check_outcomes import storm_outcome
from fleet.dagster.reconcile_schedule import rotate
from fleet.dagster.resources import FleetResource
from fleet.dagster.watch_sensor import (
    EVENTS_A_TICK,
    HEARTBEAT_SECONDS,
    INTERVAL_SECONDS,
    digest,
    group_observation,
)
from fleet.decide.storms import Storm, StormWatch, budget_of, watch_reach
from fleet.errors import FleetError
from fleet.manager.past import INTERVALS
from fleet.model.rebalances import Rebalance
from fleet.slots.codec import as_json, from_json_or_none

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


READING_SECONDS: Final = 20.0


Event = AssetObservation | AssetCheckEvaluation


# The last rebalances of all groups from the history tables, if these are recent.
#
# Problem: sensors and checks need the last minutes. The tables answer for all groups at once, the
# log for one group a read. But tables may be old, omit groups, or still lag behind a long log.
# Choice: they are read only if their last state is recent and complete, and only for groups that
# they record. For other groups the caller reads the log. Cost: the rebalances of the tables are up
# to one batch interval of the history old.


MAX_HISTORY_AGE: Final = 60.0
"""Seconds after which the history is too old to show a storm that starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentRebalances:
    """Rebalances of the last minutes, by group."""

    takes: Callable[[str], bool]
    """Returns whether a group is recorded."""
    groups: dict[str, list[Rebalance]]
    at: float
    problem: str = ""
    """Why existing tables could not be read."""

    def of(self, group: str) -> list[Rebalance] | None:
        """Returns the rebalances of one group; None if the tables omit it."""
        return self.groups.get(group, []) if self.takes(group) else None

    def all(self) -> list[Rebalance]:
        """Returns the rebalances of all recorded groups."""
        return [each for group, mine in self.groups.items() if self.takes(group) for each in mine]


def read_recent_rebalances(cycle: "Fleet", *, since: float, now: float) -> RecentRebalances | None:
    """Reads the tables' rebalances since a wall time; None if there are no recent tables.

    Raises nothing: tables that cannot be read omit every group and give the reason.
    """
    from fleet.history.tables import Tables  # noqa: PLC0415  pyarrow, only where it is used

    history = cycle.spec.history
    try:
        tables = Tables(cycle.history_path)  # asks S3 for the bucket's region
        state = tables.state()
        if state is None or now - state.at > max(
            MAX_HISTORY_AGE, INTERVALS * history.batch_interval
        ):
            return None
        if state.behind:
            return None
        found = tables.rebalances(since=since)
    except FleetError as error:  # unreachable, damaged, of a newer release: the log has the same
        problem = f"the history tables cannot be read: {error}"
        return RecentRebalances(takes=lambda _: False, groups={}, at=now, problem=problem)
    groups: dict[str, list[Rebalance]] = {}
    for rebalance in found:
        groups.setdefault(rebalance.group, []).append(rebalance)
    return RecentRebalances(takes=history.groups.takes, groups=groups, at=state.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class StormRefresh:
    """The storms of one tick."""

    spec: FleetSpec
    now: float
    watch: StormWatch
    counted: Counter[str] = field(default_factory=Counter)
    """Rebalances in the window, for each declared group that was read."""
    problem: str = ""
    """Why only declared groups were read; empty if there are no tables."""


def refresh_storms(cycle: "Fleet", before: StormWatch) -> StormRefresh:
    """Finds the current storms of all groups whose rebalances can be read."""
    spec, now = cycle.spec, cycle.clock.now()
    since = now - watch_reach(spec)
    history = read_recent_rebalances(cycle, since=since, now=now)
    found, read = recent_rebalances(cycle, before, history, since=since)
    groups = moved_groups(spec, found, before)

    def is_read(group: str) -> bool:
        return group in read or (history is not None and history.takes(group))

    watch = before.refresh(
        spec,
        found,
        now=now,
        changes={group: cycle.readable_changes(group) for group in groups},
        is_read=is_read,
    )
    counted = Counter(dict.fromkeys((f.group for f in spec.fleets if is_read(f.group)), 0))
    counted.update(
        each.group
        for each in found
        if each.group in counted and each.ended_at >= now - budget_of(spec, each.group).window
    )
    problem = "" if history is None else history.problem
    return StormRefresh(spec=spec, now=now, watch=watch, counted=counted, problem=problem)


def recent_rebalances(
    cycle: "Fleet", before: StormWatch, history: RecentRebalances | None, *, since: float
) -> tuple[list[Rebalance], set[str]]:
    """Reads the last rebalances: from the history, or from the log for declared groups.

    Returns also the groups that were read from the log.
    """
    found = [] if history is None else history.all()
    read: set[str] = set()
    began = cycle.clock.monotonic()
    # Groups in a storm first, so that the end of a storm shows soon.
    fleets = rotate(cycle.spec.fleets, cycle.clock.now() // INTERVAL_SECONDS)
    for fleet in sorted(fleets, key=lambda fleet: fleet.group not in before.storms):
        if history is not None and history.takes(fleet.group):
            continue
        if cycle.clock.monotonic() - began > READING_SECONDS:
            break  # the next ticks begin elsewhere
        recorded = cycle.recorded(fleet.group, since=since)
        if recorded is not None:
            read.add(fleet.group)
            found += recorded
    return found, read


def moved_groups(spec: FleetSpec, rebalances: list[Rebalance], before: StormWatch) -> list[str]:
    """Returns the declared groups with rebalances or a storm; only their changes matter."""
    moved = {rebalance.group for rebalance in rebalances} | before.storms.keys()
    return [fleet.group for fleet in spec.fleets if fleet.group in moved]


def changed_groups(before: StormWatch, after: StormWatch) -> list[str]:
    """Returns the groups whose storm started, cools down, ended or has another top offender."""
    marks = [{g: _mark(s) for g, s in each.storms.items()} for each in (before, after)]
    return sorted(
        g for g in marks[0].keys() | marks[1].keys() if marks[0].get(g) != marks[1].get(g)
    )


def without_unreported(before: StormWatch, after: StormWatch, groups: list[str]) -> StormWatch:
    """Returns the next cursor: it keeps the old state of groups without an event yet."""
    old = {group: before.storms[group] for group in groups if group in before.storms}
    new = {group: storm for group, storm in after.storms.items() if group not in groups}
    return replace(after, storms={**new, **old})


def _mark(storm: Storm) -> tuple[object, ...]:
    return storm.since, storm.cooldown_since is None, storm.cause, storm.top_offender


def events_of(seen: StormRefresh, groups: list[str], *, whole: bool) -> Iterator[Event]:
    """Yields an observation per group, the check of a declared one, and one for the cluster."""
    cluster = seen.spec.cluster.name
    for group in groups:
        storm = seen.watch.storms.get(group)
        sentence = f"{group}: {storm.sentence if storm else 'the storm is over'}."
        declared = seen.spec.fleet(group) is not None
        yield group_observation(
            cluster, group, sentence, declared=declared, storm=storm is not None
        )
        if declared:
            yield storm_check(seen, group)
    if whole:
        whole_storm = seen.watch.cluster
        text = whole_storm.sentence if whole_storm else f"the storm of {cluster} is over"
        sentence = f"{text}."
        yield AssetObservation(
            asset_key=asset_keys.discovered_key(cluster),
            description=sentence,
            metadata={"sentence": sentence, "storm": whole_storm is not None},
        )


def storm_check(seen: StormRefresh, group: str) -> AssetCheckEvaluation:
    """Evaluates the storm check of a declared group."""
    fleet = seen.spec.fleet(group)
    assert fleet is not None
    judged = storm_outcome(fleet, seen.counted.get(group), seen.watch.storms.get(group))
    return judged.evaluation(asset_keys.STORM, asset_keys.group_key(seen.spec.cluster.name, group))


def watch_storms(
    context: SensorEvaluationContext, resource: FleetResource
) -> SensorResult | SkipReason:
    """Handles one tick."""
    before, checked = _read_cursor(context.cursor)
    try:
        with resource.open() as cycle:
            seen = refresh_storms(cycle, before)
    except FleetError as error:
        return SkipReason(str(error))
    after = seen.watch
    news = changed_groups(before, after)
    groups, later = news[:EVENTS_A_TICK], news[EVENTS_A_TICK:]
    declared = [fleet.group for fleet in seen.spec.fleets]
    mark = digest(*declared, str(seen.now // HEARTBEAT_SECONDS))
    first = checked[1] if checked[0] == mark else 0
    unchecked = declared[first : first + EVENTS_A_TICK - len(groups)]
    whole = (before.cluster is None) != (after.cluster is None)
    for group in groups:
        if group in after.storms:
            context.log.warning("%s: %s", group, after.storms[group].sentence)
    texts = [f"{group}: {storm.sentence}" for group, storm in sorted(after.storms.items())[:10]]
    return SensorResult(
        asset_events=[
            *events_of(seen, groups, whole=whole),
            *(storm_check(seen, group) for group in unchecked if group not in groups),
        ],
        cursor=json.dumps(
            {
                **as_json(without_unreported(before, after, later)),
                "checked": [mark, first + len(unchecked)],
            },
            separators=(",", ":"),
        ),
        # The sensor requests no run, so Dagster calls every tick skipped and shows this.
        skip_reason=SkipReason(tick_sentence(texts, seen.problem)),
    )


def tick_sentence(storms: list[str], problem: str) -> str:
    """Describes a tick for the web page."""
    text = "; ".join(storms) + "." if storms else "No group is in a storm."
    return f"{text} Only declared groups were checked: {problem}." if problem else text


def _read_cursor(cursor: str | None) -> tuple[StormWatch, tuple[str, int]]:
    """Reads the storms, and how many checks of which declared groups were stored on which day.

    A cursor of another version counts as no storm: the sensor reports all storms again.
    """
    try:
        stored = json.loads(cursor or "{}")
    except ValueError:
        stored = None
    if not isinstance(stored, dict):
        return StormWatch(), ("", 0)
    mark, count = stored.get("checked", ("", 0))
    return from_json_or_none(StormWatch, stored) or StormWatch(), (mark, count)


def storm_sensor(spec: FleetSpec) -> SensorDefinition:
    """Defines the sensor; it runs by default, because it changes nothing in Kafka."""

    @sensor(
        name="fleet_storms",
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description=f"Reports when a storm of a group of {spec.cluster.name} starts and ends.",
    )
    def fleet_storms(
        context: SensorEvaluationContext, fleet: FleetResource
    ) -> SensorResult | SkipReason:
        return watch_storms(context, fleet)

    return fleet_storms
