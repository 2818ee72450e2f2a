"""The plot of `fleet bench rebalance-table`: one panel for each change and protocol.

Cost: matplotlib takes half a second to load, so this module is imported when a picture is made.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fleet.bench.rebalance_table import Cell, in_order, protocol_name, way_name

_COLOURS: Final = {
    ("dynamic", "one"): "#e69f00",
    ("dynamic", "tenth"): "#d55e00",
    ("static", "one"): "#56b4e9",
    ("static", "tenth"): "#0072b2",
    ("static", "fleet"): "#009e73",
}
"""Told apart by colour-blind readers, too."""
_LEAST: Final = 0.001
"""Seconds: where a pause of nothing is drawn."""


def draw(cells: Sequence[Cell], path: Path) -> None:
    """A PNG: seconds by members, both logarithmic; solid the duration, dotted the longest pause."""
    known = in_order(cells)
    changes = list(dict.fromkeys(each.change for each in known))
    protocols = list(dict.fromkeys(each.protocol for each in known))
    figure = Figure(figsize=(4 * len(protocols), 2.9 * len(changes) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(changes), len(protocols), sharex=True, sharey=True, squeeze=False)
    for change, row in zip(changes, panels, strict=True):
        for protocol, axes in zip(protocols, row, strict=True):
            _panel(axes, [c for c in known if (c.change, c.protocol) == (change, protocol)])
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, format="png", dpi=110)


def _panel(axes: Axes, cells: list[Cell]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(visible=True, alpha=0.3)
    for way, colour in _COLOURS.items():
        line = [each for each in cells if (each.membership, each.way) == way]
        if not line:
            continue
        sizes = [each.members for each in line]
        settled = [max(each.duration or _LEAST, _LEAST) for each in line]
        pauses = [max(each.longest_pause, _LEAST) for each in line]
        axes.plot(sizes, settled, color=colour, marker=".", label=way_name(line[0]))
        axes.plot(sizes, pauses, color=colour, linestyle=":")
    if cells:
        axes.set_title(f"{cells[0].change}, {protocol_name(cells[0])}", fontsize=9)
        sizes = sorted({each.members for each in cells})
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=7)
        axes.set_xticks([], minor=True)
    if axes.get_subplotspec().is_last_row():  # type: ignore[union-attr]
        axes.set_xlabel("members", fontsize=8)
    if axes.get_subplotspec().is_first_col():  # type: ignore[union-attr]
        axes.set_ylabel("seconds", fontsize=8)
