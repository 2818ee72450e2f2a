"""The sensor on storms: tells when one begins and when it ends, and the check on storms.

Problem: a storm is a matter of seconds and of the whole cluster. Choice: a sensor asks for the last
rebalances of all groups, holds them against budgets with hysteresis, and stores an event only where
a storm begins, changes its top offender, calms or ends; once a day it tells the check of each
declared group, so that none is without one, nor for good with one that says "not counted". Its
cursor is the storms there are. Changes are held by the reconciling schedule, whose plans see the
same storm. Cost: without a history only declared groups are seen, at a read of the log each; of
very many some are read by each tick, beginning elsewhere.
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
from fleet.dagster.judgements import storm_judgement
from fleet.dagster.reconcile_schedule import rotated
from fleet.dagster.resources import FleetResource
from fleet.dagster.watch_sensor import EVENTS_A_TICK, HEARTBEAT, INTERVAL, digest, told_of
from fleet.decide.storms import Storm, StormWatch, budget_of, watch_reach
from fleet.errors import FleetError
from fleet.manager.past import INTERVALS
from fleet.model.rebalances import Rebalance
from fleet.slots.codec import as_json, if_readable

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


READING_SECONDS: Final = 20.0


Event = AssetObservation | AssetCheckEvaluation


# The last rebalances of all groups from the history's tables, where these are fresh enough.
#
# Problem: sensors and checks want to know what happened in the last minutes; the tables answer
# for every group at once, and the log for one group at a read each. But tables may be old, leave
# groups out, or be in the middle of catching up with a long log. Choice: they are asked only
# while their last state is young and was no batch with a log still before it, and only for
# groups that they record; whoever asks for another group, or while they cannot be read, is told
# to read the log. Cost: what tables tell is up to one batch interval of the history old.


FRESH: Final = 60.0
"""Seconds after which the history is too old to tell of storms that begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentRebalances:
    """Rebalances of the last minutes, by group."""

    takes: Callable[[str], bool]
    """Whether a group is recorded at all."""
    groups: dict[str, list[Rebalance]]
    as_of: float
    problem: str = ""
    """Why tables that are there tell of no group."""

    def of(self, group: str) -> list[Rebalance] | None:
        """Those of one group, maybe none; None where the tables leave it out."""
        return self.groups.get(group, []) if self.takes(group) else None

    def all(self) -> list[Rebalance]:
        """Those of all groups that are recorded."""
        return [each for group, mine in self.groups.items() if self.takes(group) for each in mine]


def from_tables(cycle: "Fleet", *, since: float, now: float) -> RecentRebalances | None:
    """What the tables hold since a wall time; None where there are none, or old ones.

    Raises nothing: tables that cannot be read leave every group out, with the reason.
    """
    from fleet.history.tables import Tables  # noqa: PLC0415  pyarrow, only where it is used

    history = cycle.spec.history
    try:
        tables = Tables(cycle.history_path)  # asks S3 for the bucket's region
        state = tables.state()
        if state is None or now - state.at > max(FRESH, INTERVALS * history.batch_interval):
            return None
        if state.behind:
            return None
        found = tables.rebalances(since=since)
    except FleetError as error:  # away, damaged, of a newer release: the log tells as well
        problem = f"the history's tables cannot be read: {error}"
        return RecentRebalances(takes=lambda _: False, groups={}, as_of=now, problem=problem)
    groups: dict[str, list[Rebalance]] = {}
    for rebalance in found:
        groups.setdefault(rebalance.group, []).append(rebalance)
    return RecentRebalances(takes=history.groups.takes, groups=groups, as_of=state.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What a tick saw."""

    spec: FleetSpec
    now: float
    watch: StormWatch
    counted: Counter[str] = field(default_factory=Counter)
    """Rebalances in the window of each declared group that was read."""
    problem: str = ""
    """Why only declared groups were looked at; empty also where no tables are kept."""


def look(cycle: "Fleet", before: StormWatch) -> Weather:
    """The storms now, of all groups whose rebalances can be read."""
    spec, now = cycle.spec, cycle.clock.now()
    since = now - watch_reach(spec)
    history = from_tables(cycle, since=since, now=now)
    found, read = recent(cycle, before, history, since=since)
    groups = excusable(spec, found, before)

    def is_read(group: str) -> bool:
        return group in read or (history is not None and history.takes(group))

    watch = before.look(
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
    return Weather(spec=spec, now=now, watch=watch, counted=counted, problem=problem)


def recent(
    cycle: "Fleet", before: StormWatch, history: RecentRebalances | None, *, since: float
) -> tuple[list[Rebalance], set[str]]:
    """The last rebalances: of all groups from the history, of declared ones else from the log.

    And which groups the log was read of.
    """
    found = [] if history is None else history.all()
    read: set[str] = set()
    began = cycle.clock.monotonic()
    # Storms first: of what is not read nothing new is known.
    fleets = rotated(cycle.spec.fleets, cycle.clock.now() // INTERVAL)
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


def excusable(spec: FleetSpec, rebalances: list[Rebalance], before: StormWatch) -> list[str]:
    """Declared groups of which our own changes say anything: the others did not move."""
    moved = {rebalance.group for rebalance in rebalances} | before.storms.keys()
    return [fleet.group for fleet in spec.fleets if fleet.group in moved]


def changed(before: StormWatch, after: StormWatch) -> list[str]:
    """Groups whose storm began, ended, calms or has another top offender."""
    marks = [{g: _mark(s) for g, s in each.storms.items()} for each in (before, after)]
    return sorted(
        g for g in marks[0].keys() | marks[1].keys() if marks[0].get(g) != marks[1].get(g)
    )


def untold(before: StormWatch, after: StormWatch, groups: list[str]) -> StormWatch:
    """The next cursor: of these groups as it was, since nobody has told of what changed."""
    old = {group: before.storms[group] for group in groups if group in before.storms}
    new = {group: storm for group, storm in after.storms.items() if group not in groups}
    return replace(after, storms={**new, **old})


def _mark(storm: Storm) -> tuple[object, ...]:
    return storm.since, storm.cooldown_since is None, storm.cause, storm.top_offender


def events_of(seen: Weather, groups: list[str], *, whole: bool) -> Iterator[Event]:
    """An observation per group, for a declared one its check, and one for the cluster."""
    cluster = seen.spec.cluster.name
    for group in groups:
        storm = seen.watch.storms.get(group)
        sentence = f"{group}: {storm.sentence if storm else 'the storm is over'}."
        declared = seen.spec.fleet(group) is not None
        yield told_of(cluster, group, sentence, declared=declared, storm=storm is not None)
        if declared:
            yield check_of(seen, group)
    if whole:
        storm_of_all = seen.watch.cluster
        said = f"{storm_of_all.sentence if storm_of_all else f'the storm of {cluster} is over'}."
        yield AssetObservation(
            asset_key=asset_keys.discovered_key(cluster),
            description=said,
            metadata={"sentence": said, "storm": storm_of_all is not None},
        )


def check_of(seen: Weather, group: str) -> AssetCheckEvaluation:
    """A declared group's check on storms."""
    fleet = seen.spec.fleet(group)
    assert fleet is not None
    judged = storm_judgement(fleet, seen.counted.get(group), seen.watch.storms.get(group))
    return judged.evaluation(asset_keys.STORM, asset_keys.group_key(seen.spec.cluster.name, group))


def watch_storms(
    context: SensorEvaluationContext, resource: FleetResource
) -> SensorResult | SkipReason:
    """One tick."""
    before, checked = _remembered(context.cursor)
    try:
        with resource.open() as cycle:
            seen = look(cycle, before)
    except FleetError as error:
        return SkipReason(str(error))
    after = seen.watch
    news = changed(before, after)
    groups, later = news[:EVENTS_A_TICK], news[EVENTS_A_TICK:]
    declared = [fleet.group for fleet in seen.spec.fleets]
    mark = digest(*declared, str(seen.now // HEARTBEAT))
    first = checked[1] if checked[0] == mark else 0
    unchecked = declared[first : first + EVENTS_A_TICK - len(groups)]
    whole = (before.cluster is None) != (after.cluster is None)
    for group in groups:
        if group in after.storms:
            context.log.warning("%s: %s", group, after.storms[group].sentence)
    told = [f"{group}: {storm.sentence}" for group, storm in sorted(after.storms.items())[:10]]
    return SensorResult(
        asset_events=[
            *events_of(seen, groups, whole=whole),
            *(check_of(seen, group) for group in unchecked if group not in groups),
        ],
        cursor=json.dumps(
            {**as_json(untold(before, after, later)), "checked": [mark, first + len(unchecked)]},
            separators=(",", ":"),
        ),
        # No run is ever asked for here, so Dagster calls every tick skipped and shows this.
        skip_reason=SkipReason(sentence_of(told, seen.problem)),
    )


def sentence_of(storms: list[str], problem: str) -> str:
    """What the page shows of a tick."""
    weather = "; ".join(storms) + "." if storms else "No group is in a storm."
    return f"{weather} Only declared groups were looked at: {problem}." if problem else weather


def _remembered(cursor: str | None) -> tuple[StormWatch, tuple[str, int]]:
    """The storms, and how many checks of which declared groups on which day were told.

    A cursor of another version is fair weather: all is told anew.
    """
    try:
        stored = json.loads(cursor or "{}")
    except ValueError:
        stored = None
    if not isinstance(stored, dict):
        return StormWatch(), ("", 0)
    mark, count = stored.get("checked", ("", 0))
    return if_readable(StormWatch, stored) or StormWatch(), (mark, count)


def storm_sensor(spec: FleetSpec) -> SensorDefinition:
    """The sensor, running from the start: it changes nothing in Kafka."""

    @sensor(
        name="fleet_storms",
        minimum_interval_seconds=INTERVAL,
        default_status=DefaultSensorStatus.RUNNING,
        description=f"Tells when a storm begins in a group of {spec.cluster.name}, and its end.",
    )
    def fleet_storms(
        context: SensorEvaluationContext, fleet: FleetResource
    ) -> SensorResult | SkipReason:
        return watch_storms(context, fleet)

    return fleet_storms
