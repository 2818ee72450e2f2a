"""One frame of `fleet top`: rows of groups, worst first, for a screen of any size. Pure.

Problem: a thousand groups do not fit a screen of 30 lines, and the one that matters is not the
first by name. Choice: storms first, then those furthest behind, then those that rebalance most;
what does not fit is counted. What is not known is `-`, never 0.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fleet.commands.groups.looks import Look
from fleet.commands.invocation import SCHEMA_VERSION
from fleet.commands.keys import BACKSPACE, ENTER, ESCAPE
from fleet.lag.snapshot import Snapshot, rates
from fleet.manager.recent import Recent
from fleet.model import GroupSnapshot
from fleet.report.wording import clock_text
from fleet.text import duration

SORTS: Final = ("worst", "lag", "behind", "rebalances", "rate", "name")
_STATES: Final = {
    "Stable": "green",
    "Empty": "dim",
    "Dead": "red",
}
_SHORT_STATES: Final = {"PreparingRebalance": "Preparing", "CompletingRebalance": "Completing"}
_STORMS_TOLD: Final = 3
_FRAME_LINES: Final = 4
"""Headline, column heads, what is hidden, keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRow:
    """One group. Rates are records a second; None = not known."""

    group: str
    type: str
    state: str
    members: int
    generation: int | None
    lag: int | None
    lag_seconds: float | None
    in_rate: float | None
    out_rate: float | None
    rebalances: int | None
    """In the last hour."""
    last_cause: str | None
    last_at: float | None
    storm: str | None
    """Who makes the storm, in words; None = fair weather."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What is on the screen."""

    cluster: str
    at: float | None
    """When the cluster was looked at; None = not yet."""
    now: float
    rows: tuple[FrameRow, ...]
    notices: tuple[str, ...]
    """What is wrong with the view itself."""
    source: str
    sort: str
    pattern: str
    typing: bool = False
    """The pattern is being typed."""


def rows_of(
    snapshot: Snapshot,
    recent: Recent,
    *,
    before: Snapshot | None = None,
    generations: Mapping[str, int | None],
    storms: Mapping[str, str],
) -> tuple[FrameRow, ...]:
    """A row for every group that exists; rates since a snapshot `before`."""
    speeds = {} if before is None else rates(before, snapshot)
    return tuple(
        _row(group, recent, speeds.get(name), generations.get(name), storms.get(name))
        for name, group in snapshot.groups.items()
        if group.exists
    )


def seen_in(frame: Frame, look: Look) -> Frame:
    """The same view with what a look saw."""
    return replace(
        frame,
        at=look.snapshot.at,
        rows=rows_of(
            look.snapshot,
            look.recent,
            before=look.before,
            generations=look.generations,
            storms={group: storm.words for group, storm in look.storms.items()},
        ),
        notices=look.notices,
        source=look.recent.sentence,
    )


def _row(
    group: GroupSnapshot,
    recent: Recent,
    speed: tuple[float | None, float | None] | None,
    generation: int | None,
    storm: str | None,
) -> FrameRow:
    last = recent.last.get(group.group)
    produced, consumed = speed or (None, None)
    return FrameRow(
        group=group.group,
        type=group.type,
        state=group.state.value,
        members=len(group.members),
        generation=generation if generation is not None or last is None else last.number,
        lag=group.lag,
        lag_seconds=group.lag_seconds,
        in_rate=produced,
        out_rate=consumed,
        rebalances=recent.per_hour(group.group),
        last_cause=last.cause.value if last else None,
        last_at=last.ended_at if last else None,
        storm=storm,
    )


def arranged(rows: Sequence[FrameRow], *, sort: str, pattern: str) -> list[FrameRow]:
    """Rows whose group contains the pattern (a regular expression where it is one), in order."""
    found = [row for row in rows if _matches(pattern, row.group)]
    return sorted(found, key=lambda row: (*_key(row, sort), row.group))


def _matches(pattern: str, group: str) -> bool:
    try:
        return re.search(pattern, group, re.IGNORECASE) is not None
    except re.error:
        return pattern.lower() in group.lower()


def _key(row: FrameRow, sort: str) -> tuple[float, ...]:
    # What waits since before every look has no age: it is older than those that have one.
    age = row.lag_seconds if row.lag_seconds is not None or not row.lag else float("inf")
    behind, rebalances = -(age or 0.0), -float(row.rebalances or 0)
    lag = -float(row.lag or 0)
    if sort == "lag":
        return (lag, behind)
    if sort == "behind":
        return (behind, lag)
    if sort == "rebalances":
        return (rebalances, behind)
    if sort == "rate":
        return (-(row.in_rate or 0.0) - (row.out_rate or 0.0),)
    if sort == "name":
        return ()
    return (0.0 if row.storm else 1.0, behind, rebalances, lag)


# --- on the screen --------------------------------------------------------------------------


def drawn(frame: Frame, *, height: int | None = None) -> RenderableType:
    """The frame, at most `height` lines; None = all rows (a pipe)."""
    rows = arranged(frame.rows, sort=frame.sort, pattern=frame.pattern)
    storms = [row for row in rows if row.storm]
    told = storms[:_STORMS_TOLD]
    room = len(rows)
    if height is not None:
        room = max(1, height - _FRAME_LINES - len(told) - len(frame.notices))
    parts: list[RenderableType] = [_headline(frame, len(rows))]
    parts += [Text(f"! {notice}", style="yellow", overflow="ellipsis", no_wrap=True)
              for notice in frame.notices]  # fmt: skip
    parts.append(_table(rows[:room], frame.now, expand=height is not None))
    hidden = len(rows) - room
    if hidden > 0:
        parts.append(Text(f"… and {hidden} more", style="dim"))
    for row in told:
        line = Text("storm ", style="bold red", overflow="ellipsis", no_wrap=True)
        parts.append(line.append(f"{row.group}: {row.storm}", style="not bold"))
    if height is not None:
        parts.append(_foot(frame))
    else:
        parts.append(Text(frame.source, style="dim"))
    return Group(*parts)


def _headline(frame: Frame, shown: int) -> Text:
    line = Text(overflow="ellipsis", no_wrap=True)
    line.append(f"{frame.cluster}  ", style="bold")
    if frame.at is None:
        return line.append("looking at the cluster for the first time")
    line.append(f"{clock_text(frame.at, date=False)} UTC  ")
    total = len(frame.rows)
    line.append(f"{total} group{'' if total == 1 else 's'}")
    if shown != total:
        line.append(f", {shown} match {frame.pattern!r}")
    storms = sum(row.storm is not None for row in frame.rows)
    if storms:
        line.append(f"  {storms} in a storm", style="bold red")
    return line.append(f"  by {frame.sort}", style="dim")


def _foot(frame: Frame) -> Text:
    if frame.typing:
        return Text(f"/{frame.pattern}▏ Return: keep, Escape: all groups", no_wrap=True)
    keys = Text("q quit  s sort  / filter", no_wrap=True, overflow="ellipsis")
    return keys.append(f"   {frame.source}", style="dim")


def _table(rows: Sequence[FrameRow], now: float, *, expand: bool) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", expand=expand)
    ratio = 1 if expand else None
    made.add_column("GROUP", no_wrap=True, overflow="ellipsis", ratio=ratio, min_width=12)
    for name, width, right in (
        ("TYPE", 8, False), ("STATE", 10, False), ("MEM", 4, True), ("GEN", 6, True),
        ("LAG", 6, True), ("BEHIND", 6, True), ("IN/S", 6, True), ("OUT/S", 6, True),
        ("REB/H", 5, True), ("LAST CAUSE", 17, False),
    ):  # fmt: skip
        made.add_column(
            name, no_wrap=True, overflow="ellipsis", width=width,
            justify="right" if right else "left",
        )  # fmt: skip
    for row in rows:
        state = _SHORT_STATES.get(row.state, row.state)
        made.add_row(
            escape(row.group),
            row.type,
            f"[{_STATES.get(row.state, 'yellow')}]{state}[/]",
            str(row.members),
            _number(row.generation),
            _number(row.lag),
            "-" if row.lag_seconds is None else duration(row.lag_seconds),
            _number(row.in_rate),
            _number(row.out_rate),
            _number(row.rebalances),
            _last(row, now),
            style="bold red" if row.storm else "",
        )
    return made


def _last(row: FrameRow, now: float) -> str:
    if row.last_cause is None or row.last_at is None:
        return "-"
    age = duration(max(0.0, now - row.last_at)).replace(" ", "")
    return f"{age:>4} {row.last_cause}"


def _number(value: float | None) -> str:
    """At most five characters: 12, 3,456, 78k, 1.2M."""
    if value is None:
        return "-"
    if 0 < value < 10 and value != int(value):
        return f"{value:.1f}"
    if value < 10_000:
        return f"{value:,.0f}"
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return (
                f"{value / size:.3g}{unit}" if value < 999.5 * size else f"{value / size:.0f}{unit}"
            )
    raise AssertionError(value)


def answer(frame: Frame) -> dict[str, Any]:
    """The contract of `fleet top -o json`."""
    rows = arranged(frame.rows, sort=frame.sort, pattern=frame.pattern)
    return {
        "schema_version": SCHEMA_VERSION,
        "cluster": frame.cluster,
        "at": frame.at,
        "problems": list(frame.notices),
        "rebalances_from": frame.source,
        "groups": [
            {
                "group": row.group,
                "type": row.type,
                "state": row.state,
                "members": row.members,
                "generation": row.generation,
                "lag": row.lag,
                "lag_seconds": row.lag_seconds,
                "in_per_second": row.in_rate,
                "out_per_second": row.out_rate,
                "rebalances_per_hour": row.rebalances,
                "last_cause": row.last_cause,
                "last_at": row.last_at,
                "storm": row.storm,
            }
            for row in rows
        ],
    }


def after(frame: Frame, key: str) -> Frame | None:
    """What a key makes of the view; None = the view ends."""
    if frame.typing:
        if key == ENTER:
            return replace(frame, typing=False)
        if key == ESCAPE:
            return replace(frame, typing=False, pattern="")
        if key == BACKSPACE:
            return replace(frame, pattern=frame.pattern[:-1])
        return replace(frame, pattern=frame.pattern + key) if key.isprintable() else frame
    if key in {"q", "Q"}:
        return None
    if key == "s":
        place = (SORTS.index(frame.sort) + 1) % len(SORTS)
        return replace(frame, sort=SORTS[place])
    if key == "/":
        return replace(frame, typing=True, pattern="")
    if key == ESCAPE:
        return replace(frame, pattern="")
    return frame
