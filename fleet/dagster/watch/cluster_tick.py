"""One tick's look at the cluster: every group, and what is said of it.

A snapshot of all groups is one batched question. Where the history's tables are fresh they
tell the rebalances of all groups at once (fleet.dagster.watch.cluster_tick). Elsewhere
counting a group's is a read of its partition of `__consumer_offsets` (10 to 100 ms), too much for
300 groups in a tick: it is done for groups that changed, for those that were over their budget, and
in turns for some of the others, so that each is counted several times within the usual window.
Whether a group keeps up is judged as `fleet status` does; its past is read only where something has
waited.
"""

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from dagster import AssetCheckEvaluation, AssetObservation

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.dagster import asset_keys
from fleet.dagster.judgements import Judgement, lag_judgement, receipt_judgement, storm_judgement
from fleet.decide.storms.storm_watch import watch_reach
from fleet.decide.verdicts import GroupVerdict
from fleet.errors import Damaged, FleetError, SchemaTooNew
from fleet.lag.snapshot import Snapshot
from fleet.manager.keeping_up import in_doubt, judged, verdicts
from fleet.manager.past import INTERVALS, minutes_of
from fleet.model import GroupSnapshot, GroupState
from fleet.model.rebalances import Rebalance
from fleet.slots import Change, ChangeState
from fleet.text import duration

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


# What the sensor remembers, and which groups get an event: pure.
#
# Problem: 300 groups observed every 15 s are 1.7 million events a day, and storing 600 of them
# takes 10-18 s [37]; nor does Dagster ever delete one, and a group's with its checks take 10 kB.
# Choice: an event only where a group changed (state, members, verdict: at once; the size of its
# lag: at most every hour), a heartbeat once a day, and no more than 50 groups' worth a tick,
# oldest first. The cursor, which Dagster keeps in the row of every tick, has 14 packed bytes a
# group: 19 kB for 1,000. Cost: in a storm of changes an event may be some ticks late, an
# observation that still holds is up to a day old, and nobody reads a cursor by eye.


VERSION = 3
EVENTS_A_TICK = 50
HEARTBEAT = 86_400.0
"""Seconds after which a group is observed though nothing changed."""
BAND_EVERY = 3600.0
"""Seconds between two events of a group whose lag only grew or shrank tenfold."""
_GROUP = Struct(">4s4sbI?")
"""Digest of the group id, then what was told: hard, band, at, over."""


def digest(*parts: object) -> str:
    """Eight hex digits of what was seen; enough to tell a group's looks apart."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


def lag_band(lag: int | None) -> int:
    """0 below 1,000 records, then one band per power of ten; -1 where lag cannot be said."""
    return -1 if lag is None else max(0, len(str(lag)) - 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """One group in one tick."""

    group: str
    hard: str
    """Digest of state, members with their partitions, whether lag is known, and verdict."""
    band: int
    """The size of its lag, see `lag_band`."""
    over: bool = False
    """More rebalances than its budget allows."""

    @classmethod
    def of(cls, seen: GroupSnapshot, *judged: object) -> "GroupSummary":
        """What a look at a group comes down to, beside the verdicts that were drawn from it."""
        members = sorted(
            (m.member_id, m.instance_id or "", sorted(m.partitions)) for m in seen.members
        )
        return cls(
            group=seen.group,
            hard=digest(seen.exists, seen.state.value, members, seen.lag is None, judged),
            band=lag_band(seen.lag),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """What was last told of a group, and when."""

    hard: str
    band: int
    at: int
    """Seconds since the epoch."""
    over: bool = False


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
                k.hex(): Emitted(hard=hard.hex(), band=band, at=at, over=over)
                for k, hard, band, at, over in _GROUP.iter_unpack(b64decode(stored["g"]))
            },
            runs={
                k: StartedRun(mark=mark, still=still, ticks=ticks, at=at)
                for k, (mark, still, ticks, at) in stored["r"].items()
            },
        )

    def as_cursor(self) -> str:
        """The text that Dagster keeps."""
        groups = b"".join(
            _GROUP.pack(bytes.fromhex(k), bytes.fromhex(e.hard), e.band, e.at, e.over)
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
        self, looks: Iterable[GroupSummary], *, now: float, alive: Collection[str]
    ) -> "SensorMemory":
        """Remember these looks as told, and forget groups that are gone."""
        kept = {digest(group) for group in alive}
        groups = {k: v for k, v in self.groups.items() if k in kept}
        for look in looks:
            groups[digest(look.group)] = Emitted(
                hard=look.hard, band=look.band, at=int(now), over=look.over
            )
        return SensorMemory(groups=groups, runs=self.runs)


def due(
    looks: Iterable[GroupSummary], memory: SensorMemory, *, now: float, limit: int = EVENTS_A_TICK
) -> tuple[GroupSummary, ...]:
    """Whom to tell of in this tick: real changes first, then the longest untold."""
    ranked: list[tuple[int, int, GroupSummary]] = []
    for look in looks:
        known = memory.known(look.group)
        if known is None or (known.hard, known.over) != (look.hard, look.over):
            ranked.append((0, known.at if known else 0, look))
        elif not 0 <= now - known.at < (HEARTBEAT if known.band == look.band else BAND_EVERY):
            ranked.append((1, known.at, look))
    ranked.sort(key=lambda entry: entry[:2])
    return tuple(look for _, _, look in ranked[:limit])


# The last rebalances of all groups from the history's tables, where these are fresh enough.
#
# Problem: sensors and checks want to know what happened in the last minutes; the tables answer
# for every group at once, and the log for one group at a read each. But tables may be old, leave
# groups out, or be in the middle of catching up with a long log. Choice: they are asked only
# while their last state is young and was no batch with a log still before it, and only for
# groups that they record; whoever asks for another group, or while they cannot be read, is told
# to read the log. Cost: what tables tell is up to one interval of `fleet history tail` old.


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
        if state is None or now - state.at > max(FRESH, INTERVALS * history.every):
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
