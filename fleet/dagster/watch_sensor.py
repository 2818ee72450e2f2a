"""The sensor that looks at all groups, tells what changed, and ends runs that are dead.

One batched question serves the whole cluster. Whether a group keeps up is judged as `fleet
status` does; its past is read only where something has waited. Storms are `fleet_storms`' business
(fleet.dagster.storm_sensor). A tick works at most 20 s: what it did not reach comes first in
the next one. Where the cluster does not answer, the tick is skipped with that sentence.
"""

import hashlib
import json
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar

from dagster import (
    AddDynamicPartitionsRequest,
    AssetCheckEvaluation,
    AssetObservation,
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    DeleteDynamicPartitionsRequest,
    RunRecord,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.dagster import asset_keys
from fleet.dagster.group_assets import discovered_partitions
from fleet.dagster.judgements import Judgement, lag_judgement, receipt_judgement
from fleet.dagster.reconcile_schedule import all_runs
from fleet.dagster.resources import FleetResource
from fleet.decide.lag_status import GroupLagStatus
from fleet.errors import Damaged, FleetError, SchemaTooNew, Unreachable
from fleet.lag.snapshot import Snapshot
from fleet.manager.keeping_up import in_doubt, judged, lag_statuses
from fleet.manager.past import minutes_of
from fleet.model import GroupSnapshot, GroupState
from fleet.slots import Change, ChangeState
from fleet.text import duration, plural

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


# What the sensor remembers, and which groups get an event: pure.
#
# Problem: 300 groups observed every 15 s are 1.7 million events a day, and storing 600 of them
# takes 10-18 s [37]; nor does Dagster ever delete one, and a group's with its checks take 10 kB.
# Choice: an event only where a group changed (state, members, lag status: at once; the size of its
# lag: at most every hour), a heartbeat once a day, and no more than 50 groups' worth a tick,
# oldest first. The cursor, which Dagster keeps in the row of every tick, has 14 packed bytes a
# group: 19 kB for 1,000. Cost: in a storm of changes an event may be some ticks late, an
# observation that still holds is up to a day old, and nobody reads a cursor by eye.


VERSION = 4
EVENTS_A_TICK = 50
HEARTBEAT = 86_400.0
"""Seconds after which a group is observed though nothing changed."""
BAND_EVERY = 3600.0
"""Seconds between two events of a group whose lag only grew or shrank tenfold."""
_GROUP = Struct(">4s4sbI")
"""Digest of the group id, then what was told: hard, band, at."""


def digest(*parts: object) -> str:
    """Eight hex digits of what was seen; enough to tell a group's looks apart."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


def lag_band(lag: int | None) -> int:
    """0 below 1,000 records, then one band per power of ten; -1 where lag cannot be said."""
    return -1 if lag is None else max(0, len(str(lag)) - 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """What was last told of a group, and when."""

    hard: str
    """Digest of state, members with their partitions, whether lag is known, and lag status."""
    band: int
    """The size of its lag, see `lag_band`."""
    at: int
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """How long a STARTED run has looked the same: `mark` for `still` seconds, in `ticks` ticks."""

    mark: str
    still: float
    ticks: int
    at: float
    """Wall time of the last tick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorMemory:
    """The sensor's cursor."""

    groups: Mapping[str, Emitted] = field(default_factory=dict)
    """digest of the group id → what was told."""
    runs: Mapping[str, StartedRun] = field(default_factory=dict)

    @classmethod
    def from_cursor(cls, cursor: str | None) -> "SensorMemory":
        """Read a cursor; one of another version (or none) is an empty memory: all is told anew."""
        try:
            stored = json.loads(cursor or "{}")
        except ValueError:
            return cls()
        if not isinstance(stored, dict) or stored.get("v") != VERSION:
            return cls()
        return cls(
            groups={
                k.hex(): Emitted(hard=hard.hex(), band=band, at=at)
                for k, hard, band, at in _GROUP.iter_unpack(b64decode(stored["g"]))
            },
            runs={
                k: StartedRun(mark=mark, still=still, ticks=ticks, at=at)
                for k, (mark, still, ticks, at) in stored["r"].items()
            },
        )

    def as_cursor(self) -> str:
        """The text that Dagster keeps."""
        groups = b"".join(
            _GROUP.pack(bytes.fromhex(k), bytes.fromhex(e.hard), e.band, e.at)
            for k, e in self.groups.items()
        )
        stored = {
            "v": VERSION,
            "g": b64encode(groups).decode(),
            "r": {
                k: [r.mark, round(r.still, 1), r.ticks, round(r.at, 1)]
                for k, r in self.runs.items()
            },
        }
        return json.dumps(stored, separators=(",", ":"))

    def known(self, group: str) -> Emitted | None:
        """What was last told of the group."""
        return self.groups.get(digest(group))

    def told(
        self, looks: "Iterable[GroupTick]", *, now: float, alive: Collection[str]
    ) -> "SensorMemory":
        """Remember these looks as told, and forget groups that are gone."""
        kept = {digest(group) for group in alive}
        groups = {k: v for k, v in self.groups.items() if k in kept}
        groups |= {digest(look.group): look.emitted(now) for look in looks}
        return SensorMemory(groups=groups, runs=self.runs)


def due(
    looks: "Iterable[GroupTick]", memory: SensorMemory, *, now: float, limit: int = EVENTS_A_TICK
) -> "tuple[GroupTick, ...]":
    """Whom to tell of in this tick: real changes first, then the longest untold."""
    ranked: list[tuple[int, int, GroupTick]] = []
    for look in looks:
        known, telling = memory.known(look.group), look.emitted(now)
        if known is None or known.hard != telling.hard:
            ranked.append((0, known.at if known else 0, look))
        elif not 0 <= now - known.at < (HEARTBEAT if known.band == telling.band else BAND_EVERY):
            ranked.append((1, known.at, look))
    ranked.sort(key=lambda entry: entry[:2])
    return tuple(look for _, _, look in ranked[:limit])


Event = AssetObservation | AssetCheckEvaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTick:
    """One group in one tick, with all that is said of it."""

    state: GroupSnapshot
    fleet: GroupSpec | None = None
    """None: not declared."""
    lag: Judgement | None = None
    change: Change | None = None
    unread: str = ""
    """Why nothing is known of its changes: what is stored of them cannot be read."""

    @property
    def group(self) -> str:
        """Its id."""
        return self.state.group

    def emitted(self, now: float) -> Emitted:
        """What is remembered of it once it is told."""
        seen = self.state
        lag = self.lag and (self.lag.passed, self.lag.severity.value, self.lag.outcome)
        done = self.change and (self.change.plan.id, self.change.state.value)
        members = sorted(
            (m.member_id, m.instance_id or "", sorted(m.partitions)) for m in seen.members
        )
        return Emitted(
            hard=digest(seen.exists, seen.state.value, members, seen.lag is None, lag, done),
            band=lag_band(seen.lag),
            at=int(now),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a tick saw."""

    at: float
    spec: FleetSpec
    groups: tuple[GroupTick, ...]
    problems: tuple[str, ...]
    writable: bool = True
    """Whether those who carry out changes could have renewed their leases [38]."""


def look(cycle: "Fleet") -> Looked:
    """One snapshot of the whole cluster, judged."""
    snapshot = cycle.snapshot()
    known = {fleet.group for fleet in cycle.spec.fleets}
    keep_up = keeping_up(cycle, snapshot, known)
    declared = [
        declared_group(cycle, fleet, snapshot.groups.get(fleet.group), keep_up)
        for fleet in cycle.spec.fleets
    ]
    others = [
        GroupTick(state=state)
        for group, state in snapshot.groups.items()
        if group not in known and state.exists
    ]
    return Looked(
        at=snapshot.at,
        spec=cycle.spec,
        groups=(*declared, *others),
        problems=(*snapshot.problems, *(seen.unread for seen in declared if seen.unread)),
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
    cycle: "Fleet", snapshot: Snapshot, groups: Collection[str]
) -> Mapping[str, GroupLagStatus]:
    """Judge these groups; the past is read where something has waited for long."""
    mine = snapshot.only(groups.__contains__)
    doubted = in_doubt(mine, ())
    found = lag_statuses(mine.only(lambda group: group not in doubted))
    if not doubted:
        return found
    past = minutes_of(cycle, doubted)
    return found | judged(cycle, mine.only(doubted.__contains__), past, doubted)[1]


def declared_group(
    cycle: "Fleet",
    fleet: GroupSpec,
    state: GroupSnapshot | None,
    keep_up: Mapping[str, GroupLagStatus],
) -> GroupTick:
    """A declared group, whether Kafka knows it or not."""
    state = state or missing(fleet.group)
    change, unread = None, ""
    try:
        change = cycle.change(fleet.group) if fleet.worker is not None else None
    except (Damaged, SchemaTooNew) as error:  # of this group: the others are looked at
        unread = str(error)
    return GroupTick(
        state=state,
        fleet=fleet,
        lag=lag_judgement(fleet, state, keep_up.get(fleet.group)),
        change=change,
        unread=unread,
    )


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
    parts = [state.state.value if state.exists else "does not exist"]
    parts.append(plural(len(state.members), "member"))
    metadata: dict[str, Any] = {
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
    return told_of(cluster, seen.group, sentence, declared=seen.fleet is not None, **metadata)


def told_of(
    cluster: str, group: str, sentence: str, *, declared: bool, **metadata: Any
) -> AssetObservation:
    """A sentence about a group, on its own asset, or on its partition of the discovered ones."""
    return AssetObservation(
        asset_key=asset_keys.group_key(cluster, group)
        if declared
        else asset_keys.discovered_key(cluster),
        partition=None if declared else asset_keys.name_of(group),
        description=sentence,
        metadata={"sentence": sentence, "group": group, **metadata},
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
    if seen.change is not None and seen.change.ended_at is not None:
        yield receipt_judgement(seen.change).evaluation(asset_keys.RECEIPT, key)


# Which STARTED runs are dead: pure judgement over what the group's lease shows.
#
# Problem: after a power cut a run stays STARTED in Dagster's storage for ever; nothing of
# Dagster's own notices a local run worker that is gone with its code server [36]. Choice: an
# acting run shows life through its change's counter, which it raises every third of a lease. A run
# whose change stands still for a lease, or that has no running change for two minutes, is over.
# Times are counted in ticks as well as in seconds, of which a tick adds no more than ticks are
# apart: a machine that slept does not wake to a mass ending, and no setting of the clock ends or
# keeps a run. A tick whose own writes are refused begins the count anew: the run's would have been
# as well [38]. Cost: a dead run is seen after a minute or two, not at once; one that makes other
# assets too, before or after its change, is left to Dagster's `run_monitoring` and to people.


STILL_TICKS = 3
IDLE_TICKS = 6
IDLE_SECONDS = 120.0
"""A run plans, waits for a dead actor's lease, checks: with no change of its own that long."""
MARGIN = 5.0
LONGEST_TICK = 30.0
"""Seconds that one tick may add: they are 15 s apart, and what lies between is not watched."""

IDLE = "idle"


def mark_of(run_id: str, change: Change | None) -> str:
    """What the run shows of itself in the store now."""
    if (
        change is None
        or change.actor != asset_keys.actor(run_id)
        or change.state is not ChangeState.RUNNING
    ):
        return IDLE
    return f"{change.token}.{change.counter}"


def seen_again(
    known: StartedRun | None, mark: str, *, now: float, provable: bool = True
) -> StartedRun:
    """The memory of a run after one more tick. provable: whether a renewal would be stored."""
    if known is None or known.mark != mark or not provable:
        return StartedRun(mark=mark, still=0.0, ticks=1, at=now)
    passed = min(max(0.0, now - known.at), LONGEST_TICK)
    return StartedRun(mark=mark, still=known.still + passed, ticks=known.ticks + 1, at=now)


def why_dead(run: StartedRun, *, lease: float) -> str | None:
    """Why the run is over, in a sentence; None while it may be alive."""
    still = run.still
    if run.mark == IDLE:
        if run.ticks >= IDLE_TICKS and still >= max(IDLE_SECONDS, 3 * lease):
            return (
                f"no change of this run is being carried out for {duration(still)}: its process is "
                "gone; the next run of the group goes on from what Kafka shows"
            )
        return None
    if run.ticks >= STILL_TICKS and still >= lease + MARGIN:
        return (
            f"the group's lease was not renewed for {duration(still)} (lease {lease:g} s): its "
            "process is gone; the next run of the group resumes the change"
        )
    return None


INTERVAL = 15
DEADLINE = 20.0
"""Seconds of a tick; Dagster's own limit is 60."""
PARTITIONS_A_TICK = 1_000
T = TypeVar("T")


def within(seconds: float, work: Callable[[], T]) -> T:
    """Do the work in a thread of its own, but wait no longer than this.

    The thread opens and closes its own Fleet, so that a late end hurts nobody. Raises
    Unreachable where the time is up, and whatever the work raised.
    """
    done: dict[str, T] = {}
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done["result"] = work()
        except BaseException as error:  # noqa: BLE001  handed to the waiting thread
            failed.append(error)

    thread = threading.Thread(target=run, name="fleet-watch", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if "result" not in done:
        raise Unreachable(f"the look at the cluster took longer than {seconds:g} s; trying again")
    return done["result"]


def end_dead_runs(
    instance: DagsterInstance, looked: Looked, memory: SensorMemory
) -> tuple[dict[str, StartedRun], list[str]]:
    """End STARTED runs whose lease is over [36]; what to remember of the others, and sentences."""
    by_name = {asset_keys.name_of(seen.group): seen for seen in looked.groups if seen.fleet}
    kept: dict[str, StartedRun] = {}
    said: list[str] = []
    for record in all_runs(instance, [DagsterRunStatus.STARTED]):
        run = record.dagster_run
        mine = by_name.get(asset_keys.group_of_run(run) or "")
        if mine is None or mine.fleet is None:
            continue
        before = memory.runs.get(run.run_id)
        if mine.unread:  # it may live, and be seen again once that is mended
            kept |= {} if before is None else {run.run_id: before}
            continue
        mark = mark_of(run.run_id, mine.change)
        if mark == IDLE and asset_keys.does_more(run):
            continue  # what it does beside the group's change shows nowhere here
        known = seen_again(before, mark, now=looked.at, provable=looked.writable)
        why = why_dead(known, lease=mine.fleet.runtime.lease)
        if why is None:
            kept[run.run_id] = known
            continue
        end_run(instance, record, why)
        said.append(f"ended run {run.run_id}: {why}")
    return kept, said


def end_run(instance: DagsterInstance, record: RunRecord, why: str) -> None:
    """Interrupt the run's process if it can still be reached, then mark the run as failed.

    A process that hangs and wakes later finds its lease adopted and stops by itself [31].
    """
    run = record.dagster_run
    try:
        instance.run_launcher.terminate(run.run_id)
    except Exception as error:  # noqa: BLE001  Dagster raises many kinds; its server may be gone
        instance.report_engine_event(f"could not be interrupted ({type(error).__name__})", run)
    instance.report_run_failed(run, f"Fleet ended this run: {why}.")


def look_with(resource: FleetResource) -> Looked:
    """Open, look, close; all in the calling thread."""
    with resource.open() as cycle:
        return look(cycle)


def watch(context: SensorEvaluationContext, resource: FleetResource) -> SensorResult | SkipReason:
    """One tick."""
    memory = SensorMemory.from_cursor(context.cursor)
    try:
        looked = within(DEADLINE, lambda: look_with(resource))
    except FleetError as error:
        return SkipReason(str(error))
    runs, said = end_dead_runs(context.instance, looked, memory)
    seen = {s.group: s for s in looked.groups}
    telling = due(looked.groups, memory, now=looked.at)
    cluster = looked.spec.cluster.name
    events = [event for told in telling for event in events_of(cluster, told)]
    after = replace(memory.told(telling, now=looked.at, alive=seen), runs=runs)
    for sentence in (*said, *looked.problems):
        context.log.warning(sentence)
    return SensorResult(
        asset_events=events,
        cursor=after.as_cursor(),
        dynamic_partitions_requests=partition_requests(context.instance, looked),
        # No run is ever asked for here, so Dagster calls every tick skipped and shows this.
        skip_reason=SkipReason(
            f"{len(seen)} groups seen, {len(telling)} told of, {len(said)} runs ended."
        ),
    )


def partition_requests(
    instance: DagsterInstance, looked: Looked
) -> list[AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest]:
    """Keep the partitions of `discovered_groups` equal to the groups that exist."""
    partitions = discovered_partitions(looked.spec)
    known = set(instance.get_dynamic_partitions(str(partitions.name)))
    exist = {asset_keys.name_of(s.group) for s in looked.groups if s.fleet is None}
    requests: list[AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest] = []
    if new := sorted(exist - known)[:PARTITIONS_A_TICK]:
        requests.append(partitions.build_add_request(new))
    if gone := sorted(known - exist)[:PARTITIONS_A_TICK]:
        requests.append(partitions.build_delete_request(gone))
    return requests


def watch_sensor(spec: FleetSpec) -> SensorDefinition:
    """The sensor, running from the start: it changes nothing in Kafka."""

    @sensor(
        name="fleet_watch",
        minimum_interval_seconds=INTERVAL,
        default_status=DefaultSensorStatus.RUNNING,
        description=(
            f"Looks at all groups of {spec.cluster.name}: tells what changed, "
            "evaluates checks, ends runs whose lease is over."
        ),
    )
    def fleet_watch(
        context: SensorEvaluationContext, fleet: FleetResource
    ) -> SensorResult | SkipReason:
        return watch(context, fleet)

    return fleet_watch
