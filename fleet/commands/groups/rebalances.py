"""`fleet rebalances`: lists rebalances with cause, member and downtime; draws them as HTML."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from rich.console import Console
from rich.markup import escape

from fleet.commands.answers import as_answer, print_json, stdout, table
from fleet.commands.invocation import (
    SCHEMA_VERSION,
    Invocation,
    common,
    group_names,
    groups_argument,
    output_option,
)
from fleet.commands.screen import Progress
from fleet.config.spec import FleetSpec, seconds
from fleet.config.spec import StormSpec as Budget
from fleet.decide.storms import (
    ExpectedRebalances,
    StormTimeline,
    Window,
    budget_of,
    count_against_budget,
    expected_rebalances_of,
    reach,
    settled_start,
)
from fleet.errors import FleetError
from fleet.manager.past import Past, Source, by_group, read_past
from fleet.model.rebalances import Cause, Confidence, Rebalance
from fleet.report.timeline import Span
from fleet.report.wording import (
    cause_text,
    clock_text,
    count_by_cause,
    duration_text,
    members_text,
    shorten_for_table,
)
from fleet.slots import Change
from fleet.text import duration

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


HOUR: Final = 3600.0
_LEFT_OUT: Final = {"cluster", "resubscribed", "added"}
"""Fields of a rebalance that its JSON leaves out: the answer names the cluster once."""


def summary(
    group: str, rebalances: Sequence[Rebalance], *, since: float, until: float
) -> dict[str, Any]:
    """Adds up one group's rebalances between two times.

    `per_hour` covers at least an hour, since a rate over a minute says nothing.
    """
    seconds = [r.seconds for r in rebalances if r.seconds is not None]
    last = max(rebalances, key=lambda r: r.ended_at)
    return {
        "group": group,
        "rebalances": len(rebalances),
        "per_hour": round(len(rebalances) / max(until - since, HOUR) * HOUR, 2),
        "by_cause": {cause.value: count for cause, count in count_by_cause(rebalances)},
        "moved": sum(len(r.moved) for r in rebalances),
        "aborted": sum(r.aborted for r in rebalances),
        "longest_seconds": max(seconds, default=None),
        "last_at": last.ended_at,
        "last_cause": last.cause.value,
    }


def since_of(rebalances: Sequence[Rebalance], source: Source, since: float | None) -> float:
    """Returns the start of the period that was read, which rates are computed over."""
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
    """Returns the JSON of `fleet rebalances -o json`."""
    begin = since_of(rebalances, source, since)
    return {
        "schema_version": SCHEMA_VERSION,
        "cluster": cluster,
        "source": as_answer(
            source,
            *("kind", "place", "reaches", "as_of", "note"),
            names={"reaches": "reaches_back_to"},
        ),
        "since": begin,
        "until": until,
        "groups": [
            summary(group, found, since=begin, until=until)
            for group, found in by_group(rebalances).items()
        ],
        "rebalances": [_rebalance(r) for r in rebalances],
    }


def _rebalance(r: Rebalance) -> dict[str, Any]:
    kept = {name: each for name, each in as_answer(r).items() if name not in _LEFT_OUT}
    return {**kept, "seconds": r.seconds}


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
    """Prints the newest `most`, oldest first; then a line per group; then the source."""
    shown = rebalances[-most:]
    groups = by_group(rebalances)
    if shown:
        console.print(_table(shown, several=len(groups) > 1))
        _explain(console, shown)
        console.print()
    if len(shown) < len(rebalances):
        console.print(
            f"the newest {len(shown)} of {len(rebalances)}: --last {len(rebalances)} shows all"
        )
    begin = since_of(rebalances, source, since)
    for group, found in groups.items():
        console.print(_sentence(summary(group, found, since=begin, until=until), until - begin))
    if not rebalances:
        console.print("no rebalances")
    console.print(f"[dim]{escape(source.sentence(now))}[/dim]")


def _table(rebalances: Sequence[Rebalance], *, several: bool) -> Any:
    aborted = any(r.aborted for r in rebalances)
    group, rounds = ("GROUP",) * several, ("ABORTED",) * aborted
    columns = ("WHEN (UTC)", *group, "NO", "CAUSE", "WHO", "MOVED", "TOOK", *rounds)
    rows = table(*columns, right=("NO", "MOVED", "TOOK", "ABORTED"))
    for column in rows.columns:
        column.no_wrap = column.header in {"WHEN (UTC)", "NO", "MOVED", "TOOK", "ABORTED"}
    year = clock_text(rebalances[-1].ended_at)[:4]
    for r in rebalances:
        when = clock_text(r.ended_at)
        cells = [
            when.removeprefix(f"{year}-"),
            *((escape(shorten_for_table(r.group)),) if several else ()),
            str(r.number),
            _cause(r),
            escape(members_text(r)),
            str(len(r.moved)),
            duration_text(r),
        ]
        rows.add_row(*cells, *((str(r.aborted or ""),) if aborted else ()))
    return rows


def _cause(r: Rebalance) -> str:
    text = escape(cause_text(r))
    return text if r.confidence is Confidence.CERTAIN else f"[yellow]{text}[/yellow]"


def _explain(console: Console, rebalances: Sequence[Rebalance]) -> None:
    """Explains the signs of the durations shown."""
    signs = {duration_text(r)[0] for r in rebalances}
    meanings = []
    if "≥" in signs:
        meanings.append("≥ = at least")
    if "~" in signs:
        meanings.append("~ = from polling the group's state")
    if any(r.seconds is None for r in rebalances):
        meanings.append("- = the log does not show its start")
    if meanings:
        console.print(f"[dim]{'; '.join(meanings)}[/dim]")


def _sentence(group: Mapping[str, Any], seconds: float) -> str:
    causes = ", ".join(f"{count} {cause}" for cause, count in group["by_cause"].items())
    count, rate = group["rebalances"], group["per_hour"]
    many = f"{count} rebalance{'' if count == 1 else 's'} in {duration(seconds)}"
    rated = f" ({rate:.3g} an hour)" if seconds >= HOUR else ""
    parts = [
        f"[bold]{escape(group['group'])}[/bold]: {many}{rated}: {causes}",
        f"{group['moved']} partitions moved",
    ]
    if group["longest_seconds"] is not None:
        parts.append(f"the longest took {duration(group['longest_seconds'])}")
    if group["aborted"]:
        parts.append(f"{group['aborted']} round{'' if group['aborted'] == 1 else 's'} aborted")
    return "; ".join(parts)


_FAIR: Final = StormTimeline()
_REACHES: Final = (1, 8, 64)
"""How far back is read, in reaches of a budget, before all of it is."""


class StormRows(NamedTuple):
    """Holds the storms of one group from some time on, and the rebalances they follow from."""

    rebalances: list[Rebalance]
    storms: tuple[Span, ...]


def storm_spans(
    spec: FleetSpec,
    rebalances: Sequence[Rebalance],
    *,
    until: float,
    changes: Sequence[Change] = (),
) -> tuple[Span, ...]:
    """Returns the storms of one group by its budget, oldest first, up to `until`."""
    if not rebalances:
        return ()
    group = rebalances[0].group
    excuses = expected_rebalances_of(spec, group, changes)
    return _spans(rebalances, budget_of(spec, group), excuses, until=until)


def storms_since(
    spec: FleetSpec,
    read: Callable[[float | None], list[Rebalance]],
    *,
    group: str,
    since: float,
    until: float,
    changes: Sequence[Change] = (),
) -> StormRows:
    """Returns the same from `since` on, and reads as little of the past as it can.

    `read` returns the group's rebalances from a time on, or all of them.
    """
    budget, excuses = budget_of(spec, group), expected_rebalances_of(spec, group, changes)
    for reaches in _REACHES:
        first = settled_start(excuses, since - reach(budget) * reaches)
        rows = read(first)
        # The state before `first` lies between no storm and a storm without cooldown: if both
        # give the same storms, so does the real state.
        fair, storm = (
            _spans(rows, budget, excuses, until=until, course=course, after=first + budget.window)
            for course in (StormTimeline(), StormTimeline(first))
        )
        if (found := _since(fair, since)) == _since(storm, since):
            return StormRows(rows, found)
    rows = read(None)
    return StormRows(rows, _since(_spans(rows, budget, excuses, until=until), since))


def _spans(
    rebalances: Iterable[Rebalance],
    budget: Budget,
    excuses: Sequence[ExpectedRebalances],
    *,
    until: float,
    course: StormTimeline = _FAIR,
    after: float = -inf,
) -> tuple[Span, ...]:
    """Computes in one pass what repeated refreshes find; from `after` on, starting at `course`."""
    seen = [r for r in rebalances if r.ended_at <= until]
    window = Window(count_against_budget(seen, excuses), budget, until)
    # A storm begins with a rebalance and ends by time alone: refresh at both.
    ends = {r.ended_at for r in seen}
    quiet = {at + budget.window + budget.cooldown + 0.001 for at in ends}
    refreshes = {at for at in ends | quiet if at <= until} | {until}
    spans: list[Span] = []
    before, last = _FAIR, until
    for at in sorted({*window.moments(after=None), *refreshes, after}):
        if at < after:
            continue
        course = course.then(at, window)
        if at not in refreshes:
            continue
        storm = _FAIR if course.ended(at, budget) else course
        if before.since is not None and before.since != storm.since:
            spans.append(Span(before.since, before.cooldown_since or last))
        before, last = storm, at
    if before.since is not None:
        spans.append(Span(before.since, before.cooldown_since or until))
    return tuple(spans)


def _since(spans: Iterable[Span], at: float) -> tuple[Span, ...]:
    return tuple(Span(max(each.start, at), each.end) for each in spans if each.end >= at)


_SHOWN: Final = 50
_GRACE: Final = 60.0


class Moment(click.ParamType[datetime | float]):
    """Reads a time: `90s`, `2h`, `3d` ago, or ISO 8601 (UTC if it names no zone)."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime | float:
        """Returns a datetime, or seconds before now."""
        if isinstance(value, datetime | float):
            return value
        try:
            ago = float(seconds(value))
        except ValueError:
            pass
        else:
            return ago
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is no time: write an age (90s, 20m, 2h, 3d), or a time such as "
                "2026-11-21T14:30 (UTC)",
                param,
                ctx,
            )
        return found if found.tzinfo else found.replace(tzinfo=UTC)


def wall(moment: datetime | float | None, now: float) -> float | None:
    """Returns the wall time of a Moment."""
    if moment is None:
        return None
    return moment.timestamp() if isinstance(moment, datetime) else now - moment


@click.command(
    epilog="Examples:  fleet rebalances  |  fleet rebalances orders --since 2h --html-file o.html"
)
@groups_argument
@click.option("--group", "-g", "named", metavar="GROUP", shell_complete=group_names,
              help="Group to list, like the argument.")  # fmt: skip
@click.option(
    "--since",
    type=Moment(),
    metavar="TIME",
    help="Start of the period: 2h (ago) or 2026-11-21T14:30 (UTC).",
)
@click.option("--until", type=Moment(), metavar="TIME", help="End of the period (default: now).")
@click.option(
    "--cause",
    type=click.Choice([cause.value for cause in Cause]),
    metavar="CAUSE",
    help="Show only rebalances of this cause, such as join, expiry or 'batched leave'.",
)
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Show only the newest N.")
@click.option("--html-file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="File to write the group's timeline to, as an HTML page.")  # fmt: skip
@click.option("--live", is_flag=True, help="Read the offsets topic, even if tables exist.")
@output_option
@common
def rebalances(
    invocation: Invocation,
    groups: tuple[str, ...],
    *,
    named: str | None,
    since: datetime | float | None,
    until: datetime | float | None,
    cause: str | None,
    last: int | None,
    html_file: Path | None,
    live: bool,
    output: str,
) -> None:
    """List rebalances with cause and duration.

    Lists those of the named groups, or of all groups of the cluster, managed or not. The source is
    the tables of `fleet history` if they exist, else the retained part of the offsets topic. The
    last line names the source and how far back it reaches. Without --last, a table has the newest
    50.
    """
    groups = tuple(dict.fromkeys((*groups, named) if named else groups))
    group = groups[0] if len(groups) == 1 else None
    if html_file and not group:
        raise click.UsageError(
            "--html-file shows one group: name it, as in `fleet rebalances orders`"
        )
    with invocation.open() as fleet:
        now = fleet.clock.now()
        begin, end = wall(since, now), wall(until, now)
        if begin is not None and begin >= (end or now):
            raise click.UsageError("--since is not before --until: the period is empty")
        with Progress("reading the offsets topic"):
            past = read_past(fleet, group=group, live=live, grace=_GRACE)
        wanted = None if cause is None else Cause(cause)
        found = past.rows.rebalances(group=group, since=begin, until=end, cause=wanted)
        seen = {each.group for each in found}
        for name in groups:
            if name not in seen:
                _known(fleet, past, name)
        found = [each for each in found if not groups or each.group in groups]
        counted_from = begin
        if last and len(found) > last:
            found = found[-last:]
            counted_from = found[0].ended_at
        if html_file is not None:
            _write(html_file, _as_html(fleet, past, found, since=begin, until=end))
            click.echo(f"wrote {html_file}", err=True)
        source, counted_to = past.source, end or now
        if output == "json":
            cluster = fleet.spec.cluster.name
            print_json(
                answer(found, cluster=cluster, source=source, since=counted_from, until=counted_to)
            )
            return
        print_rebalances(
            stdout(), found, source=source, since=counted_from, until=counted_to,
            most=last or _SHOWN, now=fleet.clock.now(),
        )  # fmt: skip


def _known(fleet: "Fleet", past: Past, group: str) -> None:
    """Raises FleetError for a group that neither Kafka, fleet.yaml nor the history knows."""
    if past.rows.rebalances(group=group) or fleet.spec.fleet(group) is not None:
        return
    seen = fleet.snapshot([group]).groups.get(group)
    if seen is None or not seen.exists:
        raise FleetError(
            f"cluster {fleet.spec.cluster.name} has no group {group}, now or in its history; "
            "`fleet status` lists the groups"
        )


# --- the picture -------------------------------------------------------------------------------


def _as_html(
    fleet: "Fleet",
    past: Past,
    found: Sequence[Rebalance],
    *,
    since: float | None,
    until: float | None,
) -> str:
    from fleet.report.timeline import extent, lay_out
    from fleet.report.timeline_html import as_html

    if not found:
        raise FleetError("no rebalance to draw: widen --since, or leave out --cause")
    group = found[0].group
    whole = extent(found, now=fleet.clock.now())
    begin = whole.start if since is None else max(since, whole.start)
    end = whole.end if until is None else until
    declared = fleet.spec.fleet(group) is not None
    near, storms = storms_since(
        fleet.spec,
        lambda first: past.rows.rebalances(group=group, since=first, until=end),
        group=group,
        since=begin,
        until=min(end, fleet.clock.now()),
        changes=fleet.changes(group) if declared else (),
    )
    earlier = [r for r in near if r.ended_at < found[0].ended_at]
    line = lay_out(
        rebalances=[*earlier, *found],
        memberships=[
            *past.rows.standing(group=group, at=begin),
            *past.rows.memberships(group=group, since=begin, until=end),
        ],
        since=begin,
        until=end,
        storms=storms,
    )
    return as_html(line, found)


def _write(path: Path, page: str) -> None:
    """Writes the whole file, or nothing."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(page, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise FleetError(f"cannot write {path} ({error.strerror}): name another file") from error
