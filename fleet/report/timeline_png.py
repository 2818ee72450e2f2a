"""A sketch as PNG, by matplotlib without a display.

Cost: matplotlib takes half a second to load, so this module is imported when a picture is made.
"""

import io
from collections.abc import Iterable
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from fleet.report.paints import LIGHT
from fleet.report.sketch import Box, Diamond, Sketch, Stroke, Words

_DPI: Final = 100
_POINTS: Final = 72 / _DPI
_SHARPNESS: Final = 1.5


def as_png(sketch: Sketch) -> bytes:
    """The picture on white, at one and a half times its size."""
    figure = Figure(figsize=(sketch.width / _DPI, sketch.height / _DPI), facecolor=LIGHT["paper"])
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, sketch.width)
    axes.set_ylim(sketch.height, 0)
    axes.axis("off")
    _paint(axes, sketch)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=_DPI * _SHARPNESS, metadata={"Title": sketch.caption})
    return out.getvalue()


def _paint(axes: Axes, sketch: Sketch) -> None:
    """Runs of one kind in one collection: thousands of bars, each on its own, take minutes."""
    run: list[Any] = []
    order = 0
    for shape in sketch.shapes:
        if run and type(shape) is not type(run[0]):
            order += 1
            _collect(axes, run, order)
            run = []
        run.append(shape)
    if run:
        _collect(axes, run, order + 1)


def _collect(axes: Axes, run: list[Any], order: int) -> None:
    if isinstance(run[0], Words):
        for words in run:
            _write(axes, words, order)
        return
    if isinstance(run[0], Stroke):
        lines = LineCollection(
            [[(s.x1, s.y1), (s.x2, s.y2)] for s in run],
            colors=[to_rgba(LIGHT[s.paint], s.opacity) for s in run],
            linewidths=[s.width * _POINTS for s in run],
            zorder=order,
        )
        axes.add_collection(lines, autolim=False)
        return
    shapes = PolyCollection(
        [list(_corners(shape)) for shape in run],
        facecolors=[to_rgba(LIGHT[s.paint], getattr(s, "opacity", 1.0)) for s in run],
        edgecolors=LIGHT["paper"] if isinstance(run[0], Diamond) else "none",
        linewidths=1.0 if isinstance(run[0], Diamond) else 0.0,
        zorder=order,
    )
    axes.add_collection(shapes, autolim=False)


def _corners(shape: Box | Diamond) -> Iterable[tuple[float, float]]:
    if isinstance(shape, Diamond):
        x, y, r = shape.x, shape.y, shape.radius
        return ((x - r, y), (x, y - r), (x + r, y), (x, y + r))
    x, y, right, below = shape.x, shape.y, shape.x + shape.width, shape.y + shape.height
    return ((x, y), (right, y), (right, below), (x, below))


def _write(axes: Axes, words: Words, order: int) -> None:
    axes.text(
        words.x,
        words.y,
        words.text.replace("$", r"\$"),  # a dollar begins mathematics
        fontsize=words.size * _POINTS,
        color=LIGHT[words.paint],
        ha={"start": "left", "middle": "center", "end": "right"}[words.anchor],
        va="center",
        weight="bold" if words.bold else "normal",
        zorder=order,
    )
