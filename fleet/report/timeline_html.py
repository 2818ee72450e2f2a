"""Draws a timeline: SVG for the page of `fleet ui`, and an HTML page that stands alone. Pure.

Problem: Fleet does not know the width of a text where it draws it. Choice: it estimates the width.
Shapes are in pixels, and a colour is a role (`own`, `pause`, `cause join`, ...) with one value for
light paper and one for dark. The HTML page needs no script, font or network, so that it opens from
a mail or a ticket. A table below the picture repeats its content.

From the top: title; causes with letters and counts; generations with the letter of each cause;
durations; lanes; clock. A storm shades all of it. Letters tell the causes apart for readers who
do not see colours. Each colour is dark enough for white letters.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any, Final

from fleet.model.rebalances import Cause, Confidence, Rebalance
from fleet.report.timeline import Bar, Lane, Span, Timeline, choose_labels
from fleet.report.wording import (
    cause_text,
    clock_text,
    duration_text,
    members_text,
    number_word,
    sentence,
)
from fleet.text import duration

WIDTH: Final = 1200.0
NARROWEST: Final = 300.0
_LEFT: Final = 176.0
MARGIN_RIGHT: Final = 24.0
_RIBBON: Final = 22.0
_LETTERS: Final = 20.0
_DURATIONS: Final = 64.0
_GAP: Final = 14.0
_LEAST: Final = 1.6
"""Smallest width in pixels of a downtime or a generation, so that seconds show in a day."""
_MANY: Final = 100
"""Rebalances above which lines are thinner, so that bars stay visible."""

LETTERS: Final[dict[Cause, str]] = {
    Cause.CREATED: "G",
    Cause.JOIN: "J",
    Cause.LEAVE: "L",
    Cause.BATCHED_LEAVE: "B",
    Cause.EXPIRY: "X",
    Cause.REMOVAL: "D",
    Cause.SUBSCRIPTION: "S",
    Cause.PARTITIONS: "P",
    Cause.ASSIGNOR: "A",
    Cause.LEADER_REJOIN: "R",
    Cause.SECOND_ROUND: "2",
    Cause.COORDINATOR_MOVE: "C",
    Cause.MIGRATION: "M",
    Cause.RECREATED: "N",
    Cause.UNKNOWN: "?",
}
_CAUSES: Final[dict[Cause, str]] = {
    Cause.CREATED: "#6b7280",
    Cause.JOIN: "#2e8b4f",
    Cause.LEAVE: "#5b4fc4",
    Cause.BATCHED_LEAVE: "#0f8a8f",
    Cause.EXPIRY: "#d0342c",
    Cause.REMOVAL: "#c2478d",
    Cause.SUBSCRIPTION: "#8e44ad",
    Cause.PARTITIONS: "#8a5a36",
    Cause.ASSIGNOR: "#7f8c1f",
    Cause.LEADER_REJOIN: "#a66f00",
    Cause.SECOND_ROUND: "#3d7ea6",
    Cause.COORDINATOR_MOVE: "#b0413e",
    Cause.MIGRATION: "#4b6584",
    Cause.RECREATED: "#1f6f5c",
    Cause.UNKNOWN: "#8c8c8c",
}
_SAME: Final = {
    "pause": "#f2902b",
    "storm": "#e5342a",
    "unknown": "#9a9a9a",
    "on cause": "#ffffff",
    **{f"cause {cause.value}": colour for cause, colour in _CAUSES.items()},
}
LIGHT: Final[dict[str, str]] = {
    "paper": "#ffffff",
    "ink": "#1d2430",
    "faint": "#5d6675",
    "grid": "#dfe3e8",
    "own": "#3f74b5",
    "on own": "#ffffff",
    "replaced": "#1d2430",
    **_SAME,
}
DARK: Final[dict[str, str]] = {
    "paper": "#14181f",
    "ink": "#e6e9ee",
    "faint": "#a0a9b6",
    "grid": "#2b323d",
    "own": "#5d9be0",
    "on own": "#0b0f14",
    "replaced": "#ffffff",
    **_SAME,
}
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


def as_html(line: Timeline, rebalances: Sequence[Rebalance]) -> str:
    """Renders the HTML page: the picture, and a table of its rebalances, newest first."""
    return _PAGE.format(
        title=escape(caption(line)),
        paints=stylesheet(),
        svg=as_svg(line),
        summary=f"{len(rebalances)} rebalances as a table",
        table=_table(rebalances),
    )


def _table(rebalances: Sequence[Rebalance]) -> str:
    rows = [_row("th", _COLUMNS)]
    for r in sorted(rebalances, key=lambda r: -r.ended_at):
        what = (clock_text(r.ended_at), str(r.number), cause_text(r), members_text(r, most=8))
        rows.append(_row("td", (*what, str(len(r.moved)), duration_text(r), str(r.aborted or ""))))
    return "\n".join(["<table>", *rows, "</table>"])


def _row(tag: str, cells: Iterable[str]) -> str:
    inner = "".join(
        f'<{tag} class="number">{escape(cell)}</{tag}>'
        if tag == "td" and place in _NUMBERS
        else f"<{tag}>{escape(cell)}</{tag}>"
        for place, cell in enumerate(cells)
    )
    return f"<tr>{inner}</tr>"


def as_svg(line: Timeline, *, width: float = WIDTH) -> str:
    """Draws a timeline `width` pixels wide (at least 300), as high as its lanes need.

    Colours are the classes and variables of `stylesheet`.
    """
    return _Drawing(line, max(width, NARROWEST)).draw()


def left_margin(width: float) -> float:
    """Returns the pixels left of the time axis, for labels."""
    return min(_LEFT, 0.3 * width)


def text_width(text: str, size: float) -> float:
    """Estimates the width of a text in a common sans-serif font."""
    return len(text) * size * 0.56


def shorten_middle(text: str, size: float, width: float) -> str:
    """Cuts the middle of a text that is too wide: names differ at their ends."""
    room = int(width / text_width("n", size))
    if len(text) <= room:
        return text
    return f"{text[: room // 2 - 1]}…{text[-(room - room // 2) :]}"


class _Drawing:
    def __init__(self, line: Timeline, width: float) -> None:
        self.line, self.width = line, width
        self.left = left_margin(width)
        self.word = number_word(line.protocol)
        self.most = line.most_owned
        self.out: list[str] = []
        self.scale = (self.width - self.left - MARGIN_RIGHT) / max(line.until - line.since, 1e-6)
        self.lane_height = min(34.0, max(11.0, 660.0 / max(len(line.lanes), 1)))

    def x(self, at: float) -> float:
        return self.left + (at - self.line.since) * self.scale

    def draw(self) -> str:
        top = self._head()
        letters = top
        ribbon = letters + _LETTERS
        durations = ribbon + _RIBBON + _GAP
        lanes = durations + (0.0 if self.line.longest is None else _DURATIONS + _GAP)
        bottom = lanes + self.lane_height * max(len(self.line.lanes), 1)
        self._storms(letters, bottom)
        self._grid(durations, bottom)
        self._rounds(letters, ribbon)
        if self.line.longest is not None:
            self._durations(durations, durations + _DURATIONS, self.line.longest)
        self._causes_through(lanes, bottom)
        self._lanes(lanes)
        height = self._foot(bottom)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" role="img" '
            f'viewBox="0 0 {self.width:g} {height:g}" aria-label="{escape(caption(self.line))}">'
        )
        return "\n".join([head, *self.out, "</svg>"])

    # --- around it ---------------------------------------------------------------------------

    def _head(self) -> float:
        line = self.line
        many = len(line.marks)
        name = shorten_middle(line.group, 17, self.width - 32)
        self._words(x=16, y=22, text=name, size=17, bold=True)
        text = (
            f"cluster {line.cluster} · {line.protocol} · {clock_text(line.since)} to "
            f"{clock_text(line.until)} UTC · {many} rebalance{'' if many == 1 else 's'}"
        )
        if line.storms:
            text += f" · {len(line.storms)} storm{'' if len(line.storms) == 1 else 's'}"
        text = shorten_middle(text, 12, self.width - 32)
        self._words(x=16, y=44, text=text, size=12, paint="faint")
        return self._legend(66.0) + 22.0

    def _legend(self, y: float) -> float:
        x = 16.0
        for cause, count in self.line.counts:
            text = f"{cause.value} {count}"
            needed = 34.0 + text_width(text, 12)
            if x + needed > self.width - MARGIN_RIGHT:
                x, y = 16.0, y + 20.0
            self._badge(x + 8, y, cause)
            self._words(x=x + 21, y=y, text=text)
            x += needed
        y += 22.0
        x = 16.0
        for paint, text in self._signs():
            needed = 46.0 + text_width(text, 12)
            if x > 16.0 and x + needed > self.width:
                x, y = 16.0, y + 20.0
            if paint == "own":
                for n, opacity in enumerate((0.35, 0.65, 1.0)):
                    self._box(x + 7 * n, y - 6 + 2 * (2 - n), 7, 4 + 4 * n, paint, opacity=opacity)
            elif paint == "replaced":
                self._diamond(x=x + 10, y=y, radius=5, paint=paint)
            else:
                self._box(x, y - 6, 20, 12, paint, opacity=0.22 if paint == "storm" else 1.0)
            self._words(x=x + 26, y=y, text=text, paint="faint")
            x += needed
        return y

    def _signs(self) -> Iterator[tuple[str, str]]:
        line = self.line
        yield "own", f"partitions owned (number, thickness; most {line.most_owned})"
        if line.longest is not None:
            yield "pause", "downtime"
        if any(lane.replaced for lane in line.lanes):
            yield "replaced", "static member replaced, no rebalance"
        if line.storms:
            yield "storm", "storm"
        unknown = sum(mark.seconds is None for mark in line.marks)
        if unknown == len(line.marks):
            yield "unknown", "all durations unknown"
        elif unknown:
            yield "unknown", f"duration unknown ({unknown} of {len(line.marks)})"

    def _foot(self, bottom: float) -> float:
        widest = max((text_width(text, 12) for _, text in self.line.ticks), default=0.0)
        spaced = choose_labels((self.x(at) for at, _ in self.line.ticks), widest + 6)
        zone = self.left - 10
        for (at, text), there in zip(self.line.ticks, spaced, strict=True):
            if there:
                x = self.x(at)
                self._words(x=x, y=bottom + 15, text=text, anchor="middle", paint="faint")
                zone = min(zone, x - text_width(text, 12) / 2 - 8)
        self._words(x=zone, y=bottom + 15, text="UTC", anchor="end", paint="faint")
        if not self.line.hidden:
            return bottom + 32
        text = f"{self.line.hidden} more members owned fewer partitions and are not drawn"
        self._words(x=self.left, y=bottom + 36, text=text, paint="faint")
        return bottom + 54

    def _storms(self, top: float, bottom: float) -> None:
        for storm in self.line.storms:
            title = f"storm, {clock_text(storm.start)} to {clock_text(storm.end)}"
            width = max(self.x(storm.end) - self.x(storm.start), 4.0)
            self._box(
                self.x(storm.start),
                top - 4,
                width,
                bottom - top + 4,
                "storm",
                opacity=0.14,
                title=title,
            )

    def _grid(self, top: float, bottom: float) -> None:
        for at, _ in self.line.ticks:
            self._upright(self.x(at), top, bottom, "grid")

    # --- rebalances --------------------------------------------------------------------------

    def _rounds(self, letters: float, ribbon: float) -> None:
        """Draws the generations, and the letter of its cause over each start."""
        marks = self.line.marks
        self._side(f"{self.word}s", ribbon + _RIBBON / 2)
        self._side("causes", letters + _LETTERS / 2 - 1)
        starts = [self.line.since, *(mark.ended_at for mark in marks)]
        ends = [*starts[1:], self.line.until]
        numbers = [self.line.before, *(mark.number for mark in marks)]
        titles = ["", *map(sentence, marks)]
        for place, (start, end, number, title) in enumerate(
            zip(starts, ends, numbers, titles, strict=True)
        ):
            x, width = self.x(start), self.x(end) - self.x(start)
            if not number or width <= 0:  # generation 0 has no members
                continue
            opacity = 0.16 if place % 2 else 0.3
            self._box(x, ribbon, max(width, 0.5), _RIBBON, "ink", opacity=opacity, title=title)
            if width > text_width(str(number), 12) + 6:
                y = ribbon + _RIBBON / 2
                self._words(x=x + width / 2, y=y, text=str(number), anchor="middle", title=title)
        with_letter = choose_labels((self.x(mark.ended_at) for mark in marks), 17.0)
        for mark, lettered in zip(marks, with_letter, strict=True):
            self._begin(mark, letters, ribbon, lettered=lettered)

    def _begin(self, mark: Rebalance, letters: float, ribbon: float, *, lettered: bool) -> None:
        x, paint = self.x(mark.ended_at), paint_of(mark.cause)
        if lettered:
            certain = mark.confidence is Confidence.CERTAIN
            self._badge(x, letters + 7, mark.cause, title=sentence(mark), certain=certain)
        width = 2.0 if len(self.line.marks) <= _MANY else 1.2
        self._upright(x, letters + 12, ribbon + _RIBBON, paint, width=width)

    def _durations(self, top: float, base: float, longest: float) -> None:
        """Draws a stem as high as the rebalance was long; a grey stub if that is unknown."""
        self._side("duration", (top + base) / 2 - 7)
        self._side(f"0 to {duration(longest)}", (top + base) / 2 + 8)
        self._box(self.left, base, self.width - MARGIN_RIGHT - self.left, 1.0, "grid")
        for mark in self.line.marks:
            if mark.seconds is None:
                x = self.x(mark.ended_at) - 1
                self._box(x, base - 6, 2.0, 6, "unknown", title=sentence(mark))
                continue
            height = max((base - top) * mark.seconds / max(longest, 1e-6), 1.5)
            x = self.x(mark.ended_at - mark.seconds)
            width = max(self.x(mark.ended_at) - x, _LEAST)
            self._box(x, base - height, width, height, "pause", title=sentence(mark))

    def _causes_through(self, top: float, bottom: float) -> None:
        faint = 0.55 if len(self.line.marks) <= _MANY else 0.25
        for mark in self.line.marks:
            x = self.x(mark.ended_at)
            self._upright(x, top, bottom, paint_of(mark.cause), opacity=faint)

    # --- members -----------------------------------------------------------------------------

    def _lanes(self, top: float) -> None:
        if not self.line.lanes:
            text = "partition owners are unknown for this time"
            y = top + self.lane_height / 2
            self._words(x=self.left + 8, y=y, text=text, paint="faint")
        for place, lane in enumerate(self.line.lanes):
            y = top + place * self.lane_height
            if place % 2:
                room = self.width - self.left - MARGIN_RIGHT
                self._box(self.left, y, room, self.lane_height, "ink", opacity=0.03)
            size = min(12.0, self.lane_height * 0.85)
            self._side(lane.label, y + self.lane_height / 2, size=size, title=_names(lane))
            self._lane(lane, y)

    def _lane(self, lane: Lane, y: float) -> None:
        room = self.lane_height - 2
        middle = y + self.lane_height / 2
        numbers: list[str] = []
        for bar in lane.bars:
            numbers += self._bar(bar, middle, room, lane)
        for pause in lane.pauses:
            self._pause(pause, middle, room, lane)
        self.out += numbers
        for at in lane.replaced:
            title = f"{lane.label} replaced, {clock_text(at)}: no rebalance"
            radius = min(6.0, self.lane_height * 0.42)
            self._diamond(x=self.x(at), y=middle, radius=radius, paint="replaced", title=title)

    def _bar(self, bar: Bar, middle: float, room: float, lane: Lane) -> Iterator[str]:
        x, width = self.x(bar.start), self.x(bar.end) - self.x(bar.start)
        share = bar.owned / self.most
        height = room * (0.3 + 0.55 * share) if bar.owned else 2.0
        title = (
            f"{lane.label}: {bar.owned} partitions, {clock_text(bar.start)} to "
            f"{clock_text(bar.end, date=False)}"
            if width >= 3
            else ""
        )
        paint, opacity = ("own", 0.35 + 0.65 * share) if bar.owned else ("unknown", 1.0)
        self._box(
            x, middle - height / 2, max(width, 0.7), height, paint, opacity=opacity, title=title
        )
        size = min(11.0, height * 0.9)
        if bar.owned and size >= 7 and width > text_width(str(bar.owned), size) + 6:
            yield _words(
                x=x + width / 2, y=middle, text=str(bar.owned), size=size, anchor="middle",
                paint="on own" if share > 0.55 else "ink", title=title,
            )  # fmt: skip

    def _pause(self, pause: Span, middle: float, room: float, lane: Lane) -> None:
        x = self.x(max(pause.start, self.line.since))
        width = max(self.x(pause.end) - x, _LEAST)
        title = f"{lane.label}: downtime of {duration(pause.end - pause.start)}"
        self._box(x, middle - room * 0.425, width, room * 0.85, "pause", opacity=0.95, title=title)

    # --- shapes ------------------------------------------------------------------------------

    def _box(
        self, x: float, y: float, width: float, height: float, paint: str,
        *, opacity: float = 1.0, title: str = "",
    ) -> None:  # fmt: skip
        where = (
            f'class="{css_name(paint)}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}"{_opacity(opacity)}'
        )
        self.out.append(_element("rect", where, "", title))

    def _upright(
        self, x: float, top: float, bottom: float, paint: str,
        *, width: float = 1.0, opacity: float = 1.0,
    ) -> None:  # fmt: skip
        self.out.append(
            f'<line x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}" '
            f'stroke="var(--{css_name(paint)})" stroke-width="{width:g}"{_opacity(opacity)}/>'
        )

    def _diamond(self, *, x: float, y: float, radius: float, paint: str, title: str = "") -> None:
        """A square on its corner."""
        r = radius
        path = f"M{x - r:.1f} {y:.1f}L{x:.1f} {y - r:.1f}L{x + r:.1f} {y:.1f}L{x:.1f} {y + r:.1f}Z"
        where = f'class="{css_name(paint)}" d="{path}" stroke="var(--paper)"'
        self.out.append(_element("path", where, "", title))

    def _words(self, **options: Any) -> None:
        self.out.append(_words(**options))

    def _side(self, text: str, y: float, *, size: float = 12.0, title: str = "") -> None:
        text = shorten_middle(text, size, self.left - 18)
        self._words(x=self.left - 10, y=y, text=text, size=size, anchor="end", title=title)

    def _badge(
        self, x: float, y: float, cause: Cause, *, title: str = "", certain: bool = True
    ) -> None:
        """Draws a letter on its colour; paler if the cause is not certain."""
        self._box(x - 8, y - 8, 16, 16, "paper")
        self._box(
            x - 8, y - 8, 16, 16, paint_of(cause), opacity=1.0 if certain else 0.6, title=title
        )
        letter = LETTERS[cause]
        self._words(
            x=x,
            y=y,
            text=letter,
            size=11,
            anchor="middle",
            paint="on cause",
            bold=True,
            title=title,
        )


def paint_of(cause: Cause) -> str:
    """Returns the colour role of a cause."""
    return f"cause {cause.value}"


def _names(lane: Lane) -> str:
    return ", ".join(lane.members[:20]) + (" …" if len(lane.members) > 20 else "")


def caption(line: Timeline) -> str:
    """Describes the picture in one sentence, for screen readers."""
    causes = ", ".join(f"{n} {cause.value}" for cause, n in line.counts) or "none"
    return (
        f"Group {line.group} on {line.cluster}: {len(line.marks)} rebalances ({causes}), "
        f"{len(line.lanes)} lanes of members, {clock_text(line.since)} to "
        f"{clock_text(line.until)} UTC"
    )


def _words(
    *, x: float, y: float, text: str, size: float = 12.0, anchor: str = "start",
    paint: str = "ink", bold: bool = False, title: str = "",
) -> str:  # fmt: skip
    """Draws a text; `y` is its middle."""
    weight = ' font-weight="bold"' if bold else ""
    where = (
        f'class="{css_name(paint)}" x="{x:.1f}" y="{y:.1f}" '
        f'font-size="{size:.3g}" text-anchor="{anchor}"{weight}'
    )
    return _element("text", where, escape(text), title)


def _opacity(value: float) -> str:
    return "" if value == 1.0 else f' opacity="{value:.2f}"'


def _element(tag: str, where: str, inside: str, title: str) -> str:
    inner = (f"<title>{escape(title)}</title>" if title else "") + inside
    return f"<{tag} {where}>{inner}</{tag}>" if inner else f"<{tag} {where}/>"


def css_name(role: str) -> str:
    """Returns the name of a role's CSS class and variable."""
    return role.replace(" ", "-").replace("↔", "-")


def stylesheet() -> str:
    """Builds a CSS variable and a fill class for each role, for light and dark paper."""
    return "\n".join(
        [
            f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}",
            f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}",
            *(f".{css_name(p)} {{ fill: var(--{css_name(p)}); }}" for p in LIGHT),
        ]
    )


def _variables(paints: dict[str, str]) -> str:
    return " ".join(f"--{css_name(role)}: {colour};" for role, colour in paints.items())
