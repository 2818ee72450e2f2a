"""`fleet ui`: serves one page of all groups.

Problem: an unreachable broker delays a refresh by ten seconds, and a page must answer at once. Ten
viewers must not cause ten times the requests, and no viewer must cause none. Choice: one thread
refreshes while a request came within `IDLE` seconds, and rests four times as long as a refresh
takes. Every answer is made from the last good refresh; since when and why refreshes fail is kept
beside it. One view of the offsets topic supplies rebalances and storms. Cost: a figure is as old as
its refresh, and the first viewer after a silence sees old figures until the next refresh is done.
"""

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from fleet.clock import Clock
from fleet.commands.answers import as_answer, change_answer
from fleet.commands.groups.group_status import (
    GROUPS,
    PARTITIONS,
    SLOTS,
    Column,
    GroupStatus,
    status_answer,
    statuses,
)
from fleet.commands.groups.rebalances import answer as rebalances_answer
from fleet.commands.groups.rebalances import storm_spans
from fleet.commands.invocation import (
    SCHEMA_VERSION,
    Invocation,
    common,
    listen_option,
    stop_on_signals,
)
from fleet.config.acls import OFFSETS
from fleet.config.spec import FleetSpec
from fleet.decide.decision_log import KeptDecision
from fleet.decide.lag_status import GroupLagStatus, Level
from fleet.decide.storms import Storm, StormWatch, budget_of
from fleet.errors import FleetError
from fleet.lag.snapshot import Snapshot, rates
from fleet.manager.past import DAY, Past, Recent, Source, find_start, make_recent, open_tail
from fleet.model import GroupSnapshot, GroupState
from fleet.report.decision_plot import decision_svg
from fleet.report.timeline import lay_out
from fleet.report.timeline_html import as_svg
from fleet.slots import Change, Pause, WorkerReport
from fleet.system.closing import Closing
from fleet.text import duration, plural

if TYPE_CHECKING:
    from fleet.log.readers.tail import Tail
    from fleet.manager.cycle import Fleet
    from fleet.ui.page_server import PageServer


# Problem: lag shows when a group has too few workers, not when it has too many. Choice: a report
# has the seconds spent inside batches. Their growth over the last minute is a worker's busy ratio;
# the sum over the group is how many workers would be enough. Cost: a worker reports once per lease,
# and batches longer than the window make the ratio jump.


WINDOW: Final = 60.0
"""Seconds over which a busy ratio is taken."""
LEAST: Final = 10.0
"""Seconds of reports that a busy ratio needs at least."""
FULL: Final = 0.8
"""Busy ratio up to which a worker has capacity for a peak."""


class BusyTimes:
    """Keeps the reports of all workers for the last `WINDOW` seconds."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int, float]]] = {}

    def add(self, reports: Iterable[WorkerReport], *, at: float) -> None:
        """Adds the stored reports of this moment (monotonic seconds)."""
        living = set()
        for report in reports:
            living.add(report.worker)
            seen = self._seen.setdefault(report.worker, deque())
            if seen and (report.counter, report.busy_seconds) < seen[-1][1:]:
                seen.clear()  # another process under the same name
            if not seen or report.counter > seen[-1][1]:
                seen.append((at, report.counter, report.busy_seconds))
            while len(seen) > 1 and at - seen[1][0] >= WINDOW:
                seen.popleft()
        for worker in self._seen.keys() - living:
            del self._seen[worker]

    def ratio(self, worker: str) -> float | None:
        """Returns the share of its time that a worker spent inside batches; None if unknown."""
        seen = self._seen.get(worker)
        if not seen or seen[-1][0] - seen[0][0] < LEAST:
            return None
        spent = (seen[-1][2] - seen[0][2]) / (seen[-1][0] - seen[0][0])
        return min(1.0, max(0.0, spent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Holds the load of a group's workers; None: unknown."""

    busy: float | None = None
    """Mean over the workers that own a slot."""
    slots: Mapping[int, float] = field(default_factory=dict)
    """By slot, if known."""
    without_partitions: int | None = None
    """Members that own nothing while the group is settled."""
    too_many: int | None = None
    sentence: str = ""


def load_of(
    seen: GroupSnapshot | None,
    *,
    owners: Mapping[int, str],
    times: BusyTimes,
    lag_status: GroupLagStatus | None,
) -> Load:
    """Returns a group's load; `owners` maps its slots to workers, empty for an external group."""
    ratios = {slot: times.ratio(worker) for slot, worker in owners.items()}
    known = {slot: ratio for slot, ratio in ratios.items() if ratio is not None}
    complete = bool(owners) and len(known) == len(owners)
    idle = _without_partitions(seen)
    sentences, counts = [], [] if idle is None else [idle]
    if idle:
        sentences.append(f"{plural(idle, 'member')} without a partition")
    busy = sum(known.values()) / len(known) if complete else None
    if busy is not None:
        needed = max(1, ceil(sum(known.values()) / FULL))
        sentence = f"busy for {busy * 100:.0f} % of the last {duration(WINDOW)}"
        behind = lag_status is not None and lag_status.level is not Level.OK
        if needed < len(owners) and not behind:
            counts.append(len(owners) - needed)
            sentence += f": {plural(needed, 'worker')} would be enough"
        sentences.append(sentence)
    return Load(
        busy=busy,
        slots=known,
        without_partitions=idle,
        too_many=max(counts, default=0 if busy is not None else None),
        sentence="; ".join(sentences),
    )


def _without_partitions(seen: GroupSnapshot | None) -> int | None:
    """Counts members without a partition; None if it is unsettled or assignments are unknown."""
    if seen is None or seen.state is not GroupState.STABLE:
        return None
    idle = sum(not member.partitions for member in seen.members)
    return None if idle == len(seen.members) else idle


_GOODBYE: Final = 3.0
_OLD: Final = 30.0
"""Seconds after which the view of the offsets topic is too old to be shown."""
_CHANGES: Final = 20
"""Changes of a group that are read: storms of the last day do not count their rebalances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Holds all groups at one moment, and their last day."""

    snapshot: Snapshot
    before: Snapshot | None
    """The refresh before it, for rates."""
    recent: Recent
    storms: Mapping[str, Storm] = field(default_factory=dict)
    generations: Mapping[str, int | None] = field(default_factory=dict)
    changes: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)
    """Of declared groups, latest first; the last known ones if they cannot be read."""
    pauses: tuple[Pause, ...] | None = ()
    """None if Fleet's own state could not be read."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Lists what the view lacks."""
        unknown = f"rebalances are unknown: {self.recent.sentence}"
        return (*self.snapshot.problems[:3], *(() if self.recent.known else (unknown,)))


def changes_now(
    read: Callable[[str, int], tuple[Change, ...]],
    groups: Iterable[str],
    before: Mapping[str, tuple[Change, ...]],
) -> dict[str, tuple[Change, ...]]:
    """Returns the changes of each group, latest first, by `read(group, limit)`.

    Reads all of them only if the last one differs from `before`: earlier ones do not change.
    """
    found = {}
    for group in groups:
        known = before.get(group)
        same = known is not None and read(group, 1) == known[:1]
        found[group] = known if known is not None and same else read(group, _CHANGES)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """Holds the last good refresh, and the failure after it."""

    value: "PageState | None" = None
    """The last good refresh; None: none yet."""
    problem: str | None = None
    """Why the refresh after it failed; None: it did not."""
    since: float | None = None
    """Wall time of the first failure in a row."""


IDLE: Final = 30.0
_REST: Final = 4.0
_DECISIONS: Final = 60.0
"""Seconds between two readings of the decisions of policies."""
_SHOWN: Final = 500
"""Rebalances of one answer at most, the newest."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageState:
    """Holds all that the page shows of one moment."""

    spec: FleetSpec
    view: ClusterView
    live: tuple[dict[str, Any], ...]
    """Live row of each group, worst first (`live_rows`)."""
    statuses: Mapping[str, GroupStatus]
    """By group, in order of name."""
    loads: Mapping[str, Load]
    past: Past | None
    """The last day, still growing; None if unknown."""
    decisions: Mapping[str, tuple[KeptDecision, ...]] = field(default_factory=dict)
    """What policies decided, by group, oldest first."""
    overview: bytes = b"{}"
    """Encoded answer about all groups, made once per refresh."""

    def with_overview(self) -> "PageState":
        """Returns it with its encoded overview."""
        return replace(self, overview=json.dumps(overview(self), separators=(",", ":")).encode())


class Watch(Closing):
    """Refreshes one cluster on its own thread, while requests come, until closed."""

    def __init__(self, fleet: "Fleet", *, every: float) -> None:
        self._fleet, self._every = fleet, every
        self._storms = StormWatch()
        self._before: Snapshot | None = None
        self._changes: dict[str, tuple[Change, ...]] = {}
        self._tail: Tail | None = None
        """Live view of the offsets topic; None if it cannot be read."""
        self._why = ""
        """Why it cannot."""
        self._reaches: float | None = None
        """Time from which it is read; None: from its beginning."""
        self._times = BusyTimes()
        self._decisions: dict[str, tuple[KeptDecision, ...]] = {}
        self._decisions_at = -inf
        """Monotonic time at which they were read."""
        self._asked_at = fleet.clock.monotonic()
        self._latest = Latest()
        self._defect: Exception | None = None
        """The defect that stopped the thread; `latest` raises it."""
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="refresh", daemon=True)

    def start(self) -> None:
        """Starts the refreshing thread."""
        self._thread.start()

    def latest(self) -> Latest:
        """Returns the last refresh at once. Raises the defect that stopped the thread."""
        if self._defect is not None:
            raise self._defect
        self._asked_at = self._fleet.clock.monotonic()
        self._wake.set()
        return self._latest

    def close(self) -> None:
        """Stops the refreshing thread."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=_GOODBYE)
        if self._tail is not None:
            self._tail.close()

    def _run(self) -> None:
        now = self._fleet.clock.monotonic
        try:
            while not self._stop.is_set():
                began = now()
                self._once()
                self._stop.wait(max(self._every, _REST * (now() - began)))
                self._wake.clear()
                if now() - self._asked_at > IDLE and not self._stop.is_set():
                    self._wake.wait()
        except Exception as error:  # noqa: BLE001 - raised again by `latest`
            self._defect = error

    def _once(self) -> None:
        """Refreshes once; on a failure keeps the last value and its error."""
        try:
            self._latest = Latest(value=self._take())
        except FleetError as error:
            known = self._latest
            since = self._fleet.clock.now() if known.since is None else known.since
            self._latest = replace(known, problem=str(error), since=since)

    def _take(self) -> PageState:
        fleet, view, tail = self._fleet, self._view(), self._tail
        if tail is not None and view.recent.known:
            past = replace(view.recent, commits=tail.commits(), reaches=self._reaches)
            view = replace(view, recent=past)
        found = statuses(
            fleet, view.snapshot, view.recent, storm=view.storms.get, pauses=view.pauses
        )
        at = fleet.clock.monotonic()
        reports = (each for status in found if status.managed for each in status.managed.reports)
        self._times.add(reports, at=at)
        made = PageState(
            spec=fleet.spec,
            view=view,
            live=live_rows(view),
            statuses={status.group: status for status in found},
            loads={status.group: self._load(status) for status in found},
            past=None if tail is None or not view.recent.known else _past(tail, fleet.clock.now()),
            decisions=self._read_decisions() if view.pauses is not None else self._decisions,
        )
        return made.with_overview()

    def _read_decisions(self) -> Mapping[str, tuple[KeptDecision, ...]]:
        """Reads what policies decided, once a minute: it takes a millisecond for each group."""
        now, spec = self._fleet.clock.monotonic(), self._fleet.spec
        if now - self._decisions_at >= _DECISIONS:
            found = {
                f.group: self._fleet.decisions(f.group) for f in spec.fleets if f.is_changeable
            }
            self._decisions = {group: kept for group, kept in found.items() if kept}
            self._decisions_at = now
        return self._decisions

    def _view(self) -> ClusterView:
        snapshot = self._fleet.snapshot()
        self._read()
        pauses, problem = self._fleet.pauses_or_reason()
        if problem is None:
            declared = [fleet.group for fleet in self._fleet.spec.fleets]
            self._changes = changes_now(self._fleet.changes, declared, self._changes)
        else:
            snapshot = replace(snapshot, problems=(problem, *snapshot.problems))
        before, self._before = self._before, snapshot
        changes, recent, tail = self._changes, self._recent(), self._tail
        view = ClusterView(
            snapshot=snapshot, before=before, recent=recent, changes=changes, pauses=pauses
        )
        if tail is None or not recent.known:
            return view
        now, spec = self._fleet.clock.now(), self._fleet.spec
        self._storms = self._storms.refresh(spec, tail.rebalances(), now=now, changes=changes)
        generations = {group: each.generation for group, each in tail.summaries().items()}
        return replace(view, storms=self._storms.storms, generations=generations)

    def _read(self) -> None:
        """Starts to read the offsets topic, unless it has."""
        if self._tail is None:
            try:
                self._reaches = find_start(self._fleet)
                names = self._fleet.topic_ids()
                self._tail = open_tail(self._fleet, since=self._reaches, keep=DAY, names=names)
            except FleetError as error:
                self._why = str(error)

    def _recent(self) -> Recent:
        tail = self._tail
        if tail is None:
            return Recent(kind="none", sentence=self._why)
        now, age = self._fleet.clock.now(), tail.age()
        if age is None or age > _OLD:
            read = f"__consumer_offsets: {tail.records:,} records read so far"
            late = read if age is None else f"__consumer_offsets was read {duration(age)} ago"
            return Recent(kind="none", sentence=tail.problem or late)
        found = tail.rebalances(since=now - DAY)
        sentence = "rebalances from __consumer_offsets"
        if age > 2 * max(self._every, 2.0):
            sentence += f", as of {duration(age)} ago"
        return make_recent(found, kind="log", sentence=sentence, now=now)

    def _load(self, status: GroupStatus) -> Load:
        slots = status.managed.slots if status.managed else ()
        owners = {slot.number: slot.owner for slot in slots if slot.owner is not None}
        return load_of(status.seen, owners=owners, times=self._times, lag_status=status.lag_status)


def _past(tail: "Tail", now: float) -> Past:
    kept = tail.rebalances()
    reaches = kept[0].ended_at if kept else None
    as_of = now - (tail.age() or 0.0)
    return Past(rows=tail, source=Source(kind="log", place=OFFSETS, reaches=reaches, as_of=as_of))


# --- the page's answers: the commands' JSON (docs/reference/json.md), and rates and loads


def overview(found: PageState) -> dict[str, Any]:
    """Returns all groups: `fleet status`, the live row of each group, and its load."""
    return {
        "status": _status(found, list(found.statuses.values()), detail=False),
        "top": _top(found),
        "load": {group: as_answer(load) for group, load in found.loads.items()},
    }


def groups_answer(latest: Latest, *, cluster: str, now: float) -> bytes:
    """Returns the overview, which is encoded once for all viewers."""
    found = latest.value
    head = json.dumps(_head(latest, cluster=cluster, now=now))
    rest = b'{"status":null,"top":null,"load":null}' if found is None else found.overview
    return b"%s,%s" % (head.encode()[:-1], rest[1:])


def group_answer(latest: Latest, group: str, *, cluster: str, now: float) -> dict[str, Any] | None:
    """Returns one group: `fleet status GROUP`, its live row, its last change; None: unknown."""
    found = latest.value
    head = _head(latest, cluster=cluster, now=now)
    if found is None:
        return {**head, "status": None, "top": None, "load": None, "change": None, "plan": None}
    status = found.statuses.get(group)
    if status is None:
        return None
    change = status.managed.change if status.managed else None
    return {
        **head,
        "status": _status(found, [_counted(found, status)], detail=True),
        "top": _top(found, group),
        "load": as_answer(found.loads[group]),
        "change": change and change_answer(change),
        "plan": change and as_answer(change.plan),
    }


def timeline_answer(
    latest: Latest, group: str, *, cluster: str, now: float, seconds: float, width: float
) -> dict[str, Any]:
    """Returns `fleet rebalances GROUP` of the last `seconds`, decisions, and their pictures."""
    found, since = latest.value, now - seconds
    head = _head(latest, cluster=cluster, now=now)
    head["scaling"] = found and _scaling(found.decisions.get(group, ()), since, now, width)
    if found is None or found.past is None:
        return {**head, "rebalances": None, "svg": None}
    all_of_it = found.past.rows.rebalances(group=group)
    shown = [each for each in all_of_it if each.ended_at >= since]
    listed = rebalances_answer(
        shown[-_SHOWN:], cluster=cluster, source=found.past.source, since=since, until=now
    )
    if not shown:
        return {**head, "rebalances": listed, "svg": None}
    changes = found.view.changes.get(group, ())
    line = lay_out(
        rebalances=all_of_it,
        memberships=found.past.rows.memberships(group=group, until=now),
        since=since,
        until=now,
        storms=storm_spans(found.spec, all_of_it, until=now, changes=changes),
    )
    return {**head, "rebalances": listed, "svg": as_svg(line, width=width)}


def _scaling(
    kept: Sequence[KeptDecision], since: float, until: float, width: float
) -> dict[str, Any] | None:
    """Returns the decisions of a time with their picture; None if no policy decided."""
    svg = decision_svg(kept, since=since, until=until, width=width)
    shown = [as_answer(each) for each in kept if since <= each.at <= until]
    return {"decisions": shown, "svg": svg} if svg else None


def _head(latest: Latest, *, cluster: str, now: float) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "cluster": cluster,
        "now": now,
        "problem": latest.problem and {"sentence": latest.problem, "since": latest.since},
    }


def _status(found: PageState, groups: list[GroupStatus], *, detail: bool) -> dict[str, Any]:
    view = found.view
    return status_answer(view.snapshot, groups, view.pauses, recent=view.recent, detail=detail)


def live_rows(view: ClusterView) -> tuple[dict[str, Any], ...]:
    """Returns a row per existing group: storms first, then by age of the lag, rebalances, lag.

    Rates are records per second; None: unknown.
    """
    speeds = {} if view.before is None else rates(view.before, view.snapshot)
    rows = []
    for name, group in view.snapshot.groups.items():
        if not group.exists:
            continue
        last, storm = view.recent.last.get(name), view.storms.get(name)
        generation = view.generations.get(name)
        produced, consumed = speeds.get(name, (None, None))
        row = as_answer(
            group,
            *("group", "type", "state", "lag", "lag_seconds"),
            members=len(group.members),
            generation=last.number if generation is None and last else generation,
            in_per_second=produced,
            out_per_second=consumed,
            rebalances_per_hour=view.recent.per_hour(name),
            last_cause=last and last.cause.value,
            last_at=last and last.ended_at,
            storm=storm and storm.summary,
        )
        rows.append(row)
    return tuple(sorted(rows, key=_worst_first))


def _worst_first(row: dict[str, Any]) -> tuple[Any, ...]:
    age, lag = row["lag_seconds"], row["lag"] or 0
    if age is None:  # records older than the first refresh have no age
        age = float("inf") if lag else 0.0
    return row["storm"] is None, -age, -(row["rebalances_per_hour"] or 0), -lag, row["group"]


def _top(found: PageState, group: str | None = None) -> dict[str, Any]:
    """Returns the live rows of all groups, or of the named one."""
    return {
        "schema_version": SCHEMA_VERSION,
        "cluster": found.spec.cluster.name,
        "at": found.view.snapshot.at,
        "problems": list(found.view.notices),
        "rebalances_from": found.view.recent.sentence,
        "groups": [row for row in found.live if group in {None, row["group"]}],
    }


def _counted(found: PageState, status: GroupStatus) -> GroupStatus:
    """Adds the rebalances in its storm window, as `fleet status GROUP` counts them."""
    window = budget_of(found.spec, status.group).window
    if found.past is None:
        return replace(status, window=window)
    since = found.view.snapshot.at - window
    counted = len(found.past.rows.rebalances(group=status.group, since=since))
    return replace(status, window=window, rebalances=counted)


_LONGEST = 86_400.0
_LOCAL = ("http://127.", "http://[::1]")


@click.command(epilog="Examples:  fleet ui  |  fleet ui --listen 0.0.0.0:9309")
@listen_option("the page", "ui.listen", 9309)
@click.option("--interval", type=click.FloatRange(min=0.5, max=3600.0), default=2.0,
              show_default=True, metavar="SECONDS", help="Time between two refreshes.")  # fmt: skip
@common
def ui(invocation: Invocation, *, listen: str | None, interval: float) -> None:
    """Serve a read-only page of all groups, worst first.

    The page shows each group's slots, members, lag, running change, and rebalances with their
    causes. All viewers share one refresh of the cluster, which runs only while the page is
    open. The page has no login. Runs until Ctrl-C.
    """
    with invocation.open() as fleet, Watch(fleet, every=interval) as watch:
        stop = stop_on_signals()
        address = listen or fleet.spec.ui.listen
        with served(fleet.spec, watch.latest, address, fleet.clock) as server:
            watch.start()
            click.echo(f"fleet ui: cluster {fleet.spec.cluster.name} at {server.url}/", err=True)
            if not server.url.startswith(_LOCAL):
                warning = "other machines can reach this address, and the page has no login"
                click.echo(f"fleet ui: {warning}", err=True)
            stop.wait()
            # A refresh of an unreachable broker takes ten seconds and owns nothing: do not wait.
            os._exit(0)


def served(
    spec: "FleetSpec", latest: "Callable[[], Latest]", listen: str, clock: "Clock"
) -> "PageServer":
    """Opens the server of the page. Raises ConfigError if the address is in use."""
    from fleet.ui.page_server import PageServer

    cluster = spec.cluster.name

    def groups(_: Mapping[str, str]) -> bytes:
        return groups_answer(latest(), cluster=cluster, now=clock.now())

    def group(query: Mapping[str, str]) -> bytes | None:
        name = query.get("name", "")
        found = group_answer(latest(), name, cluster=cluster, now=clock.now())
        return None if found is None else json.dumps(found).encode()

    def timeline(query: Mapping[str, str]) -> bytes:
        found = timeline_answer(
            latest(),
            query.get("name", ""),
            cluster=cluster,
            now=clock.now(),
            seconds=_within(query, "seconds", 3600.0, _LONGEST),
            width=_within(query, "width", 1200.0, 4000.0),
        )
        return json.dumps(found).encode()

    names = [urlsplit(spec.ui.url).hostname or ""] if spec.ui.url else []
    answers = {"/api/groups": groups, "/api/group": group, "/api/timeline": timeline}
    tables: dict[str, Sequence[Column[Any]]] = {
        "groups": GROUPS,
        "slots": SLOTS,
        "partitions": PARTITIONS,
    }
    columns = {
        name: [column.on_page() for column in each if column.form] for name, each in tables.items()
    }
    return PageServer(listen, answers, columns=columns, names=names)


def _within(query: Mapping[str, str], name: str, usual: float, most: float) -> float:
    """Returns a positive number of the query. Raises ValueError."""
    given = query.get(name, str(usual))
    try:
        found = float(given)
    except ValueError:
        found = -1.0
    if not 0 < found <= most:
        raise ValueError(f"{name}={given}: write a number above 0, at most {most:g}")
    return found
