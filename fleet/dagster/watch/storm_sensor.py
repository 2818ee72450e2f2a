"""The sensor on storms: tells when one begins and when it ends.

Problem: `fleet_watch` counts declared groups in turns and knows nothing of the others; a storm
is a matter of seconds and of the whole cluster. Choice: a sensor of its own asks for the last
rebalances of all groups (from the history tables while they are fresh), holds them against
budgets with hysteresis, and stores an event only where a storm begins, changes its worst
member, calms or ends. Its cursor is the storms there are. Changes are held by the reconciling
schedule itself, whose plans see the same storm. Cost: without a history only declared groups
are seen, at a read of the log each.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster import (
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
from fleet.dagster.resources import FleetResource
from fleet.dagster.watch.cluster_tick import Event, RecentRebalances, from_tables
from fleet.decide.storms.assessment import Storm
from fleet.decide.storms.storm_watch import StormWatch, watch_reach
from fleet.errors import FleetError
from fleet.model.rebalances import Rebalance
from fleet.slots.codec import as_json, if_readable

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet

INTERVAL = 15
EVENTS_A_TICK = 50
READING_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What a tick saw."""

    spec: FleetSpec
    now: float
    watch: StormWatch
    problem: str = ""
    """Why only declared groups were looked at; empty also where no tables are kept."""


def look(cycle: "Fleet", before: StormWatch) -> Weather:
    """The storms now, of all groups whose rebalances can be read."""
    spec, now = cycle.spec, cycle.clock.now()
    since = now - watch_reach(spec)
    history = from_tables(cycle, since=since, now=now)
    found, read = recent(cycle, before, history, since=since)
    groups = excusable(spec, found, before)
    watch = before.look(
        spec,
        found,
        now=now,
        changes={group: cycle.readable_changes(group) for group in groups},
        is_read=lambda group: group in read or (history is not None and history.takes(group)),
    )
    problem = "" if history is None else history.problem
    return Weather(spec=spec, now=now, watch=watch, problem=problem)


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
    for fleet in sorted(cycle.spec.fleets, key=lambda fleet: fleet.group not in before.storms):
        if history is not None and history.takes(fleet.group):
            continue
        if cycle.clock.monotonic() - began > READING_SECONDS:
            break  # `fleet_watch` counts them all, in turns
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
    """Groups whose storm began, ended, calms or has another worst member."""
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
    return storm.since, storm.calm_since is None, storm.cause, storm.member


def events_of(seen: Weather, groups: list[str], *, whole: bool) -> Iterator[Event]:
    """An observation per group, for a declared one its check, and one for the cluster."""
    cluster = seen.spec.cluster.name
    for group in groups:
        storm = seen.watch.storms.get(group)
        declared = seen.spec.fleet(group)
        sentence = f"{group}: {storm.sentence if storm else 'the storm is over'}."
        yield AssetObservation(
            asset_key=asset_keys.group_key(cluster, group)
            if declared
            else asset_keys.discovered_key(cluster),
            partition=None if declared else asset_keys.name_of(group),
            description=sentence,
            metadata={"sentence": sentence, "group": group, "storm": storm is not None},
        )
        if declared is not None:
            judged = storm_judgement(declared, storm.rebalances if storm else None, storm)
            yield judged.evaluation(asset_keys.STORM, asset_keys.group_key(cluster, group))
    if whole:
        storm_of_all = seen.watch.cluster
        said = f"{storm_of_all.sentence if storm_of_all else f'the storm of {cluster} is over'}."
        yield AssetObservation(
            asset_key=asset_keys.discovered_key(cluster),
            description=said,
            metadata={"sentence": said, "storm": storm_of_all is not None},
        )


def watch_storms(
    context: SensorEvaluationContext, resource: FleetResource
) -> SensorResult | SkipReason:
    """One tick."""
    before = _remembered(context.cursor)
    try:
        with resource.open() as cycle:
            seen = look(cycle, before)
    except FleetError as error:
        return SkipReason(str(error))
    after = seen.watch
    news = changed(before, after)
    groups, later = news[:EVENTS_A_TICK], news[EVENTS_A_TICK:]
    whole = (before.cluster is None) != (after.cluster is None)
    for group in groups:
        if group in after.storms:
            context.log.warning("%s: %s", group, after.storms[group].sentence)
    told = [f"{group}: {storm.sentence}" for group, storm in sorted(after.storms.items())[:10]]
    return SensorResult(
        asset_events=list(events_of(seen, groups, whole=whole)),
        cursor=json.dumps(as_json(untold(before, after, later)), separators=(",", ":")),
        # No run is ever asked for here, so Dagster calls every tick skipped and shows this.
        skip_reason=SkipReason(sentence_of(told, seen.problem)),
    )


def sentence_of(storms: list[str], problem: str) -> str:
    """What the page shows of a tick."""
    weather = "; ".join(storms) + "." if storms else "No group is in a storm."
    return f"{weather} Only declared groups were looked at: {problem}." if problem else weather


def _remembered(cursor: str | None) -> StormWatch:
    """A cursor of another version is fair weather: storms are told anew."""
    try:
        stored = json.loads(cursor or "{}")
    except ValueError:
        return StormWatch()
    found = if_readable(StormWatch, stored) if isinstance(stored, dict) else None
    return found or StormWatch()


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
