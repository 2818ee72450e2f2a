"""What the page is told: the commands' own JSON (docs/json.md), and what only a watcher knows."""

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from fleet.commands.answers import change_answer, plan_answer
from fleet.commands.groups.group_status import GroupStatus, status_answer
from fleet.commands.groups.looks import Latest, Look
from fleet.commands.groups.rebalances_answer import answer as rebalances_answer
from fleet.commands.groups.stormy_times import storm_spans
from fleet.commands.invocation import SCHEMA_VERSION
from fleet.decide.storms.storm_watch import budget_of
from fleet.lag.snapshot import rates
from fleet.model.rebalances import Rebalance
from fleet.report.sketch import sketch
from fleet.report.timeline import lay_out

if TYPE_CHECKING:
    from fleet.commands.page.watching import Watched

_SHOWN: Final = 500
"""Rebalances of one answer; the newest are told."""


def overview(found: "Watched") -> dict[str, Any]:
    """All groups of a look: `fleet status`, what is live of each group, and its load."""
    return {
        "status": _status(found, list(found.statuses.values()), detail=False),
        "top": _top(found),
        "load": {group: load.as_json() for group, load in found.loads.items()},
    }


def groups_answer(latest: "Latest[Watched]", *, cluster: str, now: float) -> bytes:
    """The look's overview, which is encoded once for all who watch."""
    found = latest.value
    head = json.dumps(_head(latest, cluster=cluster, now=now))
    rest = b'{"status":null,"top":null,"load":null}' if found is None else found.overview
    return b"%s,%s" % (head.encode()[:-1], rest[1:])


def group_answer(
    latest: "Latest[Watched]", group: str, *, cluster: str, now: float
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
    latest: "Latest[Watched]", group: str, *, cluster: str, now: float, seconds: float, width: float
) -> dict[str, Any]:
    """`fleet rebalances GROUP` of the last so many seconds, and their picture as shapes."""
    found, since = latest.value, now - seconds
    head = _head(latest, cluster=cluster, now=now)
    if found is None or found.past is None:
        return {**head, "rebalances": None, "sketch": None}
    all_of_it = found.past.rows.rebalances(group=group)
    shown = [each for each in all_of_it if each.ended_at >= since]
    told = rebalances_answer(
        shown[-_SHOWN:], cluster=cluster, source=found.past.source, since=since, until=now
    )
    drawn = _drawn(found, group, all_of_it, since=since, until=now, width=width) if shown else None
    return {**head, "rebalances": told, "sketch": drawn}


def _head(latest: "Latest[Watched]", *, cluster: str, now: float) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "cluster": cluster,
        "now": now,
        "problem": latest.problem and {"sentence": latest.problem, "since": latest.since},
    }


def _status(found: "Watched", groups: list[GroupStatus], *, detail: bool) -> dict[str, Any]:
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


def _top(found: "Watched", group: str | None = None) -> dict[str, Any]:
    """What is live of all groups, or of one where it is named."""
    return {
        "schema_version": SCHEMA_VERSION,
        "cluster": found.spec.cluster.name,
        "at": found.look.snapshot.at,
        "problems": list(found.look.notices),
        "rebalances_from": found.look.recent.sentence,
        "groups": [row for row in found.live if group in {None, row["group"]}],
    }


def _counted(found: "Watched", status: GroupStatus) -> GroupStatus:
    """With the rebalances in its storm window, as `fleet status GROUP` counts them."""
    window = budget_of(found.spec, status.group).window
    if found.past is None:
        return replace(status, window=window)
    since = found.look.snapshot.at - window
    counted = len(found.past.rows.rebalances(group=status.group, since=since))
    return replace(status, window=window, rebalances=counted)


def _drawn(
    found: "Watched",
    group: str,
    rebalances: list[Rebalance],
    *,
    since: float,
    until: float,
    width: float,
) -> dict[str, Any]:
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
    made = sketch(line, width=width)
    return {
        "width": made.width,
        "height": made.height,
        "caption": made.caption,
        "shapes": [_shape(each) for each in made.shapes],
    }


def _shape(shape: Any) -> dict[str, Any]:
    values = {
        name: round(value, 2) if isinstance(value, float) else value
        for name, value in asdict(shape).items()
    }
    return {"kind": type(shape).__name__.lower(), **values}
