"""Rebalances as a table of 100 columns and as JSON; the contract is docs/json.md."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from fleet.commands.answers import table
from fleet.commands.invocation import SCHEMA_VERSION
from fleet.manager.past import Source, by_group
from fleet.model import TopicPartition
from fleet.model.rebalances import Confidence, Rebalance
from fleet.report.wording import by_cause, cause_text, clock_text, in_table, took, who
from fleet.text import duration

HOUR: Final = 3600.0


def summary(
    group: str, rebalances: Sequence[Rebalance], *, since: float, until: float
) -> dict[str, Any]:
    """One group's rebalances between two times, added up.

    `per_hour` is over at least an hour: from a minute's worth nobody can tell.
    """
    seconds = [r.seconds for r in rebalances if r.seconds is not None]
    last = max(rebalances, key=lambda r: r.ended_at)
    return {
        "group": group,
        "rebalances": len(rebalances),
        "per_hour": round(len(rebalances) / max(until - since, HOUR) * HOUR, 2),
        "by_cause": {cause.value: count for cause, count in by_cause(rebalances)},
        "moved": sum(len(r.moved) for r in rebalances),
        "aborted": sum(r.aborted for r in rebalances),
        "longest_seconds": max(seconds, default=None),
        "last_at": last.ended_at,
        "last_cause": last.cause.value,
    }


def since_of(rebalances: Sequence[Rebalance], source: Source, since: float | None) -> float:
    """From when on these were asked for: rates are over the time that was really looked at."""
    known = [at for at in (since, source.reaches) if at is not None]
    return max(known, default=min((r.ended_at for r in rebalances), default=source.as_of))


def answer(
    rebalances: Sequence[Rebalance],
    *,
    cluster: str,
    source: Source,
    since: float | None,
    until: float,
) -> dict[str, Any]:
    """The contract of `fleet rebalances -o json`."""
    begin = since_of(rebalances, source, since)
    return {
        "schema_version": SCHEMA_VERSION,
        "cluster": cluster,
        "source": {
            "kind": source.kind,
            "place": source.place,
            "reaches_back_to": source.reaches,
            "as_of": source.as_of,
            "note": source.note,
        },
        "since": begin,
        "until": until,
        "groups": [
            summary(group, found, since=begin, until=until)
            for group, found in by_group(rebalances).items()
        ],
        "rebalances": [_rebalance(r) for r in rebalances],
    }


def _rebalance(r: Rebalance) -> dict[str, Any]:
    return {
        "group": r.group,
        "protocol": r.protocol,
        "number": r.number,
        "before": r.before,
        "incarnation": r.incarnation,
        "started_at": r.started_at,
        "start_known": r.start_known.value,
        "ended_at": r.ended_at,
        "end_known": r.end_known.value,
        "seconds": r.seconds,
        "cause": r.cause.value,
        "confidence": r.confidence.value,
        "also": [cause.value for cause in r.also],
        "joined": list(r.joined),
        "left": list(r.left),
        "replaced": list(r.replaced),
        "members": r.members,
        "moved": [_partition(tp) for tp in r.moved],
        "aborted": r.aborted,
        "assignor": r.assignor,
        "log_partition": r.log_partition,
        "log_offset": r.log_offset,
    }


def _partition(tp: TopicPartition) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition}


def print_rebalances(
    console: Console,
    rebalances: Sequence[Rebalance],
    *,
    source: Source,
    since: float | None,
    until: float,
    most: int,
    now: float,
) -> None:
    """The newest `most` of them, oldest first; then every group in a line; then the source."""
    shown = rebalances[-most:]
    groups = by_group(rebalances)
    if shown:
        console.print(_table(shown, several=len(groups) > 1))
        _explain(console, shown)
        console.print()
    if len(shown) < len(rebalances):
        console.print(
            f"the newest {len(shown)} of {len(rebalances)}; more with --last {len(rebalances)}"
        )
    begin = since_of(rebalances, source, since)
    for group, found in groups.items():
        console.print(_sentence(summary(group, found, since=begin, until=until), until - begin))
    if not rebalances:
        console.print("no rebalances")
    console.print(f"[dim]{escape(source.sentence(now))}[/dim]")


def _table(rebalances: Sequence[Rebalance], *, several: bool) -> Any:
    columns = (
        "WHEN (UTC)",
        *(("GROUP",) if several else ()),
        "NO",
        "CAUSE",
        "WHO",
        "MOVED",
        "TOOK",
    )
    aborted = any(r.aborted for r in rebalances)
    columns += ("ABORTED",) if aborted else ()
    rows = table(*columns, right=("NO", "MOVED", "TOOK", "ABORTED"))
    for column in rows.columns:
        column.no_wrap = column.header in {"WHEN (UTC)", "NO", "MOVED", "TOOK", "ABORTED"}
    year = clock_text(rebalances[-1].ended_at)[:4]
    for r in rebalances:
        when = clock_text(r.ended_at)
        cells = [
            when.removeprefix(f"{year}-"),
            *((escape(in_table(r.group)),) if several else ()),
            str(r.number),
            _cause(r),
            escape(who(r)),
            str(len(r.moved)),
            took(r),
        ]
        rows.add_row(*cells, *((str(r.aborted or ""),) if aborted else ()))
    return rows


def _cause(r: Rebalance) -> str:
    told = escape(cause_text(r))
    return told if r.confidence is Confidence.CERTAIN else f"[yellow]{told}[/yellow]"


def _explain(console: Console, rebalances: Sequence[Rebalance]) -> None:
    """What the signs of a duration mean, where they occur."""
    signs = {took(r)[0] for r in rebalances}
    told = []
    if "≥" in signs:
        told.append("≥ = at least: it began no later")
    if "~" in signs:
        told.append("~ = by looks at the group's state")
    if any(r.seconds is None for r in rebalances):
        told.append("- = the log does not tell when it began")
    if told:
        console.print(f"[dim]{'; '.join(told)}[/dim]")


def _sentence(told: Mapping[str, Any], seconds: float) -> str:
    causes = ", ".join(f"{count} {cause}" for cause, count in told["by_cause"].items())
    count, rate = told["rebalances"], told["per_hour"]
    many = f"{count} rebalance{'' if count == 1 else 's'} in {duration(seconds)}"
    rated = f" ({rate:.3g} an hour)" if seconds >= HOUR else ""
    parts = [
        f"[bold]{escape(told['group'])}[/bold]: {many}{rated}: {causes}",
        f"{told['moved']} partitions moved",
    ]
    if told["longest_seconds"] is not None:
        parts.append(f"the longest took {duration(told['longest_seconds'])}")
    if told["aborted"]:
        parts.append(f"{told['aborted']} round{'' if told['aborted'] == 1 else 's'} aborted")
    return "; ".join(parts)
