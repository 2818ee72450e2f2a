"""Draws what a scaling policy decided over time, as SVG for the page of `fleet ui`. Pure.

Wanted and actual members are steps, since they last until the next decision. The lag is known only
at a decision, so its points are joined. The picture has the margins and the colours of the timeline
of rebalances below it.
"""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Final

from fleet.decide.decision_log import KeptDecision
from fleet.report.timeline import choose_labels, ticks
from fleet.report.timeline_html import MARGIN_RIGHT, NARROWEST, left_margin, text_width
from fleet.report.wording import clock_text

_TOP: Final = 8.0
_BAND: Final = 56.0
_GAP: Final = 16.0
_FOOT: Final = 30.0


def decision_svg(
    kept: Sequence[KeptDecision], *, since: float, until: float, width: float
) -> str | None:
    """Draws the decisions that held between two times; None if there are none.

    The picture is `width` pixels wide, at least 300, as the timeline.
    """
    known = sorted((each for each in kept if each.at <= until), key=lambda each: each.at)
    first = max((n for n, each in enumerate(known) if each.at <= since), default=0)
    shown = known[first:]
    return "\n".join(_drawn(shown, since, until, max(width, NARROWEST))) if shown else None


def _drawn(
    shown: Sequence[KeptDecision], since: float, until: float, width: float
) -> Iterator[str]:
    left, most = left_margin(width), max(max(each.wanted, each.members) for each in shown)
    behind = max((each.lag or 0 for each in shown), default=0)
    scale = (width - left - MARGIN_RIGHT) / max(until - since, 1e-6)

    def x(at: float) -> float:
        return left + (max(at, since) - since) * scale

    base, low = _TOP + _BAND, _TOP + 2 * _BAND + _GAP
    starts = [x(each.at) for each in shown]
    ends = [*starts[1:], x(until)]
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" role="img" '
        f'viewBox="0 0 {width:g} {low + _FOOT:g}" aria-label="{escape(_caption(shown))}">'
    )
    yield from _axis(since, until, x, low, left)
    yield _side(left, _TOP + _BAND / 2 - 8, f"members 0 to {most}")
    yield _side(left, _TOP + _BAND / 2 + 8, "dashed: wanted")
    yield _side(left, low - _BAND / 2 - 8, "waiting records")
    yield _side(left, low - _BAND / 2 + 8, f"0 to {behind:,}")
    for each, start, end in zip(shown, starts, ends, strict=True):
        height = _BAND * each.members / max(most, 1)
        yield _box("own", (start, base - height), (end - start, height), "0.45")
    wanted = [base - _BAND * each.wanted / max(most, 1) for each in shown]
    path = "".join(
        f"{'ML'[n > 0]}{start:.1f} {y:.1f}L{end:.1f} {y:.1f}"
        for n, (start, end, y) in enumerate(zip(starts, ends, wanted, strict=True))
    )
    yield _line(path, "ink", ' stroke-dasharray="6 3"')
    points = [
        f"{start:.1f} {low - _BAND * each.lag / max(behind, 1):.1f}"
        for each, start in zip(shown, starts, strict=True)
        if each.lag is not None
    ]
    if points:
        yield _line(f"M{'L'.join(points)}", "pause", "")
    for each, start, end in zip(shown, starts, ends, strict=True):  # what the pointer shows
        title = f"<title>{escape(f'{clock_text(each.at)} UTC: {each.sentence}')}</title>"
        yield _box("ink", (start, _TOP), (end - start, low - _TOP), "0", title)
    yield "</svg>"


def _axis(
    since: float, until: float, x: Callable[[float], float], low: float, left: float
) -> Iterator[str]:
    marks = ticks(since, until)
    widest = max((text_width(text, 12) for _, text in marks), default=0.0)
    labelled = choose_labels((x(at) for at, _ in marks), widest + 6)
    for (at, text), there in zip(marks, labelled, strict=True):
        yield _line(f"M{x(at):.1f} {_TOP:g}V{low:g}", "grid", "")
        if there:
            yield _text(x(at), low + 15, text, "middle", "faint")
    yield _line(f"M{left:g} {low:g}H{x(until):.1f}", "grid", "")


def _caption(shown: Sequence[KeptDecision]) -> str:
    last = shown[-1]
    return f"{len(shown)} decisions of the policy; the last: {last.sentence}"


def _line(path: str, paint: str, more: str) -> str:
    return f'<path d="{path}" fill="none" stroke="var(--{paint})" stroke-width="1.5"{more}/>'


def _box(
    paint: str,
    corner: tuple[float, float],
    size: tuple[float, float],
    opacity: str,
    inner: str = "",
) -> str:
    (x, y), (width, height) = corner, size
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}"'
    return f'<rect class="{paint}" {place} opacity="{opacity}">{inner}</rect>'


def _side(left: float, y: float, text: str) -> str:
    return _text(left - 10, y, text, "end", "ink")


def _text(x: float, y: float, text: str, anchor: str, paint: str) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}"'
    return f'<text class="{paint}" {where}>{escape(text)}</text>'
