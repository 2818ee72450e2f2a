"""The matrix as data (CSV) and as the table of docs/contributing/faults.md."""

import csv
from collections.abc import Sequence
from pathlib import Path

from tests.faults.matrix import Cell
from tests.faults.six_fleets import WAYS

HEAD = ("fault", "way", "most", "rebalances", "lost", "twice", "unclean", "seconds")
TITLES = {"range": "range", "cooperative": "cooperative-sticky", "consumer": "KIP-848"}


def write_cells(path: Path, cells: Sequence[Cell]) -> None:
    """One line each."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for cell in cells:
            writer.writerow([*(getattr(cell, name) for name in HEAD[:-1]), f"{cell.seconds:.0f}"])


def read_cells(path: Path) -> list[Cell]:
    """What write_cells wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Cell(
                fault=row["fault"],
                way=row["way"],
                most=int(row["most"]),
                rebalances=int(row["rebalances"]),
                lost=int(row["lost"]),
                twice=int(row["twice"]),
                unclean=int(row["unclean"]),
                seconds=float(row["seconds"]),
                broken=(),
            )
            for row in csv.DictReader(file)
        ]


def page(path: Path) -> str:
    """The table of that data."""
    return markdown(read_cells(path))


def markdown(cells: Sequence[Cell]) -> str:
    """A row for each fault, a column for each way: rebalances, twice, seconds."""
    by = {(cell.fault, cell.way): cell for cell in cells}
    names = [title(way) for way in WAYS]
    lines = [f"| Fault | {' | '.join(names)} |", f"|---{'|---' * len(names)}|"]
    for fault in dict.fromkeys(cell.fault for cell in cells):
        outcomes = [said(by.get((fault, way))) for way in WAYS]
        lines.append(f"| {fault} | {' | '.join(outcomes)} |")
    return "\n" + "\n".join(lines) + "\n"


def title(way: str) -> str:
    """As the documentation calls it."""
    kind, _, membership = way.partition(", ")
    return f"{TITLES[kind]}, {membership or 'static'}"


def said(cell: Cell | None) -> str:
    """One cell; - where the fault cannot happen."""
    if cell is None:
        return "-"
    return f"{cell.rebalances} of {cell.most} / {cell.twice} / {cell.seconds:.0f} s"
