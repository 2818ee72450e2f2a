"""The last rebalances inside a page of Dagster: a small picture, and a table.

Without Dagster itself, which would take the process that reports them a second to import.
"""

import base64
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fleet.model.rebalances import Rebalance
from fleet.report.wording import cause_text, clock_text, took, who

_SHOWN: Final = 6
"""Causes with a colour of their own."""
_LISTED: Final = 20
_COLUMNS: Final = (
    *(("when (UTC)", "string"), ("group", "string"), ("no", "int"), ("cause", "string")),
    *(("who", "string"), ("moved", "int"), ("took", "string")),
)


def per_hour(found: Iterable[Rebalance], *, hours: int, end: float) -> list[Counter[str]]:
    """Rebalances by cause in each of the last hours, the latest last."""
    since = end - hours * 3600
    counts: list[Counter[str]] = [Counter() for _ in range(hours)]
    for each in found:
        counts[int((each.ended_at - since) // 3600)][each.cause.value] += 1
    return counts


def causes(counts: Sequence[Counter[str]]) -> str:
    """How many of each cause, the most frequent first."""
    total = sum((Counter(each) for each in counts), Counter())
    return ", ".join(f"{n} {cause}" for cause, n in total.most_common()) or "none"


def plot(counts: Sequence[Counter[str]]) -> str:
    """The picture as markdown with its data inside; a sentence where nothing happened."""
    total = sum((Counter(each) for each in counts), Counter())
    if not total:
        return f"No rebalance in the last {len(counts)} hours."
    data = base64.b64encode(picture(counts, total)).decode()
    return f"![rebalances per hour](data:image/png;base64,{data})\n\n{causes(counts)}"


def latest(found: Sequence[Rebalance]) -> dict[str, Any]:
    """The last ones as a table of Dagster, the latest first."""
    records = [
        {
            "when (UTC)": clock_text(each.ended_at),
            "group": each.group,
            "no": each.number,
            "cause": cause_text(each),
            "who": who(each),
            "moved": len(each.moved),
            "took": took(each),
        }
        for each in reversed(found[-_LISTED:])
    ]
    return {"records": records, "schema": [{"name": n, "type": t} for n, t in _COLUMNS]}


def picture(counts: Sequence[Counter[str]], total: Counter[str]) -> bytes:
    """A PNG of some 10 kB."""
    figure = Figure(figsize=(7.0, 2.4), dpi=80, layout="constrained")
    axes = figure.add_subplot()
    hours = [number - len(counts) + 1 for number in range(len(counts))]
    below = [0] * len(counts)
    named = [cause for cause, _ in total.most_common(_SHOWN)]
    rest = "others" if len(total) > _SHOWN else None
    for cause in [*named, *([rest] if rest else [])]:
        heights = [
            sum(n for c, n in each.items() if c not in named) if cause == rest else each[cause]
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
