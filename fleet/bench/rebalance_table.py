"""`fleet bench rebalance-table`: how long a rebalance takes and who stands still, by group size.

Problem: nobody has published what a change costs a group of 450 members. Choice: simulated stories
that the caller plays, some seeds each; of a figure the median and the worst are kept, one line of
CSV per cell, so that a run of some sizes adds to the data of an earlier one and the page's tables
come from the file. Cost: with few seeds the worst is no p95.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from fleet.bench.figures import quantile
from fleet.errors import ConfigError
from fleet.system.home import write_whole
from fleet.text import duration

PROTOCOL_NAMES: Final = {"consumer": "KIP-848"}
WAY_NAMES: Final = {"one": "one", "tenth": "a tenth at once", "fleet": "a tenth, Fleet"}
_COUNTS: Final = ("members", "changed", "seeds", "rebalances", "rebalances_max")
_NAMES: Final = ("change", "protocol", "membership", "way")


class CellKey(NamedTuple):
    """What is changed, how, in a group of how many."""

    change: str
    protocol: str
    membership: str
    way: str
    members: int


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
    longest_pause: float
    longest_pause_max: float
    mean_pause: float

    @property
    def key(self) -> CellKey:
        """What tells it from others."""
        return CellKey(self.change, self.protocol, self.membership, self.way, self.members)

    def shown(self) -> str:
        """For people: duration, longest pause, mean pause."""
        figures = (self.duration, self.longest_pause, self.mean_pause)
        return " / ".join(map(duration, figures))


def tally(key: CellKey, changed: int, outcomes: Sequence[Outcome]) -> Cell:
    """The cell of these runs, one at least."""
    counts = sorted(each.rebalances for each in outcomes)
    settled = sorted(each.settled for each in outcomes if each.settled is not None)
    all_settled = len(settled) == len(outcomes)
    longest = sorted(each.longest for each in outcomes)
    return Cell(
        **key._asdict(),
        changed=changed,
        seeds=len(outcomes),
        rebalances=int(quantile(counts, 0.5)),
        rebalances_max=counts[-1],
        duration=round(quantile(settled, 0.5), 3) if all_settled else None,
        duration_max=round(settled[-1], 3) if all_settled else None,
        longest_pause=round(quantile(longest, 0.5), 3),
        longest_pause_max=round(longest[-1], 3),
        mean_pause=round(quantile(sorted(each.mean for each in outcomes), 0.5), 4),
    )


def measure(
    stories: Mapping[CellKey, tuple[int, Callable[[int], Outcome]]],
    seeds: Iterable[int],
    say: Callable[[str], None],
) -> list[Cell]:
    """Play each story, which takes a seed, with all seeds; beside it how many it changes."""
    wanted, cells, said = list(seeds), [], None
    for key, (changed, story) in stories.items():
        part = (key.members, key.protocol)
        if part != said:
            said = part
            say(f"{key.members} members, {key.protocol}")
        cells.append(tally(key, changed, [story(seed) for seed in wanted]))
    return cells


# The data.


def read_cells(path: Path) -> list[Cell]:
    """The cells of a file that `write_cells` wrote. Raises ConfigError where it is another."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        if lines.fieldnames != [each.name for each in fields(Cell)]:
            raise ConfigError(
                f"{path} is no data of fleet bench rebalance-table: its columns are "
                f"{', '.join(lines.fieldnames or ('none',))}; name another file"
            )
        return [_cell(path, number, line) for number, line in enumerate(lines, 2)]


def _cell(path: Path, number: int, line: Mapping[str, str]) -> Cell:
    values: dict[str, Any] = {}
    try:
        for name, text in line.items():
            if name in _NAMES:
                values[name] = text
            else:
                values[name] = None if text == "" else (int if name in _COUNTS else float)(text)
        cell = Cell(**values)
        in_order([cell])
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}:{number} is no cell of fleet bench rebalance-table ({error}); delete the line"
        ) from error
    return cell


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


_ORDER: Final = (
    *("join", "leave", "restart"),
    *("range", "cooperative-sticky", "consumer"),
    *("dynamic", "static"),
    *("one", "tenth", "fleet"),
)


def in_order(cells: Iterable[Cell]) -> list[Cell]:
    """By change, protocol, membership, way and size."""
    return sorted(cells, key=lambda c: (*map(_ORDER.index, c.key[:4]), c.members))


# For people.


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
    """The tables of docs/rebalance-table.md, one per change."""
    names, out = [each.capitalize() for each in head(cells)], ""
    for change in ("join", "leave", "restart"):
        out += f"\n## {change.capitalize()}\n\n| {' | '.join(names)} |\n{'|---' * len(names)}|\n"
        out += "".join(f"| {' | '.join(line)} |\n" for line in lines(cells, change))
    return out
