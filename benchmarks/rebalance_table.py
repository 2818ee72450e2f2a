"""`make bench-rebalance-table`: how long a rebalance takes and who stands still, by group size.

Problem: nobody has published what a change costs a group of 450 members. Choice: three changes
(join, leave, restart) of a settled group with two partitions a member, made by one member, by a
tenth of the members at once, and by that tenth in Fleet's way: the synchronized joins, the batched
leave, handovers to standbys, all with the worker's own settings. They are simulated, some seeds
each; of a figure the median and the worst are kept, one line of CSV per cell, so that a run of some
sizes adds to the data of an earlier one and the page's tables come from the file. Cost: with few
seeds the worst is no p95; a tenth one by one is not played, since the first says what each of them
costs.
"""

import csv
import io
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import click
from pydantic import TypeAdapter

from benchmarks.command import PROTOCOLS, number_option, protocol_option, running
from benchmarks.figures import quantile, svg
from fleet.errors import ConfigError
from fleet.sim.scenarios.group_scenario import (
    FLEET_HEARTBEAT,
    FLEET_RESUBSCRIBE,
    FLEET_SESSION,
    HANDOVER,
    SETTLED,
    Scenario,
    ScenarioEvent,
)
from fleet.sim.scenarios.play import play
from fleet.system.home import write_whole
from fleet.text import duration

CHANGES: Final = ("join", "leave", "restart")
WAYS: Final = ("one", "tenth", "fleet")
LONGEST_HEARTBEAT: Final = 5_000
"""Milliseconds: KIP-848's interval; changes at random moments of so long meet every phase."""
AWAY: Final = 5_000
"""Milliseconds from a member's close to its start: the restart of the baseline."""


class SizedChange(NamedTuple):
    """What one cell of the table plays."""

    change: str
    """One of CHANGES."""
    protocol: str
    membership: str
    """dynamic or static; Fleet's workers are static."""
    way: str
    """One of WAYS."""
    members: int

    @property
    def changed(self) -> int:
        """How many members change at once: one, or a tenth, at least two."""
        return 1 if self.way == "one" else max(2, self.members // 10)

    def scenario(self, shift: int = 0) -> Scenario:
        """The story; `shift` milliseconds later than a minute after the start.

        Raises KeyError for a change that CHANGES does not have.
        """
        members, together, fleet = self.members, self.changed, self.way == "fleet"
        at, last = SETTLED + shift, members - together
        happening = {
            "join": ScenarioEvent(at, "start", members, together=together),
            "leave": ScenarioEvent(
                at, "batched-leave" if fleet else "leave", last, 0, together=together
            ),
            "restart": ScenarioEvent(
                at, "restart", last, HANDOVER if fleet else AWAY, together=together
            ),
        }[self.change]
        story = Scenario(
            members,
            self.membership == "static",
            2 * members,
            events=(happening,),
            drifts_at=SETTLED // 2,
        ).by(self.protocol)
        if not fleet:
            return story
        if self.protocol == "consumer":
            return story._replace(resubscribe=FLEET_RESUBSCRIBE)
        return story._replace(heartbeat_interval=FLEET_HEARTBEAT, session_timeout=FLEET_SESSION)


def sized_changes(members: int, protocols: Iterable[str] = PROTOCOLS) -> Iterator[SizedChange]:
    """All of a size: 15 for each protocol."""
    for change in CHANGES:
        for protocol in protocols:
            for membership in ("dynamic", "static"):
                for way in WAYS:
                    if way != "fleet" or membership == "static":
                        yield SizedChange(change, protocol, membership, way, members)


PROTOCOL_NAMES: Final = {"consumer": "KIP-848"}
WAY_NAMES: Final = {"one": "one", "tenth": "a tenth at once", "fleet": "a tenth, Fleet"}


class Outcome(NamedTuple):
    """One story, seconds from its change on."""

    rebalances: int
    settled: float | None
    """Until the last partition had its owner; None: not within a day."""
    longest: float
    """The longest pause of a partition."""
    mean: float
    """Of all partitions, those without a pause too: all its pauses together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of the table: medians over the seeds and the worst ones; seconds."""

    change: str
    protocol: str
    membership: str
    way: str
    members: int
    changed: int
    """Members that join, leave or restart."""
    seeds: int
    rebalances: int
    rebalances_max: int
    duration: float | None
    """None: a run did not settle."""
    duration_max: float | None
    longest_downtime: float
    longest_downtime_max: float
    mean_downtime: float

    @property
    def key(self) -> SizedChange:
        """What tells it from others."""
        return SizedChange(self.change, self.protocol, self.membership, self.way, self.members)

    def shown(self) -> str:
        """For people: duration, longest pause, mean pause."""
        figures = (self.duration, self.longest_downtime, self.mean_downtime)
        return " / ".join(map(duration, figures))


def tally(key: SizedChange, outcomes: Sequence[Outcome]) -> Cell:
    """The cell of these runs, one at least."""
    counts = sorted(each.rebalances for each in outcomes)
    settled = sorted(each.settled for each in outcomes if each.settled is not None)
    all_settled = len(settled) == len(outcomes)
    longest = sorted(each.longest for each in outcomes)
    return Cell(
        **key._asdict(),
        changed=key.changed,
        seeds=len(outcomes),
        rebalances=int(quantile(counts, 0.5)),
        rebalances_max=counts[-1],
        duration=round(quantile(settled, 0.5), 3) if all_settled else None,
        duration_max=round(settled[-1], 3) if all_settled else None,
        longest_downtime=round(quantile(longest, 0.5), 3),
        longest_downtime_max=round(longest[-1], 3),
        mean_downtime=round(quantile(sorted(each.mean for each in outcomes), 0.5), 4),
    )


def measure(
    changes: Iterable[SizedChange], seeds: Sequence[int], say: Callable[[str], None]
) -> list[Cell]:
    """Play each with all seeds."""
    cells, said = [], ""
    for change in changes:
        part = f"{change.members} members, {change.protocol}"
        if part != said:
            said = part
            say(part)
        cells.append(tally(change, [_played(change, seed) for seed in seeds]))
    return cells


def _played(change: SizedChange, seed: int) -> Outcome:
    rng = random.Random(seed)
    told = play(change.scenario(rng.randrange(LONGEST_HEARTBEAT)), rng)
    return Outcome(
        told.rebalances,
        None if told.settled is None else told.settled / 1_000,
        told.longest / 1_000,
        sum(told.pauses) / len(told.pauses) / 1_000,
    )


# The data.


_CELLS: Final = TypeAdapter(list[Cell])


def read_cells(path: Path) -> list[Cell]:
    """The cells of a file that `write_cells` wrote. Raises ConfigError where it is another."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        lines = [{name: text or None for name, text in line.items()} for line in reader]
    try:
        if reader.fieldnames != [each.name for each in fields(Cell)]:
            raise ValueError(reader.fieldnames)
        return in_order(_CELLS.validate_python(lines))
    except ValueError as error:
        raise ConfigError(f"{path} is no data of the rebalance table; name another file") from error


def write_cells(path: Path, cells: Iterable[Cell]) -> list[Cell]:
    """Put these into the file, in place of those with the same key; all of it, in order.

    The file is written whole or not at all. Raises ConfigError where it is another's, or cannot be
    written.
    """
    try:
        known = {each.key: each for each in (read_cells(path) if path.exists() else ())}
        known.update((each.key, each) for each in cells)
        ordered = in_order(known.values())
        text = io.StringIO()
        out = csv.DictWriter(text, [each.name for each in fields(Cell)], lineterminator="\n")
        out.writeheader()
        out.writerows(asdict(each) for each in ordered)
        write_whole(path, text.getvalue())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--data {path} cannot be used ({error}); name another file") from error
    return ordered


_ORDER: Final = (*CHANGES, *PROTOCOLS, "dynamic", "static", *WAYS)


def in_order(cells: Iterable[Cell]) -> list[Cell]:
    """By change, protocol, membership, way and size."""
    return sorted(cells, key=lambda c: (*map(_ORDER.index, c.key[:4]), c.members))


# For people.

_COLOURS: Final = {
    ("dynamic", "one"): "#e69f00",
    ("dynamic", "tenth"): "#d55e00",
    ("static", "one"): "#56b4e9",
    ("static", "tenth"): "#0072b2",
    ("static", "fleet"): "#009e73",
}
"""Told apart by colour-blind readers, too."""
_LEAST: Final = 0.01
"""Seconds: where a pause of nothing is drawn."""
_PANEL: Final = (330.0, 230.0)
_LEFT, _RIGHT, _TOP, _BOTTOM = 48.0, 18.0, 24.0, 40.0


def plotted(cells: Iterable[Cell]) -> str:
    """An SVG with a panel for each change and protocol: seconds by members, both logarithmic; solid
    the duration, dotted the longest pause.
    """
    known = in_order(cells)
    changes = list(dict.fromkeys(each.change for each in known))
    protocols = list(dict.fromkeys(each.protocol for each in known))
    sizes = sorted({each.members for each in known})
    most = max((max(each.duration or 0.0, each.longest_downtime) for each in known), default=1.0)
    width, height = _PANEL[0] * len(protocols), _PANEL[1] * len(changes) + 30.0
    out: list[str] = []
    for row, change in enumerate(changes):
        for column, protocol in enumerate(protocols):
            mine = [c for c in known if (c.change, c.protocol) == (change, protocol)]
            out.append(f'<g transform="translate({column * _PANEL[0]:g} {row * _PANEL[1]:g})">')
            out += [*_panel(mine, sizes, most), "</g>"]
    ways = {(each.membership, each.way): way_name(each) for each in known}
    for place, (way, name) in enumerate(ways.items()):
        x, y = 20 + place * width / max(len(ways), 1), height - 14
        out.append(f'<path d="M{x:.1f} {y - 3:.1f}h20" stroke="{_COLOURS[way]}" stroke-width="2"/>')
        out.append(f'<text x="{x + 26:.1f}" y="{y:.1f}">{name}</text>')
    return svg(width, height, out)


def _panel(cells: Sequence[Cell], sizes: Sequence[int], most: float) -> Iterator[str]:
    right, below = _PANEL[0] - _RIGHT, _PANEL[1] - _BOTTOM
    least, decades = math.log10(_LEAST), math.ceil(math.log10(max(most, 10 * _LEAST)))
    smallest, span = math.log(sizes[0]), math.log(sizes[-1] / sizes[0]) or 1.0

    def x(members: int) -> float:
        return _LEFT + (math.log(members) - smallest) / span * (right - _LEFT)

    def y(seconds: float) -> float:
        part = (math.log10(max(seconds, _LEAST)) - least) / (decades - least)
        return below - part * (below - _TOP)

    for power in range(round(least), decades + 1):
        at = y(10.0**power)
        yield f'<path d="M{_LEFT:g} {at:.1f}H{right:g}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 5:g}" y="{at + 3:.1f}" text-anchor="end">{10.0**power:g} s</text>'
    for size in sizes:
        yield f'<path d="M{x(size):.1f} {_TOP:g}V{below:g}" stroke="#ddd"/>'
        yield f'<text x="{x(size):.1f}" y="{below + 14:g}" text-anchor="middle">{size:,}</text>'
    for way, colour in _COLOURS.items():
        line = [each for each in cells if (each.membership, each.way) == way]
        settled = " ".join(f"{x(c.members):.1f},{y(c.duration or _LEAST):.1f}" for c in line)
        paused = " ".join(f"{x(c.members):.1f},{y(c.longest_downtime):.1f}" for c in line)
        look = f'fill="none" stroke="{colour}" stroke-width="1.6"'
        yield f'<polyline points="{settled}" {look}/>'
        yield f'<polyline points="{paused}" {look} stroke-dasharray="2 3"/>'
    if cells:
        title = f"{cells[0].change}, {protocol_name(cells[0])}; by members"
        middle = (_LEFT + right) / 2
        yield f'<text x="{middle:g}" y="14" text-anchor="middle" class="title">{title}</text>'


def way_name(cell: Cell) -> str:
    """`dynamic, one`; Fleet's members are static."""
    name = WAY_NAMES[cell.way]
    return name if cell.way == "fleet" else f"{cell.membership}, {name}"


def protocol_name(cell: Cell) -> str:
    """As people call it."""
    return PROTOCOL_NAMES.get(cell.protocol, cell.protocol)


def head(cells: Iterable[Cell]) -> list[str]:
    """The headings of `lines`."""
    sizes = sorted({each.members for each in cells})
    return ["PROTOCOL", "WAY", "REBALANCES", *(f"{size:,} MEMBERS" for size in sizes)]


def lines(cells: Iterable[Cell], change: str) -> list[list[str]]:
    """Of one change: a line per protocol and way, a column per size; `-` where none was played."""
    known = in_order(cells)
    sizes = sorted({each.members for each in known})
    wanted = (each for each in known if each.change == change)
    found = []
    for _, row in groupby(wanted, key=lambda c: c.key[:4]):
        by_size = {each.members: each for each in row}
        first = next(iter(by_size.values()))
        counts = sorted({each.rebalances for each in by_size.values()})
        told = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        shown = (by_size[size].shown() if size in by_size else "-" for size in sizes)
        found.append([protocol_name(first), way_name(first), told, *shown])
    return found


def markdown(cells: Sequence[Cell]) -> str:
    """The tables of docs/contributing/benchmark-log.md, one per change."""
    names, out = [each.capitalize() for each in head(cells)], ""
    for change in ("join", "leave", "restart"):
        out += f"\n### {change.capitalize()}\n\n| {' | '.join(names)} |\n{'|---' * len(names)}|\n"
        out += "".join(f"| {' | '.join(line)} |\n" for line in lines(cells, change))
    return out


SIZES: Final = (10, 50, 100, 200, 450, 1_000)


@click.command(
    "rebalance-table",
    epilog="Example:  make bench-rebalance-table ARGS='--members 10 --data table.csv'",
)
@click.option(
    "--members",
    type=click.IntRange(3, 10_000),
    multiple=True,
    metavar="N",
    help="Size of the group; repeatable (default: 10, 50, 100, 200, 450, 1000).",
)
@protocol_option
@number_option("--seeds", 3, "Number of runs of each cell, by seeds from 1 on.", 1, 10_000)
@click.option(
    "--data",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="CSV to put the cells into; those of other sizes and protocols stay.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="SVG of all cells, those that the data had before, too.",
)
def rebalance_table(
    *,
    members: tuple[int, ...],
    asked: tuple[str, ...],
    seeds: int,
    data: Path | None,
    plot: Path | None,
) -> None:
    """Expected cost a rebalance by group size; no broker.

    One member joins, leaves or restarts (5 s away), or a tenth of them at once, or that tenth in
    Fleet's way (synchronized joins, batched leave, handovers), dynamic and static, by range,
    cooperative-sticky and KIP-848. Time is simulated; members behave as librdkafka's whose
    heartbeats stand apart, as after hours. A cell tells, by the median of the seeds: seconds from
    the change until every partition has its owner / the longest pause of a partition / the pause of
    all partitions on average. No goals. All sizes take some minutes of one core.
    """
    if data is not None:
        write_cells(data, ())  # whether it can be is known before minutes of work
    with running("rebalance-table") as (say, _):
        wanted = (
            change
            for size in sorted(set(members or SIZES))
            for each in asked
            for change in sized_changes(size, (each,))
        )
        cells = measure(wanted, range(1, seeds + 1), say)
    kept = in_order(cells) if data is None else write_cells(data, cells)
    if plot is not None:
        write_whole(plot, plotted(kept))
    click.echo(markdown(cells).strip())
