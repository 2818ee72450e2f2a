"""Defines the storm sensor: it reports the start and end of storms, and evaluates their check.

Problem: a storm starts within seconds and concerns the whole cluster. Choice: a sensor takes the
last rebalances of all groups from the live view and compares them with their budgets, with
hysteresis. It stores an event only if a storm starts, cools down, ends or gets another top
offender. Once a day it stores the check of each declared group, so that no group stays without one
or with "not counted". A declared group's storm is stored beside its slots: plans and check runs
read the same. Cost: a login that may not read `__consumer_offsets` sees no storm, and the tick says
so.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

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
from fleet.dagster.live import INTERVAL_SECONDS, Live, live_cluster
from fleet.dagster.resources import FleetResource
from fleet.dagster.watch_sensor import EVENTS_A_TICK, HEARTBEAT_SECONDS, digest
from fleet.decide.storms import Storm, StormWatch, watch_reach
from fleet.errors import FleetError
from fleet.log.records import TOPIC
from fleet.model.rebalances import Rebalance
from fleet.slots.codec import as_json, from_json_or_none

Event = AssetObservation | AssetCheckEvaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class StormRefresh:
    """The storms of one tick."""

    spec: FleetSpec
    now: float
    watch: StormWatch
    counted: Mapping[str, int] = field(default_factory=dict)
    """Rebalances in the window, for each declared group that was read."""
    problem: str = ""
    """Why the log was not read."""


def refresh_storms(live: Live, before: StormWatch) -> StormRefresh:
    """Finds the current storms of all groups; a declared group's storm is kept beside its slots."""
    fleet, tail = live.fleet, live.cluster.tail
    spec, now = fleet.spec, fleet.clock.now()
    is_read = tail.is_current()
    problem = "" if is_read else tail.problem or f"{TOPIC} was not read in time"
    by_group: dict[str, list[Rebalance]] = {}
    for each in tail.rebalances(since=now - watch_reach(spec)) if is_read else ():
        by_group.setdefault(each.group, []).append(each)
    moved = by_group.keys() | before.storms.keys() if is_read else ()
    watch = before.refresh(
        spec,
        chain.from_iterable(by_group.values()),
        now=now,
        moves=tuple(filter(None, [live.cluster.poll_move()])),
        is_read=lambda _: is_read,
        assessed={
            each.group: fleet.storm(each.group, by_group.get(each.group, ()))
            for each in spec.fleets
            if each.group in moved
        },
    )
    counted = {
        each.group: sum(
            rebalance.ended_at >= now - each.storm.window
            for rebalance in by_group.get(each.group, ())
        )
        for each in (spec.fleets if is_read else ())
    }
    return StormRefresh(spec=spec, now=now, watch=watch, counted=counted, problem=problem)


def changed_groups(before: StormWatch, after: StormWatch) -> list[str]:
    """Returns the groups whose storm started, cools down, ended or has another top offender."""
    marks = [{g: _mark(s) for g, s in each.storms.items()} for each in (before, after)]
    return sorted(
        g for g in marks[0].keys() | marks[1].keys() if marks[0].get(g) != marks[1].get(g)
    )


def without_unreported(before: StormWatch, after: StormWatch, groups: list[str]) -> StormWatch:
    """Returns the storms to remember: the old ones of groups without an event yet."""
    old = {group: before.storms[group] for group in groups if group in before.storms}
    new = {group: storm for group, storm in after.storms.items() if group not in groups}
    return replace(after, storms={**new, **old})


def _mark(storm: Storm) -> tuple[object, ...]:
    return storm.since, storm.cooldown_since is None, storm.cause, storm.top_offender


def events_of(seen: StormRefresh, groups: list[str], *, whole: bool) -> Iterator[Event]:
    """Yields the check of a declared group, an observation of another, and one for the cluster."""
    cluster = seen.spec.cluster.name
    for group in groups:
        if seen.spec.fleet(group) is not None:
            yield storm_check(seen, group)
            continue
        storm = seen.watch.storms.get(group)
        sentence = f"{group}: {storm.sentence if storm else 'the storm is over'}."
        yield AssetObservation(
            asset_key=asset_keys.discovered_key(cluster),
            partition=asset_keys.name_of(group),
            description=sentence,
            metadata={"sentence": sentence, "group": group, "storm": storm is not None},
        )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StormMemory:
    """What the sensor has reported."""

    watch: StormWatch = field(default_factory=StormWatch)
    day: int = 0
    """Mark of the day and of the declared groups whose checks are stored."""
    checked: int = 0
    """How many of them are stored."""

    def due_checks(
        self, declared: Sequence[str], *, now: float, room: int
    ) -> "tuple[list[str], StormMemory]":
        """Returns the groups whose daily check is stored now, and the memory after it."""
        day = digest(*declared, now // HEARTBEAT_SECONDS)
        first = self.checked if self.day == day else 0
        due = list(declared[first : first + room])
        return due, replace(self, day=day, checked=first + len(due))


def watch_storms(
    context: SensorEvaluationContext, resource: FleetResource
) -> SensorResult | SkipReason:
    """Handles one tick."""
    try:
        with live_cluster(resource) as live, live.lock:
            return _tick(context, live)
    except FleetError as error:
        return SkipReason(str(error))


def _tick(context: SensorEvaluationContext, live: Live) -> SensorResult:
    keeper = live.keeper("storms", partial(from_json_or_none, StormMemory), as_json)
    memory = keeper.load(context.cursor) or StormMemory()
    seen = refresh_storms(live, memory.watch)
    before, after = memory.watch, seen.watch
    news = changed_groups(before, after)
    groups, later = news[:EVENTS_A_TICK], news[EVENTS_A_TICK:]
    declared = [fleet.group for fleet in seen.spec.fleets]
    unchecked: list[str] = []
    made = memory
    if not seen.problem or live.cluster.tail.denied:  # else the next tick may count
        room = EVENTS_A_TICK - len(groups)
        unchecked, made = memory.due_checks(declared, now=seen.now, room=room)
    whole = (before.cluster is None) != (after.cluster is None)
    for group in groups:
        if group in after.storms:
            context.log.warning("%s: %s", group, after.storms[group].sentence)
    texts = [f"{group}: {storm.sentence}" for group, storm in sorted(after.storms.items())[:10]]
    made = replace(made, watch=without_unreported(before, after, later))
    return SensorResult(
        asset_events=[
            *events_of(seen, groups, whole=whole),
            *(storm_check(seen, group) for group in unchecked if group not in groups),
        ],
        cursor=keeper.keep(memory if made == memory else made),
        # The sensor requests no run, so Dagster calls every tick skipped and shows this.
        skip_reason=SkipReason(tick_sentence(texts, seen.problem)),
    )


def tick_sentence(storms: list[str], problem: str) -> str:
    """Describes a tick for the web page."""
    text = "; ".join(storms) + "." if storms else "No group is in a storm."
    return f"Storms are unknown: {problem}." if problem else text


def build_storm_sensor(fleet: FleetResource) -> SensorDefinition:
    """Defines the sensor; it runs by default, because it changes nothing in Kafka.

    Args:
        fleet (FleetResource): The fleet.yaml.

    Returns:
        SensorDefinition: It reports the start and the end of storms, and evaluates `storm`.
    """
    cluster = fleet.spec.cluster.name

    @sensor(
        name=asset_keys.definition_name(cluster, "fleet_storms"),
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description=f"Reports when a storm of a group of {cluster} starts and ends.",
    )
    def fleet_storms(context: SensorEvaluationContext) -> SensorResult | SkipReason:
        return watch_storms(context, fleet)

    return fleet_storms
