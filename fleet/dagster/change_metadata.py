"""Builds the Dagster metadata of plans and receipts: sentences, markdown tables, JSON.

The web page shows text and numbers at once and plots numbers over time; tables and JSON open on a
click. So important facts are sentences, and every count is a number. Sentences contain client ids,
which any member may choose: this module escapes pictures, links and tags in markdown.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dagster import MetadataValue

from fleet.decide.receipts import describe_expected_cost
from fleet.model import ExpectedCost, Plan, Receipt, ReceiptResult
from fleet.slots import Change
from fleet.slots.codec import as_json
from fleet.text import expected_within

_ACTIVE: Final = str.maketrans({"[": "&#91;", "<": "&lt;", "|": "&#124;"})
"""Escapes for links, pictures, tags and cells. Entities, because a backslash can be escaped."""


def escape_markdown(text: object) -> str:
    """Escapes a text as one line of markdown."""
    return " ".join(str(text).split("\n")).translate(_ACTIVE)


def bullet_list(items: Iterable[str]) -> MetadataValue[Any]:
    """Renders a bullet list."""
    return MetadataValue.md("\n".join(f"- {escape_markdown(each)}" for each in items) or "none")


def code_block(text: str, *, kind: str = "") -> MetadataValue[Any]:
    """Renders a text as a code block, with a longer fence than any in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return MetadataValue.md(f"{fence}{kind}\n{text}\n{fence}")


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Renders a markdown table; cells lose their line breaks."""

    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(map(escape_markdown, cells)) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *(line(row) for row in rows)])


def seconds_text(value: float, digits: int) -> str:
    """Formats seconds with a non-breaking space before the unit."""
    return f"{value:.{digits}f}\u00a0s"


def _if_known(value: float | None, digits: int) -> str:
    return "?" if value is None else seconds_text(value, digits)


def count_range(low: int | None, high: int | None) -> str:
    """Formats a range as `3`, `1-2` or `?`."""
    if low is None or high is None:
        return "?"
    return str(high) if low == high else f"{low}-{high}"


def total_rebalances(expected_costs: Iterable[ExpectedCost]) -> str:
    """Sums the expected rebalances of all steps."""
    known = list(expected_costs)
    return count_range(sum(p.rebalances_min for p in known), sum(p.rebalances_max for p in known))


EXPECTED_COST_HEAD: Final = (
    "rebalances",
    "moved",
    "downtime p50",
    "downtime p95",
    "settled after",
    "backlog then",
)


def expected_cost_cells(expected_cost: ExpectedCost) -> tuple[str, ...]:
    """Returns the cells of EXPECTED_COST_HEAD; an unknown figure is `?`."""
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
    """Renders the steps with their expected costs."""
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
    """Renders the alternatives of a plan, with the chosen one."""
    rows = [
        (
            way.step + 1,
            way.way,
            f"in {seconds_text(way.starts_in_s, 0)}" if way.starts_in_s else "now",
            way.rebalances,
            way.moved,
            _if_known(way.downtime_s, 2),
            _if_known(way.downtime_p95_s, 2),
            seconds_text(way.settled_s, 1),
            "?" if way.backlog is None else f"{way.backlog:,}",
            "yes" if way.keeps_limits else "no",
            ", ".join(["chosen"] * way.chosen + ["cheapest"] * way.cheapest),
        )
        for way in plan.alternatives
    ]
    return markdown(("step", "way", "starts", *EXPECTED_COST_HEAD, "keeps the limits", ""), rows)


def receipts_table(receipts: Iterable[Receipt]) -> str:
    """Renders expected and recorded figures, a row per step."""
    rows = [
        (
            r.step + 1,
            r.kind.value,
            str(r.expected_cost),
            r.rebalances,
            r.external_rebalances,
            r.aborted,
            r.moved,
            "none" if r.longest_downtime_s is None else seconds_text(r.longest_downtime_s, 2),
            _if_known(r.settled_s, 1),
            seconds_text(r.seconds, 1),
            r.result.value,
            describe_expected_cost(r.expected_cost) or "?",
            " ".join(r.sentences),
        )
        for r in receipts
    ]
    head = (
        *("step", "kind", "expected", "recorded", "external", "aborted", "moved"),
        *("longest downtime", "settled after", "took", "result", "expected cost", "notes"),
    )
    return markdown(head, rows)


def join_sentences(*parts: str, group: str = "") -> str:
    """Joins parts as sentences: a capital first, a full stop last, without empty parts.

    A part that begins with the group's name keeps its case.
    """
    given = [part.strip().rstrip(".") for part in parts]
    named = (group + ":") if group else " "
    return " ".join(
        f"{part}." if part.startswith(named) else f"{part[:1].upper()}{part[1:]}."
        for part in given
        if part
    )


def plan_sentence(plan: Plan) -> str:
    """Describes in one line what the plan does and costs, or why it does nothing."""
    if plan.refusals:
        return join_sentences("refused: " + " ".join(plan.refusals))
    if plan.empty:
        return f"Nothing to do: {plan.group} has the wanted {plan.wanted} slots."
    expected = f"Expected rebalances: {total_rebalances(s.expected_cost for s in plan.steps)}"
    return join_sentences(*(step.sentence for step in plan.steps), expected)


def plan_metadata(plan: Plan) -> dict[str, Any]:
    """Builds the metadata of the plan asset."""
    return {
        "sentence": plan_sentence(plan),
        "plan": MetadataValue.md(plan_table(plan) if plan.steps else "no steps"),
        "other ways": MetadataValue.md(ways_table(plan) if plan.alternatives else "none"),
        "expected rebalances": total_rebalances(s.expected_cost for s in plan.steps),
        "wanted slots": plan.wanted,
        "steps": len(plan.steps),
        "refusals": bullet_list(plan.refusals),
        "notes": bullet_list(plan.notes),
        "plan id": plan.id,
        "revision": plan.revision,
        "group": plan.group,
        "plan json": MetadataValue.json(as_json(plan)),
    }


def worst_result(change: Change) -> str:
    """Returns the worst result of all receipts; `nothing done` without any."""
    found = {r.result for r in change.receipts}
    for worst in (ReceiptResult.DIFFERS, ReceiptResult.UNVERIFIED, ReceiptResult.EQUAL):
        if worst in found:
            return worst.value
    return "nothing done"


def change_sentence(change: Change) -> str:
    """Returns the change's sentence, with expected and recorded rebalances."""
    if not change.receipts:
        return join_sentences(change.sentence, group=change.group) or plan_sentence(change.plan)
    recorded = sum(r.rebalances for r in change.receipts)
    expected = total_rebalances(r.expected_cost for r in change.receipts)
    noun = "rebalance" if expected == "1" else "rebalances"
    said = f"Expected {expected} {noun}, recorded {recorded}: {worst_result(change)}"
    return join_sentences(change.sentence, said, group=change.group)


def change_metadata(change: Change) -> dict[str, Any]:
    """Builds the metadata of the rollout asset: the receipt."""
    receipts = change.receipts
    downtimes = [r.longest_downtime_s for r in receipts if r.longest_downtime_s is not None]
    shown: dict[str, Any] = {
        "sentence": change_sentence(change),
        "receipt": MetadataValue.md(receipts_table(receipts) if receipts else "no step was taken"),
        "result": worst_result(change),
        "state": change.state.value,
        "expected rebalances": total_rebalances(r.expected_cost for r in receipts),
        "recorded rebalances": sum(r.rebalances for r in receipts),
        "external rebalances": sum(r.external_rebalances for r in receipts),
        "partitions moved": sum(r.moved for r in receipts),
        "slots": change.plan.wanted,
        "notes": bullet_list(change.plan.notes),
        "plan": MetadataValue.md(plan_table(change.plan) if change.plan.steps else "no steps"),
        "plan id": change.plan.id,
        "revision": change.plan.revision,
        "actor": change.actor,
        "group": change.group,
    }
    if change.traceback:
        shown["traceback"] = code_block(change.traceback)
    if downtimes:
        shown["longest downtime (s)"] = max(downtimes)
    return shown


def failure_metadata(change: Change) -> dict[str, Any]:
    """Builds the metadata of a failed change: why, and the worker's error as it was stored."""
    sentences = (s for r in change.receipts for s in r.sentences)
    texts = [change.sentence, *sentences, change.traceback or ""]
    lines = [text for n, text in enumerate(texts) if text and not any(text in s for s in texts[:n])]
    return {"error": code_block("\n".join(lines), kind="text")}
