"""Rebalances per hour and cause, as a small picture inside a page of Dagster."""

import base64
import io
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fleet.history.tables import Tables

_SHOWN: Final = 6
"""Causes with a colour of their own."""


def rebalances_per_hour(path: str, *, hours: int, now: float | None = None) -> list[Counter[str]]:
    """Rebalances by cause in each of the last hours, the latest last."""
    end = time.time() if now is None else now
    since = end - hours * 3600
    counts: list[Counter[str]] = [Counter() for _ in range(hours)]
    for each in Tables(path).rebalances(since=since, until=end):
        counts[int((each.ended_at - since) // 3600)][each.cause.value] += 1
    return counts


def markdown(counts: Sequence[Counter[str]]) -> str:
    """The picture as markdown with its data inside; a sentence where nothing happened."""
    total = sum((Counter(each) for each in counts), Counter())
    if not total:
        return f"No rebalance in the last {len(counts)} hours."
    data = base64.b64encode(picture(counts, total)).decode()
    told = ", ".join(f"{n} {cause}" for cause, n in total.most_common())
    return f"![rebalances per hour](data:image/png;base64,{data})\n\n{told}"


def picture(counts: Sequence[Counter[str]], total: Counter[str]) -> bytes:
    """A PNG of some 10 kB."""
    figure = Figure(figsize=(7.0, 2.4), dpi=80, layout="constrained")
    axes = figure.add_subplot()
    hours = [number - len(counts) + 1 for number in range(len(counts))]
    below = [0] * len(counts)
    causes = [cause for cause, _ in total.most_common(_SHOWN)]
    rest = "others" if len(total) > _SHOWN else None
    for cause in [*causes, *([rest] if rest else [])]:
        heights = [
            sum(n for c, n in each.items() if c not in causes) if cause == rest else each[cause]
            for each in counts
        ]
        axes.bar(hours, heights, bottom=below, width=0.9, label=cause)
        below = [low + high for low, high in zip(below, heights, strict=True)]
    axes.set_xlabel("hours ago")
    axes.set_xticks([h for h in hours if h % 6 == 0], [str(-h) for h in hours if h % 6 == 0])
    axes.set_ylabel("rebalances")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize="small", frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()
