"""`fleet rebalances`: what rebalanced when, why, who, for how long; as a table or a picture."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fleet.commands.completing import group_names
from fleet.commands.invocation import Invocation, common, output_option
from fleet.commands.targets import groups_argument
from fleet.config.spec import seconds
from fleet.errors import FleetError
from fleet.model.rebalances import Cause, Rebalance

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet
    from fleet.manager.past import Past

_SHOWN: Final = 50
_PATIENCE: Final = 60.0


class Moment(click.ParamType[datetime | float]):
    """A time: `90s`, `2h`, `3d` ago, or ISO 8601 (UTC where it names no zone)."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime | float:
        """A datetime, or seconds before now."""
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
                f"{value!r} is no time: write how long ago (90s, 20m, 2h, 3d) or a time such as "
                "2026-11-21T14:30 (UTC)",
                param,
                ctx,
            )
        return found if found.tzinfo else found.replace(tzinfo=UTC)


def wall(moment: datetime | float | None, now: float) -> float | None:
    """Wall time of a Moment."""
    if moment is None:
        return None
    return moment.timestamp() if isinstance(moment, datetime) else now - moment


@click.command(
    epilog="Examples:  fleet rebalances  |  fleet rebalances orders --since 2h --html orders.html"
)
@groups_argument
@click.option("--group", "-g", "named", metavar="GROUP", shell_complete=group_names,
              help="Group, like the argument.")  # fmt: skip
@click.option(
    "--since",
    type=Moment(),
    metavar="TIME",
    help="Start of the time to look at: 2h (ago) or 2026-11-21T14:30 (UTC).",
)
@click.option(
    "--until", type=Moment(), metavar="TIME", help="End of the time to look at (default: now)."
)
@click.option(
    "--cause",
    type=click.Choice([cause.value for cause in Cause]),
    metavar="CAUSE",
    help="Show only rebalances of this cause, e.g. join, expiry, 'batched leave'.",
)
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Show only the newest N.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="File to write the group's timeline to, as an HTML page.")  # fmt: skip
@click.option("--live", is_flag=True, help="Read the offsets topic even if there are tables.")
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
    html: Path | None,
    live: bool,
    output: str,
) -> None:
    """What rebalanced when, why, and for how long.

    Of the groups named, or of all groups of the cluster, managed or not. From the history's tables
    where they are kept (`fleet history`), else from what is retained of the offsets topic;
    the last line says which, and how far back it reaches. A table shows the newest 50.
    """
    groups = tuple(dict.fromkeys((*groups, named) if named else groups))
    group = groups[0] if len(groups) == 1 else None
    if html and not group:
        raise click.UsageError("a picture shows one group: name it, e.g. `fleet rebalances orders`")
    with invocation.open() as fleet:
        now = fleet.clock.now()
        begin, end = wall(since, now), wall(until, now)
        if begin is not None and begin >= (end or now):
            raise click.UsageError("--since is not before --until: nothing lies between them")
        past = _read(fleet, group, live=live)
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
        if html is not None:
            _write(html, _as_html(fleet, past, found, since=begin, until=end))
            click.echo(f"wrote {html}", err=True)
        _print(fleet, past, found, since=counted_from, until=end or now, last=last, output=output)


def _read(fleet: "Fleet", group: str | None, *, live: bool) -> "Past":
    from fleet.commands.progress import Progress
    from fleet.manager.past import past_of

    with Progress("reading the offsets topic"):
        return past_of(fleet, group=group, live=live, patience=_PATIENCE)


def _known(fleet: "Fleet", past: "Past", group: str) -> None:
    """No rebalances are an answer; a group that nobody knows is a mistake."""
    if past.rows.rebalances(group=group) or fleet.spec.fleet(group) is not None:
        return
    seen = fleet.snapshot([group]).groups.get(group)
    if seen is None or not seen.exists:
        raise FleetError(
            f"cluster {fleet.spec.cluster.name} has no group {group}, and nothing is recorded of "
            "one; `fleet status` lists those there are"
        )


def _print(
    fleet: "Fleet",
    past: "Past",
    found: Sequence[Rebalance],
    *,
    since: float | None,
    until: float,
    last: int | None,
    output: str,
) -> None:
    from fleet.commands.answers import print_json, stdout
    from fleet.commands.groups.rebalances_answer import answer, print_rebalances

    if output == "json":
        cluster = fleet.spec.cluster.name
        print_json(answer(found, cluster=cluster, source=past.source, since=since, until=until))
        return
    print_rebalances(
        stdout(),
        found,
        source=past.source,
        since=since,
        until=until,
        most=last or _SHOWN,
        now=fleet.clock.now(),
    )


# --- the picture -------------------------------------------------------------------------------


def _as_html(
    fleet: "Fleet",
    past: "Past",
    found: Sequence[Rebalance],
    *,
    since: float | None,
    until: float | None,
) -> bytes:
    from fleet.commands.groups.stormy_times import storms_since
    from fleet.report.timeline import extent, lay_out
    from fleet.report.timeline_html import as_html

    if not found:
        raise FleetError("there is no rebalance to draw: widen --since, or leave --cause out")
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
    return as_html(line, found).encode()


def _write(path: Path, data: bytes) -> None:
    """Whole, or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise FleetError(f"{path} cannot be written ({error.strerror}): name another") from error
