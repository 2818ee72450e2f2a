"""A sketch as one HTML page that needs nothing else: inline SVG, its titles shown on hovering.

No script, no font, no address: it opens from a mail or a ticket, and follows the reader's
light or dark setting. What the picture says stands below it as a table.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from fleet.model.rebalances import Rebalance
from fleet.report.paints import css_name, stylesheet
from fleet.report.sketch import Box, Diamond, Shape, Sketch, Stroke
from fleet.report.wording import cause_text, clock_text, took, who

_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{paints}
body {{ margin: 0; background: var(--paper); color: var(--ink); font: 14px sans-serif; }}
main {{ max-width: 1600px; margin: 0 auto; padding: 8px; }}
svg {{ width: 100%; height: auto; display: block; font-family: sans-serif; }}
svg text {{ dominant-baseline: central; }}
table {{ border-collapse: collapse; margin: 8px 16px; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: 2px 14px 2px 0; vertical-align: top; }}
th {{ color: var(--faint); font-weight: normal; }}
td.number {{ text-align: right; }}
summary {{ margin: 8px 16px; cursor: pointer; }}
</style>
</head>
<body>
<main>
{svg}
<details>
<summary>{summary}</summary>
{table}
</details>
</main>
</body>
</html>
"""
_COLUMNS: Final = ("when (UTC)", "number", "cause", "who", "moved", "took", "aborted")
_NUMBERS: Final = frozenset({1, 4, 5, 6})


def as_html(sketch: Sketch, rebalances: Sequence[Rebalance]) -> str:
    """The picture, and a table of the same rebalances, newest first."""
    return _PAGE.format(
        title=escape(sketch.caption),
        paints=stylesheet(),
        svg=_svg(sketch),
        summary=f"{len(rebalances)} rebalances as a table",
        table=_table(rebalances),
    )


def _svg(sketch: Sketch) -> str:
    head = (
        f'<svg viewBox="0 0 {sketch.width:g} {sketch.height:g}" role="img" '
        f'aria-label="{escape(sketch.caption)}">'
    )
    return "\n".join([head, *(_drawn(shape) for shape in sketch.shapes), "</svg>"])


def _drawn(shape: Shape) -> str:
    if isinstance(shape, Stroke):
        return (
            f'<line x1="{shape.x1:.1f}" y1="{shape.y1:.1f}" x2="{shape.x2:.1f}" '
            f'y2="{shape.y2:.1f}" stroke="var(--{css_name(shape.paint)})" '
            f'stroke-width="{shape.width:g}"{_opacity(shape.opacity)}/>'
        )
    if isinstance(shape, Box):
        tag, where = "rect", (
            f'class="{css_name(shape.paint)}" x="{shape.x:.1f}" y="{shape.y:.1f}" '
            f'width="{shape.width:.1f}" height="{shape.height:.1f}"{_opacity(shape.opacity)}'
        )  # fmt: skip
        return _titled(tag, where, "", shape.title)
    if isinstance(shape, Diamond):
        x, y, r = shape.x, shape.y, shape.radius
        path = f"M{x - r:.1f} {y:.1f}L{x:.1f} {y - r:.1f}L{x + r:.1f} {y:.1f}L{x:.1f} {y + r:.1f}Z"
        where = f'class="{css_name(shape.paint)}" d="{path}" stroke="var(--paper)"'
        return _titled("path", where, "", shape.title)
    weight = ' font-weight="bold"' if shape.bold else ""
    where = (
        f'class="{css_name(shape.paint)}" x="{shape.x:.1f}" y="{shape.y:.1f}" '
        f'font-size="{shape.size:.3g}" text-anchor="{shape.anchor}"{weight}'
    )
    return _titled("text", where, escape(shape.text), shape.title)


def _opacity(value: float) -> str:
    return "" if value == 1.0 else f' opacity="{value:.2f}"'


def _titled(tag: str, where: str, inside: str, title: str) -> str:
    told = f"<title>{escape(title)}</title>" if title else ""
    return f"<{tag} {where}>{told}{inside}</{tag}>" if told or inside else f"<{tag} {where}/>"


def _table(rebalances: Sequence[Rebalance]) -> str:
    return "\n".join(["<table>", _row("th", _COLUMNS), *_rows(rebalances), "</table>"])


def _rows(rebalances: Sequence[Rebalance]) -> Iterator[str]:
    for rebalance in sorted(rebalances, key=lambda r: -r.ended_at):
        yield _row(
            "td",
            (
                clock_text(rebalance.ended_at),
                str(rebalance.number),
                cause_text(rebalance),
                who(rebalance, most=8),
                str(len(rebalance.moved)),
                took(rebalance),
                str(rebalance.aborted or ""),
            ),
        )


def _row(tag: str, cells: Iterable[str]) -> str:
    inner = "".join(
        f'<{tag} class="number">{escape(cell)}</{tag}>'
        if tag == "td" and place in _NUMBERS
        else f"<{tag}>{escape(cell)}</{tag}>"
        for place, cell in enumerate(cells)
    )
    return f"<tr>{inner}</tr>"
