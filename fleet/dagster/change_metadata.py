"""Builds the Dagster metadata of plans and receipts: sentences, tables, numbers, JSON.

The web page shows text and numbers at once and plots numbers over time; tables and JSON open on a
click. So important facts are sentences, and every count is a number. Sentences contain client ids,
which any member may choose: this module escapes pictures, links and tags in markdown. The page
shows cells of tables as they are.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dagster import MetadataValue, TableColumn, TableRecord, TableSchema

from fleet.decide.receipts import describe_expected_cost
from fleet.decide.scaling import restraint_note
from fleet.model import Alternative, ExpectedCost, Plan, Receipt, ReceiptResult
from fleet.slots import Change
from fleet.slots.codec import as_json
from fleet.text import expected_within

_ACTIVE: Final = str.maketrans({"[": "&#91;", "<": "&lt;"})
"""Escapes for links, pictures and tags. Entities, because a backslash can be escaped."""


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


_KINDS: Final = {bool: "bool", int: "int", float: "float"}


def table_of(rows: Iterable[Mapping[str, str | float | None]]) -> MetadataValue[Any]:
    """Renders a table; the first value of a column tells its type, and None is an empty cell."""
    shown = [dict(row) for row in rows]
    kinds = dict.fromkeys(shown[0] if shown else (), "string")
    for row in reversed(shown):
        kinds |= {k: _KINDS.get(type(v), "string") for k, v in row.items() if v is not None}
    schema = TableSchema([TableColumn(name, kind) for name, kind in kinds.items()])
    return MetadataValue.table([TableRecord(row) for row in shown], schema)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def count_range(low: int | None, high: int | None) -> str:
    """Formats a range as `3`, `1-2` or `?`."""
    if low is None or high is None:
        return "?"
    return str(high) if low == high else f"{low}-{high}"


def _costs(cost: ExpectedCost | Alternative) -> dict[str, float | None]:
    return {
        "downtime p50 (s)": _rounded(cost.downtime_s, 2),
        "downtime p95 (s)": _rounded(cost.downtime_p95_s, 2),
        "settled after (s)": _rounded(cost.settled_s, 1),
        "backlog then": cost.backlog,
    }


def plan_table(plan: Plan) -> MetadataValue[Any]:
    """Renders the steps with their expected costs."""
    return table_of(
        {
            "step": number,
            "kind": step.kind.value,
            "slots": ", ".join(map(str, step.slots)) or "none",
            "rebalances": expected_within(
                cost.rebalances_expected, cost.rebalances_min, cost.rebalances_max
            ),
            "moved": expected_within(cost.moved_expected, cost.moved_min, cost.moved_max),
            **_costs(cost),
        }
        for number, step in enumerate(plan.steps, start=1)
        for cost in (step.expected_cost,)
    )


def ways_table(plan: Plan) -> MetadataValue[Any]:
    """Renders the alternatives of a plan, with the chosen one."""
    return table_of(
        {
            "step": way.step + 1,
            "way": way.way,
            "starts in (s)": round(way.starts_in_s, 1),
            "rebalances": way.rebalances,
            "moved": way.moved,
            **_costs(way),
            "keeps the limits": way.keeps_limits,
            "chosen": way.chosen,
            "cheapest": way.cheapest,
        }
        for way in plan.alternatives
    )


def receipts_table(receipts: Iterable[Receipt]) -> MetadataValue[Any]:
    """Renders expected and recorded figures, a row per step."""
    return table_of(
        {
            "step": r.step + 1,
            "kind": r.kind.value,
            "expected": str(r.expected_cost),
            "recorded": r.rebalances,
            "external": r.external_rebalances,
            "aborted": r.aborted,
            "moved": r.moved,
            "longest downtime (s)": _rounded(r.longest_downtime_s, 2),
            "settled after (s)": _rounded(r.settled_s, 1),
            "took (s)": round(r.seconds, 1),
            "result": r.result.value,
        }
        for r in receipts
    )


def receipt_notes(receipts: Iterable[Receipt]) -> list[str]:
    """Returns what is too long for a cell: the expected cost of each step, and its sentences."""
    notes: list[str] = []
    for each in receipts:
        if cost := describe_expected_cost(each.expected_cost):
            notes.append(f"Expected cost: {cost}.")
        notes += each.sentences
    return notes


def total_rebalances(expected_costs: Iterable[ExpectedCost]) -> str:
    """Sums the expected rebalances of all steps."""
    known = list(expected_costs)
    return count_range(sum(p.rebalances_min for p in known), sum(p.rebalances_max for p in known))


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
        if held := restraint_note(plan.notes):
            return join_sentences(held)
        return f"Nothing to do: {plan.group} has the wanted {plan.wanted} slots."
    expected = f"Expected rebalances: {total_rebalances(s.expected_cost for s in plan.steps)}"
    return join_sentences(*(step.sentence for step in plan.steps), expected)


def plan_metadata(plan: Plan) -> dict[str, Any]:
    """Builds the metadata of the plan asset."""
    return {
        "sentence": plan_sentence(plan),
        "plan": plan_table(plan),
        "what happens": bullet_list(
            " ".join(filter(None, (step.sentence, step.expected_cost.note))) for step in plan.steps
        ),
        "other ways": ways_table(plan),
        "expected rebalances": total_rebalances(s.expected_cost for s in plan.steps),
        "expected rebalances, at most": sum(s.expected_cost.rebalances_max for s in plan.steps),
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
        "receipt": receipts_table(receipts),
        "result": worst_result(change),
        "state": change.state.value,
        "expected rebalances": total_rebalances(r.expected_cost for r in receipts),
        "recorded rebalances": sum(r.rebalances for r in receipts),
        "external rebalances": sum(r.external_rebalances for r in receipts),
        "partitions moved": sum(r.moved for r in receipts),
        "slots": change.plan.wanted,
        "notes": bullet_list((*receipt_notes(receipts), *change.plan.notes)),
        "plan": plan_table(change.plan),
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
