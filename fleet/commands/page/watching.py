"""One look at the cluster for all who watch.

Problem: ten people who open the page during an incident must not make ten times the requests to a
cluster that is in trouble, and a page that nobody looks at must make none. Choice: one thread
looks, as long as somebody asked within `IDLE` seconds, and rests four times as long as a look
takes; what it saw is kept as one value, from which every answer is made. Nothing is written, to
Kafka or to the store. Cost: who comes after a silence sees the last look, with its age, until
the next one is done.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from fleet.commands.answers import change_answer, plan_answer
from fleet.commands.groups.group_status import GroupStatus, status_answer, statuses
from fleet.commands.groups.looks import Latest, Look, Looks, Repeated
from fleet.commands.groups.rebalances_answer import answer as rebalances_answer
from fleet.commands.groups.stormy_times import storm_spans
from fleet.commands.invocation import SCHEMA_VERSION
from fleet.config.acls import OFFSETS
from fleet.config.spec import FleetSpec
from fleet.decide.storms.storm_watch import budget_of
from fleet.lag.snapshot import rates
from fleet.manager.past import Past, Source
from fleet.model.rebalances import Rebalance
from fleet.report.timeline import lay_out
from fleet.report.timeline_html import as_svg
from fleet.slots import Pause
from fleet.system.closing import Closing
from fleet.ui.busy import BusyTimes, Load, load_of

if TYPE_CHECKING:
    from fleet.log.readers.tail import Tail
    from fleet.manager.cycle import Fleet

IDLE: Final = 30.0
_REST: Final = 4.0
_SHOWN: Final = 500
"""Rebalances of one answer; the newest are told."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Watched:
    """All groups as they were at one moment."""

    spec: FleetSpec
    look: Look
    live: tuple[dict[str, Any], ...]
    """What is live of each group, worst first (`live_rows`)."""
    statuses: Mapping[str, GroupStatus]
    """By group, in order of name."""
    pauses: tuple[Pause, ...] | None
    """None where nothing that Fleet itself keeps can be read."""
    loads: Mapping[str, Load]
    past: Past | None
    """Of the last day, and it goes on; None where it is not known."""
    overview: bytes = b"{}"
    """The answer about all groups: what takes longest of an answer is done once a look."""

    def encoded(self) -> "Watched":
        """With its overview."""
        return replace(self, overview=json.dumps(overview(self), separators=(",", ":")).encode())


class Watch(Closing):
    """Looks at one cluster while somebody watches."""

    def __init__(self, fleet: "Fleet", *, every: float) -> None:
        self._fleet = fleet
        self._looks = Looks(fleet, apart=every)
        self._times = BusyTimes()
        self._repeated = Repeated(self._take, every=every, clock=fleet.clock, rest=_REST, idle=IDLE)

    def start(self) -> None:
        """Begin to look."""
        self._repeated.start()

    def latest(self) -> Latest[Watched]:
        """What was seen last, at once."""
        return self._repeated.latest()

    def close(self) -> None:
        """Look no more."""
        self._repeated.close()
        self._looks.close()

    def _take(self) -> Watched:
        fleet, look, tail = self._fleet, self._looks.look(), self._looks.tail
        if tail is not None and look.recent.known:
            past = replace(look.recent, commits=tail.commits(), reaches=self._looks.reaches)
            look = replace(look, recent=past)
        storm, pauses = look.storms.get, look.pauses
        found = statuses(fleet, look.snapshot, look.recent, storm=storm, pauses=pauses)
        at = fleet.clock.monotonic()
        reports = (each for status in found if status.managed for each in status.managed.reports)
        self._times.look(reports, at=at)
        made = Watched(
            spec=fleet.spec,
            look=look,
            live=live_rows(look),
            statuses={status.group: status for status in found},
            pauses=pauses,
            loads={status.group: self._load(status) for status in found},
            past=None if tail is None or not look.recent.known else _past(tail, fleet.clock.now()),
        )
        return made.encoded()

    def _load(self, status: GroupStatus) -> Load:
        slots = status.managed.slots if status.managed else ()
        held = {slot.number: slot.holder for slot in slots if slot.holder is not None}
        return load_of(status.seen, held=held, times=self._times, verdict=status.verdict)


def _past(tail: "Tail", now: float) -> Past:
    kept = tail.rebalances()
    reaches = kept[0].ended_at if kept else None
    as_of = now - (tail.age() or 0.0)
    return Past(rows=tail, source=Source(kind="log", place=OFFSETS, reaches=reaches, as_of=as_of))


# --- what the page is told: the commands' own JSON (docs/json.md), and what only a watcher knows


def overview(found: Watched) -> dict[str, Any]:
    """All groups of a look: `fleet status`, what is live of each group, and its load."""
    return {
        "status": _status(found, list(found.statuses.values()), detail=False),
        "top": _top(found),
        "load": {group: load.as_json() for group, load in found.loads.items()},
    }


def groups_answer(latest: Latest[Watched], *, cluster: str, now: float) -> bytes:
    """The look's overview, which is encoded once for all who watch."""
    found = latest.value
    head = json.dumps(_head(latest, cluster=cluster, now=now))
    rest = b'{"status":null,"top":null,"load":null}' if found is None else found.overview
    return b"%s,%s" % (head.encode()[:-1], rest[1:])


def group_answer(
    latest: Latest[Watched], group: str, *, cluster: str, now: float
) -> dict[str, Any] | None:
    """One group: `fleet status GROUP`, its live row, its last change; None: no such."""
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
        "load": found.loads[group].as_json(),
        "change": change and change_answer(change),
        "plan": change and plan_answer(change.plan),
    }


def timeline_answer(
    latest: Latest[Watched], group: str, *, cluster: str, now: float, seconds: float, width: float
) -> dict[str, Any]:
    """`fleet rebalances GROUP` of the last so many seconds, and their picture."""
    found, since = latest.value, now - seconds
    head = _head(latest, cluster=cluster, now=now)
    if found is None or found.past is None:
        return {**head, "rebalances": None, "svg": None}
    all_of_it = found.past.rows.rebalances(group=group)
    shown = [each for each in all_of_it if each.ended_at >= since]
    told = rebalances_answer(
        shown[-_SHOWN:], cluster=cluster, source=found.past.source, since=since, until=now
    )
    drawn = _drawn(found, group, all_of_it, since=since, until=now, width=width) if shown else None
    return {**head, "rebalances": told, "svg": drawn}


def _head(latest: Latest[Watched], *, cluster: str, now: float) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "cluster": cluster,
        "now": now,
        "problem": latest.problem and {"sentence": latest.problem, "since": latest.since},
    }


def _status(found: Watched, groups: list[GroupStatus], *, detail: bool) -> dict[str, Any]:
    look = found.look
    return status_answer(look.snapshot, groups, found.pauses, recent=look.recent, detail=detail)


def live_rows(look: Look) -> tuple[dict[str, Any], ...]:
    """Every group that exists: storms first, then by age of what waits, rebalances and lag.

    Rates are records a second; None = not known.
    """
    speeds = {} if look.before is None else rates(look.before, look.snapshot)
    rows = []
    for name, group in look.snapshot.groups.items():
        if not group.exists:
            continue
        last, storm = look.recent.last.get(name), look.storms.get(name)
        generation = look.generations.get(name)
        produced, consumed = speeds.get(name, (None, None))
        rows.append(
            {
                "group": name,
                "type": group.type,
                "state": group.state.value,
                "members": len(group.members),
                "generation": last.number if generation is None and last else generation,
                "lag": group.lag,
                "lag_seconds": group.lag_seconds,
                "in_per_second": produced,
                "out_per_second": consumed,
                "rebalances_per_hour": look.recent.per_hour(name),
                "last_cause": last and last.cause.value,
                "last_at": last and last.ended_at,
                "storm": storm and storm.words,
            }
        )
    return tuple(sorted(rows, key=_worst_first))


def _worst_first(row: dict[str, Any]) -> tuple[Any, ...]:
    age, lag = row["lag_seconds"], row["lag"] or 0
    if age is None:  # what waits since before every look is older than what has an age
        age = float("inf") if lag else 0.0
    return row["storm"] is None, -age, -(row["rebalances_per_hour"] or 0), -lag, row["group"]


def _top(found: Watched, group: str | None = None) -> dict[str, Any]:
    """What is live of all groups, or of one where it is named."""
    return {
        "schema_version": SCHEMA_VERSION,
        "cluster": found.spec.cluster.name,
        "at": found.look.snapshot.at,
        "problems": list(found.look.notices),
        "rebalances_from": found.look.recent.sentence,
        "groups": [row for row in found.live if group in {None, row["group"]}],
    }


def _counted(found: Watched, status: GroupStatus) -> GroupStatus:
    """With the rebalances in its storm window, as `fleet status GROUP` counts them."""
    window = budget_of(found.spec, status.group).window
    if found.past is None:
        return replace(status, window=window)
    since = found.look.snapshot.at - window
    counted = len(found.past.rows.rebalances(group=status.group, since=since))
    return replace(status, window=window, rebalances=counted)


def _drawn(
    found: Watched,
    group: str,
    rebalances: list[Rebalance],
    *,
    since: float,
    until: float,
    width: float,
) -> str:
    assert found.past is not None
    spans = storm_spans(
        found.spec, rebalances, until=until, changes=found.look.changes.get(group, ())
    )
    line = lay_out(
        rebalances=rebalances,
        memberships=found.past.rows.memberships(group=group, until=until),
        since=since,
        until=until,
        storms=spans,
    )
    return as_svg(line, width=width)
