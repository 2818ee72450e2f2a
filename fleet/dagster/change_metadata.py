"""Plans and receipts as Dagster metadata: sentences first, then a markdown table, then JSON.

The web page shows text and numbers at once and plots numbers over time; tables and JSON open
on a click. So what a person must know stands in sentences, and every count is a number.

Sentences name members by client ids, which anybody chooses who may join a group: in markdown they
are text, and no picture, link or tag.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dagster import MetadataValue

from fleet.decide.receipts import expectation
from fleet.model import ExpectedCost, Plan, Receipt, ReceiptResult
from fleet.slots import Change
from fleet.slots.codec import as_json
from fleet.text import expected_within

_ACTIVE: Final = str.maketrans({"[": "&#91;", "<": "&lt;", "|": "&#124;"})
"""What makes links, pictures, tags and cells. No backslashes: one before them would undo these."""


def plain(text: object) -> str:
    """A text on one line, as markdown that shows it."""
    return " ".join(str(text).split("\n")).translate(_ACTIVE)


def listed(items: Iterable[str]) -> MetadataValue[Any]:
    """A bullet for each."""
    return MetadataValue.md("\n".join(f"- {plain(each)}" for each in items) or "none")


def verbatim(text: str, *, kind: str = "") -> MetadataValue[Any]:
    """A text line by line, whatever it holds: a fence of more marks than stand in it."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return MetadataValue.md(f"{fence}{kind}\n{text}\n{fence}")


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A markdown table; cells lose line breaks."""

    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(map(plain, cells)) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *(line(row) for row in rows)])


def seconds(value: float, digits: int) -> str:
    """With a unit that narrow columns do not part from its number."""
    return f"{value:.{digits}f}\u00a0s"


def _if_known(value: float | None, digits: int) -> str:
    return "?" if value is None else seconds(value, digits)


def span(low: int | None, high: int | None) -> str:
    """`3`, `1-2` or `?`."""
    if low is None or high is None:
        return "?"
    return str(high) if low == high else f"{low}-{high}"


def total(expected_costs: Iterable[ExpectedCost]) -> str:
    """Expected rebalances of all steps together."""
    known = list(expected_costs)
    return span(sum(p.rebalances_min for p in known), sum(p.rebalances_max for p in known))


EXPECTED_COST_HEAD: Final = (
    "rebalances",
    "moved",
    "pause p50",
    "pause p95",
    "settled after",
    "backlog then",
)


def expected_cost_cells(expected_cost: ExpectedCost) -> tuple[str, ...]:
    """Of EXPECTED_COST_HEAD; what cannot be said is `?`."""
    return (
        expected_within(
            expected_cost.rebalances_expected,
            expected_cost.rebalances_min,
            expected_cost.rebalances_max,
        ),
        expected_within(
            expected_cost.moved_expected, expected_cost.moved_min, expected_cost.moved_max
        ),
        _if_known(expected_cost.downtime_s, 2),
        _if_known(expected_cost.downtime_p95_s, 2),
        _if_known(expected_cost.settled_s, 1),
        "?" if expected_cost.backlog is None else f"{expected_cost.backlog:,}",
    )


def plan_table(plan: Plan) -> str:
    """Steps with their expected costs."""
    rows = [
        (
            number,
            step.kind.value,
            ", ".join(map(str, step.slots)) or "none",
            *expected_cost_cells(step.expected_cost),
            " ".join(filter(None, (step.sentence, step.expected_cost.note))),
        )
        for number, step in enumerate(plan.steps, start=1)
    ]
    return markdown(("step", "kind", "slots", *EXPECTED_COST_HEAD, "what happens"), rows)


def ways_table(plan: Plan) -> str:
    """The plan's changes in other ways, its own among them."""
    rows = [
        (
            way.step + 1,
            way.way,
            f"in {seconds(way.starts_in_s, 0)}" if way.starts_in_s else "now",
            way.rebalances,
            way.moved,
            _if_known(way.downtime_s, 2),
            _if_known(way.downtime_p95_s, 2),
            seconds(way.settled_s, 1),
            "?" if way.backlog is None else f"{way.backlog:,}",
            "yes" if way.keeps_limits else "no",
            "taken" * way.taken + ", " * (way.taken and way.cheapest) + "cheapest" * way.cheapest,
        )
        for way in plan.alternatives
    ]
    return markdown(("step", "way", "starts", *EXPECTED_COST_HEAD, "keeps the limits", ""), rows)


def receipts_table(receipts: Iterable[Receipt]) -> str:
    """Expected beside recorded, a row per step."""
    rows = [
        (
            r.step + 1,
            r.kind.value,
            str(r.expected_cost),
            r.ours,
            r.others,
            r.aborted,
            r.moved,
            "none" if r.longest_downtime_s is None else seconds(r.longest_downtime_s, 2),
            _if_known(r.settled_s, 1),
            seconds(r.seconds, 1),
            r.result.value,
            expectation(r.expected_cost) or "?",
            " ".join(r.sentences),
        )
        for r in receipts
    ]
    head = (
        *("step", "kind", "expected", "recorded", "others", "aborted", "moved", "longest pause"),
        *("settled after", "took", "result", "expected_cost", "notes"),
    )
    return markdown(head, rows)


def sentences(*parts: str, group: str = "") -> str:
    """Parts as sentences: a capital in front, one full stop behind, empty ones left out.

    A part that begins with the group's name begins as that does.
    """
    given = [part.strip().rstrip(".") for part in parts]
    named = (group + ":") if group else " "
    return " ".join(
        f"{part}." if part.startswith(named) else f"{part[:1].upper()}{part[1:]}."
        for part in given
        if part
    )


def plan_sentence(plan: Plan) -> str:
    """One line: what the plan does and costs, or why it does nothing."""
    if plan.refusals:
        return sentences("refused: " + " ".join(plan.refusals))
    if plan.empty:
        return f"Nothing to do: {plan.group} is as wanted, with {plan.wanted} slots."
    expected = f"Expected rebalances: {total(s.expected_cost for s in plan.steps)}"
    return sentences(*(step.sentence for step in plan.steps), expected)


def plan_metadata(plan: Plan) -> dict[str, Any]:
    """What the plan asset shows."""
    return {
        "sentence": plan_sentence(plan),
        "plan": MetadataValue.md(plan_table(plan) if plan.steps else "no steps"),
        "other ways": MetadataValue.md(ways_table(plan) if plan.alternatives else "none"),
        "expected rebalances": total(s.expected_cost for s in plan.steps),
        "wanted slots": plan.wanted,
        "steps": len(plan.steps),
        "refusals": listed(plan.refusals),
        "notes": listed(plan.notes),
        "plan id": plan.id,
        "revision": plan.revision,
        "group": plan.group,
        "plan json": MetadataValue.json(as_json(plan)),
    }


def result(change: Change) -> str:
    """The worst result of all receipts; `nothing done` without any."""
    found = {r.result for r in change.receipts}
    for worst in (ReceiptResult.DIFFERS, ReceiptResult.UNVERIFIED, ReceiptResult.EQUAL):
        if worst in found:
            return worst.value
    return "nothing done"


def change_sentence(change: Change) -> str:
    """The change's own sentence, and expected against recorded."""
    if not change.receipts:
        return sentences(change.sentence, group=change.group) or plan_sentence(change.plan)
    recorded = sum(r.ours for r in change.receipts)
    expected = total(r.expected_cost for r in change.receipts)
    noun = "rebalance" if expected == "1" else "rebalances"
    said = f"Expected {expected} {noun}, recorded {recorded}: {result(change)}"
    return sentences(change.sentence, said, group=change.group)


def change_metadata(change: Change) -> dict[str, Any]:
    """What the rollout asset shows: the receipt."""
    receipts = change.receipts
    pauses = [r.longest_downtime_s for r in receipts if r.longest_downtime_s is not None]
    shown: dict[str, Any] = {
        "sentence": change_sentence(change),
        "receipt": MetadataValue.md(receipts_table(receipts) if receipts else "no step was taken"),
        "result": result(change),
        "state": change.state.value,
        "expected rebalances": total(r.expected_cost for r in receipts),
        "recorded rebalances": sum(r.ours for r in receipts),
        "rebalances by others": sum(r.others for r in receipts),
        "partitions moved": sum(r.moved for r in receipts),
        "slots": change.plan.wanted,
        "notes": listed(change.plan.notes),
        "plan": MetadataValue.md(plan_table(change.plan) if change.plan.steps else "no steps"),
        "plan id": change.plan.id,
        "revision": change.plan.revision,
        "actor": change.actor,
        "group": change.group,
    }
    if change.traceback:
        shown["traceback"] = verbatim(change.traceback)
    if pauses:
        shown["longest pause (s)"] = max(pauses)
    return shown


def failure_metadata(change: Change) -> dict[str, Any]:
    """Why a change did not end well, with the worker's error, line by line as it was kept."""
    sentences_of = (s for r in change.receipts for s in r.sentences)
    said = [change.sentence, *sentences_of, change.traceback or ""]
    lines = [text for n, text in enumerate(said) if text and not any(text in s for s in said[:n])]
    return {"error": verbatim("\n".join(lines), kind="text")}
