"""Defines the sensor that observes topics and groups, and reports what changed.

Problem: 300 groups observed every 15 s are 1.7 million events a day; Dagster deletes none, and a
group's event with its checks takes 10 kB [37]. At 5,000 groups of 48 partitions a value for each
partition takes seconds. Choice: a tick compares columns of the live view (`fleet.dagster.live`)
with the last events, and makes values only for groups that get one. A group gets an event if its
state, members, lag status or data version changed, or its policy's decision was news
(`fleet.decide.decision_log`). A changed size of its lag counts once an hour at most, and a
heartbeat follows once a day. A check is stored only if its outcome changed. A tick
stores 300 events at most, oldest groups first. Cost: after many changes an event may be some ticks
late, and an unchanged observation is up to a day old.

If the cluster does not answer, the tick is skipped with that sentence; parts that do not answer are
named beside the rest.
"""

import math
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

from dagster import (
    AddDynamicPartitionsRequest,
    AssetCheckEvaluation,
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    DefaultSensorStatus,
    DeleteDynamicPartitionsRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.dagster import asset_keys
from fleet.dagster.check_outcomes import (
    CheckOutcome,
    freshness_outcome,
    lag_outcome,
    receipt_outcome,
    storm_outcome,
)
from fleet.dagster.dead_runs import GroupChange, end_dead_runs
from fleet.dagster.group_assets import (
    discovered_partitions,
    group_version,
    topic_metadata,
    topic_version,
    topics_of,
    watermark_of,
)
from fleet.dagster.live import INTERVAL_SECONDS, Live, live_cluster
from fleet.dagster.reconcile_schedule import acting_topics
from fleet.dagster.resources import FleetResource
from fleet.dagster.sink_assets import TableMemory, table_events, writers_of_topics
from fleet.dagster.storm_events import StormRefresh, refresh_storms
from fleet.decide.decision_log import KeptDecision
from fleet.decide.lag_status import GroupLagStatus, LagStatus
from fleet.decide.storms import StormWatch
from fleet.errors import Damaged, FleetError, SchemaTooNew
from fleet.lag.snapshot import Figures, GroupFacts, Snapshot
from fleet.manager.lag_assessment import lag_statuses, worst_lag_status
from fleet.model import GroupSnapshot, GroupState, TopicPartition
from fleet.slots import ChangeState
from fleet.slots.codec import as_json, from_json_or_none
from fleet.text import duration, plural

EVENTS_A_TICK: Final = 300
"""Dagster stores 30 to 60 events a second."""
HEARTBEAT_SECONDS: Final = 86_400.0
"""Seconds after which an unchanged group gets an event."""
BAND_INTERVAL_SECONDS: Final = 3600.0
"""Seconds between two events of a group if only the size of its lag changed tenfold."""
DISCOVERY_SECONDS: Final = 300.0
"""Seconds for which an undeclared group exists before it gets a partition."""
STORE_DEADLINE_SECONDS: Final = 10.0
"""Seconds for reading the changes of declared groups; the rest keep what was read before."""
DECISIONS_SECONDS: Final = 60.0
"""Seconds between two readings of the decisions of policies."""
PARTITIONS_A_TICK: Final = 1_000
VERSION: Final = 8
_GROUP: Final = Struct(">IIHHHbIIHI")


class LastEvent(NamedTuple):
    """What the last event of a group said."""

    hard: int = 0
    """Digest of state, number of members, and whether the lag is known."""
    changed: int = 0
    """Time of its last membership record, in seconds since the epoch; 0: unknown."""
    lag: int = 0
    """Digest of the lag check's outcome; 0: without this check."""
    freshness: int = 0
    receipt: int = 0
    band: int = -1
    """The size of its lag, see `lag_band`."""
    at: int = 0
    """Time of the event, in seconds since the epoch."""
    watermark: int = 0
    """Its data version: the time up to which all records are committed; 0: unknown."""
    storm: int = 0
    """Digest of its storm; 0: not known yet, or an undeclared group without one."""
    decision: int = 0
    """Time of its policy's last kept decision; 0: none."""


class GroupTick(NamedTuple):
    """The state of one group in one tick."""

    group: str
    fleet: GroupSpec | None
    """None: not declared."""
    event: LastEvent
    """What the sensor remembers once an event of this state is stored."""

    def checks(self, known: LastEvent | None) -> Iterator[str]:
        """Yields the checks whose outcome differs from the last event's."""
        for name, place in _CHECKS.items() if self.fleet is not None else ():
            if self.event[place] and (known is None or known[place] != self.event[place]):
                yield name


_CHECKS: Final = {
    asset_keys.LAG: 2,
    asset_keys.FRESHNESS: 3,
    asset_keys.RECEIPT: 4,
    asset_keys.STORM: 8,
}
"""Places of the checks in `LastEvent`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorMemory:
    """What the sensor has reported."""

    groups: Mapping[int, LastEvent] = field(default_factory=dict)
    """Digest of the group id → its last event."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Topic or pattern of fleet.yaml → its data version."""
    tables: TableMemory = field(default_factory=dict)
    storms: StormWatch = field(default_factory=StormWatch)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "SensorMemory | None":
        """Reads a stored memory; None if it is of another version."""
        if stored.get("v") != VERSION:
            return None
        rows = b64decode(stored["groups"])
        size = _GROUP.size + 4
        return cls(
            groups={
                int.from_bytes(rows[at : at + 4]): LastEvent(*_GROUP.unpack_from(rows, at + 4))
                for at in range(0, len(rows), size)
            },
            topics=stored["topics"],
            tables={table: (at, version) for table, (at, version) in stored["tables"].items()},
            storms=from_json_or_none(StormWatch, stored["storms"]) or StormWatch(),
        )

    def as_json(self) -> dict[str, Any]:
        """Returns the memory to store."""
        groups = b"".join(k.to_bytes(4) + _GROUP.pack(*e) for k, e in self.groups.items())
        return {
            "v": VERSION,
            "groups": b64encode(groups).decode(),
            "topics": self.topics,
            "tables": self.tables,
            "storms": as_json(self.storms),
        }

    def known(self, group: str) -> LastEvent | None:
        """Returns the last event of the group."""
        return self.groups.get(digest(group))

    def with_events(
        self, due: Iterable[GroupTick], *, now: float, alive: Iterable[str] | None
    ) -> "SensorMemory":
        """Returns a memory with these events and without deleted groups; itself if equal.

        alive None: some groups may be missing, so none counts as deleted.
        """
        kept = self.groups.keys() if alive is None else {digest(group) for group in alive}
        groups = {k: v for k, v in self.groups.items() if k in kept}
        groups |= {digest(tick.group): tick.event._replace(at=int(now)) for tick in due}
        return self if groups == self.groups else replace(self, groups=groups)


def digest(*parts: object) -> int:
    """Returns 32 bits that tell the states of a group apart."""
    return crc32(repr(parts).encode())


def check_digest(*parts: object) -> int:
    """Returns 16 bits other than 0 that tell the outcomes of a check apart."""
    return digest(*parts) % 0xFFFF + 1


def lag_band(lag: int | None) -> int:
    """Returns 0 below 1,000 records, then one band per power of ten; -1 if the lag is unknown."""
    return -1 if lag is None else max(0, len(str(lag)) - 3)


def due_groups(
    ticks: Iterable[GroupTick], memory: SensorMemory, *, now: float, limit: int = EVENTS_A_TICK
) -> tuple[GroupTick, ...]:
    """Returns the groups that get an event in this tick: changes first, then the oldest events."""
    ranked: list[tuple[int, int, int, GroupTick]] = []
    for tick in ticks:
        known, event = memory.known(tick.group), tick.event
        events = 1 + sum(1 for _ in tick.checks(known))
        if (
            known is None
            or events > 1
            or known.hard != event.hard
            or known.watermark != event.watermark
            or known.storm != event.storm
            or known.decision != event.decision
            or (known.changed != event.changed and known.changed and event.changed)
        ):
            ranked.append((0, known.at if known else 0, events, tick))
        elif (
            not 0
            <= now - known.at
            < (HEARTBEAT_SECONDS if known.band == event.band else BAND_INTERVAL_SECONDS)
        ):
            ranked.append((1, known.at, events, tick))
    ranked.sort(key=lambda entry: entry[:2])
    found: list[GroupTick] = []
    stored = 0
    for _, _, events, tick in ranked:
        stored += events
        if found and stored > limit:
            break
        found.append(tick)
    return tuple(found)


# --- the state of all groups in one tick ------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRefresh:
    """The state of the cluster in one tick."""

    spec: FleetSpec
    seen: Snapshot
    figures: Mapping[str, Figures]
    statuses: Mapping[str, LagStatus]
    changes: Mapping[str, GroupChange]
    """Of declared groups, by group id."""
    decisions: Mapping[str, KeptDecision] = field(default_factory=dict)
    """The last kept decision of each group whose policy has decided."""
    storms: StormRefresh = field(default_factory=StormRefresh)
    problems: tuple[str, ...] = ()
    writable: bool = True
    """Whether the actors of changes could have renewed their leases [38]."""

    def ticks(self, memory: SensorMemory) -> list[GroupTick]:
        """Returns the state of each declared group and of the others that exist for a while."""
        declared = {fleet.group: fleet for fleet in self.spec.fleets}
        others = [
            group
            for group in self.seen.facts
            if group not in declared
            and (memory.known(group) or group in self.storms.watch.storms or self.is_settled(group))
        ]
        return [
            *(self._tick(group, fleet, memory) for group, fleet in declared.items()),
            *(self._tick(group, None, memory) for group in others),
        ]

    def is_settled(self, group: str) -> bool:
        """Tells whether a group has existed for `DISCOVERY_SECONDS`, by the log's records."""
        figures, facts = self.figures.get(group), self.seen.facts[group]
        times = (facts.changed_at, figures and figures.moved)
        return self.seen.at - min(filter(None, times), default=math.inf) >= DISCOVERY_SECONDS

    def _tick(self, group: str, fleet: GroupSpec | None, memory: SensorMemory) -> GroupTick:
        facts, figures = self.seen.facts.get(group, MISSING), self.figures.get(group)
        lag = figures.lag if figures else None
        event = LastEvent(
            hard=digest(facts.exists, facts.state.value, facts.members, lag is None),
            changed=int(facts.changed_at or 0),
            band=lag_band(lag),
        )
        known, mark = memory.known(group), self.storms.mark(group)
        if fleet is None:
            storm = check_digest(*mark) if group in self.storms.watch.storms and mark else 0
            return GroupTick(group, None, event._replace(storm=storm))
        age = figures.age if figures else None
        limit = self.spec.max_lag_of(fleet)
        change = self.changes[group].change if group in self.changes else None
        ended = change is not None and change.ended_at is not None
        if change is not None and change.actor.startswith(asset_keys.actor("")):
            ended = False  # the run stores its receipt itself
        event = event._replace(
            lag=check_digest(facts.exists, self.statuses.get(group)),
            freshness=check_digest(freshness_outcome(group, age, max_lag=limit).outcome),
            receipt=check_digest(change.plan.id, change.state.value) if change and ended else 0,
            storm=check_digest(*mark) if mark is not None else known.storm if known else 0,
            decision=int(self.decisions[group].at) if group in self.decisions else 0,
            watermark=max(
                known.watermark if known else 0,
                watermark_of(figures, at=self.seen.at, every=self.spec.dagster.watermark),
            ),
        )
        return GroupTick(group, fleet, event)


MISSING: Final = GroupFacts(state=GroupState.DEAD, type="unknown", members=0, exists=False)


def missing_group(group: str) -> GroupSnapshot:
    """Returns the snapshot of a declared group that Kafka does not know."""
    return GroupSnapshot(
        group=group,
        exists=False,
        state=GroupState.DEAD,
        type="unknown",
        assignor=None,
        members=(),
        partitions=(),
    )


def refresh_groups(live: Live, before: StormWatch) -> WatchRefresh:
    """Refreshes the live view, and reads the changes of declared groups."""
    seen, spec = live.cluster.refresh(), live.fleet.spec
    problems, storms = read_changes(live), refresh_storms(live, before)
    problems = (*problems, *read_decisions(live))
    running = [
        group
        for group, each in live.changes.items()
        if each.change is not None and each.change.state is ChangeState.RUNNING
    ]
    return WatchRefresh(
        spec=spec,
        seen=seen,
        figures=seen.figures(),
        statuses=worst_lag_status(seen),
        changes=live.changes,
        decisions=live.decisions,
        storms=storms,
        problems=tuple(dict.fromkeys((*seen.problems, *problems, *storms.errors.values()))),
        writable=all(is_writable(live, group) for group in running),
    )


def read_changes(live: Live) -> tuple[str, ...]:
    """Reads the last change of each declared group with workers; returns what was not readable.

    After `STORE_DEADLINE_SECONDS` or a store that does not answer, the others keep what was read.
    """
    monotonic = live.fleet.clock.monotonic
    began, problems = monotonic(), []
    managed = [fleet for fleet in live.fleet.spec.fleets if fleet.worker is not None]
    for place, fleet in enumerate(managed):
        try:
            if monotonic() - began > STORE_DEADLINE_SECONDS:
                left = plural(len(managed) - place, "group")
                problems.append(f"the changes of {left} were not read in time")
                break
            change = live.fleet.change(fleet.group)
            live.changes[fleet.group] = GroupChange(fleet=fleet, change=change)
        except (Damaged, SchemaTooNew) as error:  # of this group only
            live.changes[fleet.group] = GroupChange(fleet=fleet, unread=str(error))
            problems.append(str(error))
        except FleetError as error:
            problems.append(str(error))
            break
    return tuple(problems)


def read_decisions(live: Live) -> tuple[str, ...]:
    """Reads the last decision of each policy once a minute; returns what was not readable."""
    monotonic = live.fleet.clock.monotonic
    if monotonic() - live.decisions_at < DECISIONS_SECONDS:
        return ()
    live.decisions_at = began = monotonic()
    for fleet in live.fleet.spec.fleets:
        if not fleet.is_changeable:
            continue
        if monotonic() - began > STORE_DEADLINE_SECONDS:
            return ("not all decisions of policies were read in time",)
        try:
            made = live.fleet.last_decision(fleet.group)
        except FleetError as error:
            return (f"decisions of policies were not read: {error}",)
        if made is not None:
            live.decisions[fleet.group] = made
    return ()


def is_writable(live: Live, group: str) -> bool:
    """Tries whether the store accepts a write of the group, as its actor would write."""
    try:
        live.fleet.store.beat(group)
    except FleetError:
        return False
    return True


def without_uncommitted(
    live: Live, seen: Snapshot, ticks: list[GroupTick], memory: SensorMemory
) -> list[GroupTick]:
    """Returns the ticks with the old watermark for groups that miss records of a partition.

    The log has no row of a partition that its group never committed. One request asks whether the
    partitions of groups with a new watermark are empty.
    """
    asked: dict[str, list[TopicPartition]] = {}
    for tick in ticks:
        known = memory.known(tick.group)
        if tick.fleet is not None and tick.event.watermark > (known.watermark if known else 0):
            state = seen.groups[tick.group]
            rows = {partition.tp for partition in state.partitions}
            asked[tick.group] = [
                TopicPartition(topic, number)
                for topic, size in topics_of(seen.topics, tick.fleet.topics).items()
                for number in range(size)
                if TopicPartition(topic, number) not in rows
            ]
    if not any(asked.values()):
        return ticks
    logs = live.fleet.logs({tp for tps in asked.values() for tp in tps})
    late = {
        group
        for group, tps in asked.items()
        if any(logs.ends.get(tp, 1) > logs.starts.get(tp, 0) for tp in tps)
    }

    def old(tick: GroupTick) -> GroupTick:
        known = memory.known(tick.group)
        at = known.watermark if known else 0
        return tick._replace(event=tick.event._replace(watermark=at))

    return [old(tick) if tick.group in late else tick for tick in ticks]


# --- events -----------------------------------------------------------------------------------


Event = AssetObservation | AssetCheckEvaluation


def events_of(
    refresh: WatchRefresh, due: Collection[GroupTick], memory: SensorMemory
) -> Iterator[Event]:
    """Yields one observation for each group, and its checks with another outcome than before."""
    chosen = {tick.group for tick in due}
    seen = refresh.seen.only(chosen.__contains__)
    statuses = lag_statuses(seen)
    cluster = refresh.spec.cluster.name
    for tick in due:
        state = seen.groups[tick.group] if tick.group in seen.facts else missing_group(tick.group)
        outcomes = dict(_outcomes(refresh, tick, state, statuses.get(tick.group)))
        yield observation(refresh, tick, state, outcomes.get(asset_keys.LAG))
        key = asset_keys.group_key(cluster, tick.group)
        for name in tick.checks(memory.known(tick.group)):
            yield outcomes[name].evaluation(name, key)


def _outcomes(
    refresh: WatchRefresh, tick: GroupTick, state: GroupSnapshot, status: GroupLagStatus | None
) -> Iterator[tuple[str, CheckOutcome]]:
    if tick.fleet is None:
        return
    yield asset_keys.LAG, lag_outcome(state, status)
    figures, limit = refresh.figures.get(tick.group), refresh.spec.max_lag_of(tick.fleet)
    age = figures.age if figures else None
    yield asset_keys.FRESHNESS, freshness_outcome(tick.group, age, max_lag=limit)
    if tick.event.receipt:
        yield asset_keys.RECEIPT, receipt_outcome(refresh.changes[tick.group].change)
    storm, recorded = refresh.storms.watch.storms, refresh.storms.counted.get(tick.group)
    yield asset_keys.STORM, storm_outcome(tick.fleet, recorded, storm.get(tick.group))


def observation(
    refresh: WatchRefresh, tick: GroupTick, state: GroupSnapshot, lag: CheckOutcome | None
) -> AssetObservation:
    """Builds the observation of a group; Dagster plots its numbers over time.

    Each observation has the group's data version: without one it would count as a new version.
    """
    cluster, facts = refresh.spec.cluster.name, refresh.seen.facts.get(tick.group, MISSING)
    parts = [state.state.value if state.exists else "does not exist"]
    if facts.members is not None:
        parts.append(plural(facts.members, "member"))
    metadata: dict[str, Any] = {
        "state": state.state.value,
        "type": state.type,
        "partitions": len(state.partitions),
    }
    if facts.members is not None:
        metadata["members"] = facts.members
    if state.lag is not None:
        metadata["lag (records)"] = state.lag
    if state.lag_seconds is not None:
        metadata["lag (s)"] = round(state.lag_seconds, 3)
    storm = refresh.storms.watch.storms.get(tick.group)
    if lag is None:  # else the sentences of the checks contain it
        parts += _waiting(state)
        parts += [] if storm is None else [storm.sentence]
        metadata["storm"] = storm is not None
    if (made := refresh.decisions.get(tick.group)) is not None:
        metadata |= {
            "wanted members": made.wanted,
            "member hours": made.member_hours,
            "decision": made.sentence,
        }
    last = refresh.changes.get(tick.group)
    if last is not None and last.change is not None:
        metadata["last change"] = f"{last.change.state.value}, by {last.change.actor}"
    elif last is not None and last.unread:
        metadata["last change"] = last.unread
    sentence = ", ".join(parts) + "." + (f" {lag.sentence}" if lag is not None else "")
    declared = tick.fleet is not None
    return AssetObservation(
        asset_key=asset_keys.group_key(cluster, tick.group)
        if declared
        else asset_keys.discovered_key(cluster),
        partition=None if declared else asset_keys.name_of(tick.group),
        description=sentence,
        metadata={"sentence": sentence, "group": tick.group, **metadata},
        tags=asset_keys.version_tags(group_version(tick.event.watermark)) if declared else None,
    )


def _waiting(state: GroupSnapshot) -> Iterator[str]:
    if state.lag is not None:
        yield f"{state.lag:,} records waiting"
    if state.lag_seconds is not None:
        yield f"the oldest for {duration(state.lag_seconds)}"


def topic_observations(
    spec: FleetSpec, topics: Mapping[str, int], memory: SensorMemory
) -> tuple[list[AssetObservation], SensorMemory]:
    """Returns observations of topics with another partition count, and the memory after them."""
    versions = {topic: topic_version(topics, topic) for topic in writers_of_topics(spec)}
    news = [topic for topic in versions if memory.topics.get(topic) != versions[topic]]
    cluster, acting = spec.cluster.name, acting_topics(spec)
    made = [
        AssetObservation(
            asset_key=key,
            partition=partition,
            description=f"{topic} has {plural(int(versions[topic]), 'partition')}.",
            metadata=topic_metadata(topics, topic),
            tags=asset_keys.version_tags(versions[topic]),
        )
        for topic in news[:EVENTS_A_TICK]
        for key, partition in (
            (asset_keys.topic_key(cluster, topic), None),
            (asset_keys.partitions_key(cluster), asset_keys.name_of(topic)),
        )
        if partition is None or topic in acting
    ]
    told = {topic: versions[topic] for topic in memory.topics if topic in versions}
    told |= {topic: versions[topic] for topic in news[:EVENTS_A_TICK]}
    for topic in news[EVENTS_A_TICK:]:
        told.pop(topic, None)
    return made, (memory if told == memory.topics else replace(memory, topics=told))


def partition_requests(
    instance: DagsterInstance,
    spec: FleetSpec,
    wanted: Iterable[str],
    alive: Iterable[str] | None,
) -> list[AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest]:
    """Adds and deletes partitions of `discovered_groups` as groups appear and disappear.

    alive: all groups that exist; None: unknown, so none is deleted.
    """
    partitions = discovered_partitions(spec)
    known = set(instance.get_dynamic_partitions(str(partitions.name)))
    names = set(map(asset_keys.name_of, wanted))
    requests: list[AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest] = []
    if new := sorted(names - known)[:PARTITIONS_A_TICK]:
        requests.append(partitions.build_add_request(new))
    gone = set() if alive is None else known - names - set(map(asset_keys.name_of, alive))
    if deleted := sorted(gone)[:PARTITIONS_A_TICK]:
        requests.append(partitions.build_delete_request(deleted))
    return requests


# --- the tick ---------------------------------------------------------------------------------


def watch(context: SensorEvaluationContext, resource: FleetResource) -> SensorResult | SkipReason:
    """Handles one tick."""
    try:
        with live_cluster(resource) as live, live.lock:
            return _tick(context, live)
    except FleetError as error:
        return SkipReason(str(error))


def _tick(context: SensorEvaluationContext, live: Live) -> SensorResult:
    keeper = live.keeper("watch", SensorMemory.from_json, SensorMemory.as_json)
    memory = keeper.load(context.cursor) or SensorMemory()
    refresh = refresh_groups(live, memory.storms)
    spec, seen = refresh.spec, refresh.seen
    live.runs, ended = end_dead_runs(
        context.instance,
        spec.cluster.name,
        refresh.changes,
        live.runs,
        now=seen.at,
        writable=refresh.writable,
    )
    ticks = without_uncommitted(live, seen, refresh.ticks(memory), memory)
    topics, after = topic_observations(spec, seen.topics, memory)
    due = due_groups(ticks, memory, now=seen.at, limit=EVENTS_A_TICK - len(topics))
    events = [*topics, *events_of(refresh, due, memory)] if due else topics
    told = None if seen.partial else [tick.group for tick in ticks]
    after = after.with_events(due, now=seen.at, alive=told)
    tables, after, unread = _tables(live, spec, after)
    of_cluster = refresh.storms.of_cluster(spec.cluster.name, memory.storms)
    if refresh.storms.watch != memory.storms:
        after = replace(after, storms=refresh.storms.watch)
    others = frozenset(tick.group for tick in ticks if tick.fleet is None)
    requests = []
    if others != live.discovered:
        alive = None if seen.partial else seen.facts
        requests = partition_requests(context.instance, spec, others, alive)
        live.discovered = None if requests else others
    problems = (*refresh.problems, *unread)
    for sentence in (*ended, *live.new_problems(problems)):
        context.log.warning(sentence)
    said = (
        f"Checked {plural(len(ticks), 'group')}, stored events of {len(due)}, "
        f"ended {plural(len(ended), 'dead run')}."
    )
    return SensorResult(
        asset_events=[*events, *tables, *of_cluster],
        cursor=keeper.keep(after),
        dynamic_partitions_requests=requests,
        # The sensor requests no run, so Dagster calls every tick skipped and shows this.
        skip_reason=SkipReason(" ".join((said, *refresh.storms.sentences(), *problems))),
    )


def _tables(
    live: Live, spec: FleetSpec, memory: SensorMemory
) -> tuple[list[AssetMaterialization], SensorMemory, list[str]]:
    """Returns the materializations of tables, the memory after them, and what was unreadable."""
    watermarks = {
        fleet.group: known.watermark
        for fleet in spec.fleets
        if (known := memory.known(fleet.group)) is not None
    }
    monotonic = live.fleet.clock.monotonic
    until = monotonic() + STORE_DEADLINE_SECONDS
    made, after, problems = table_events(
        spec, watermarks, memory.tables, is_late=lambda: monotonic() > until
    )
    return made, memory if after == memory.tables else replace(memory, tables=after), problems


def build_watch_sensor(fleet: FleetResource) -> SensorDefinition:
    """Defines the sensor; it runs by default, because it changes nothing in Kafka.

    Args:
        fleet (FleetResource): The fleet.yaml.

    Returns:
        SensorDefinition: It observes topics and groups, evaluates checks, and ends dead runs.
    """
    cluster = fleet.spec.cluster.name

    @sensor(
        name=asset_keys.definition_name(cluster, "fleet_watch"),
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description=(
            f"Observes topics and groups of {cluster}: stores changes, storms and checks, "
            "ends dead runs."
        ),
    )
    def fleet_watch(context: SensorEvaluationContext) -> SensorResult | SkipReason:
        return watch(context, fleet)

    return fleet_watch
