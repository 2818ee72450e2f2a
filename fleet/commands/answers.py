"""Prints plans, changes and receipts as tables and as JSON; the contract is docs/reference/json.md.

The stored form of a change (fleet.act) may grow. What is printed here keeps its meaning within one
schema version.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fleet.commands.screen import Screen
from fleet.decide.receipts import describe_expected_cost
from fleet.model import ExpectedCost, Plan, Receipt, ReceiptResult, Step
from fleet.slots import Change, ChangeState
from fleet.slots.codec import as_json
from fleet.text import expected_within, numbers_of

_PIPE_WIDTH: Final = 200
_COUNTS: Final = ("rebalances", "external_rebalances", "aborted", "moved")
"""Fields of a receipt that are counted from the coordinator's records."""
_RESULT: Final = {
    ReceiptResult.EQUAL: "[green]equal[/green]",
    ReceiptResult.DIFFERS: "[red]DIFFERS[/red]",
    ReceiptResult.UNVERIFIED: "[yellow]unverified[/yellow]",
}


def stdout() -> Screen:
    """Returns the console of an answer: as wide as the terminal, or 200 columns in a pipe."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Screen(width=width)


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Creates an unboxed table; `right` names the columns of numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        number = column in right  # a wrapped number reads as another number
        made.add_column(
            column, justify="right" if number else "left", overflow="fold", no_wrap=number
        )
    return made


def print_json(answer: dict[str, Any]) -> None:
    """Prints one JSON document on stdout."""
    click.echo(json.dumps(answer, indent=2))


def good(change: Change) -> bool:
    """Tells whether a change ended as planned: done, and no receipt differs."""
    return change.state is ChangeState.DONE and not any(
        receipt.result is ReceiptResult.DIFFERS for receipt in change.receipts
    )


def print_plan(console: Console, plan: Plan) -> None:
    """Prints the plan with its expected cost."""
    slots = f"{plan.wanted} slot{'' if plan.wanted == 1 else 's'}"
    console.print(f"[bold]{escape(plan.group)}[/bold]: {slots} of revision {plan.revision or '-'}")
    noted = any(note.startswith("nothing to do") for note in plan.notes)
    if plan.empty and not plan.refusals and not noted:
        console.print("  nothing to do")
    if plan.steps:
        rows = table(
            "STEP", "KIND", "SLOTS", "REBALANCES", "MOVED", "DOWNTIME", "P95", "SETTLED",
            "BACKLOG", "WHAT", right=("DOWNTIME", "P95", "SETTLED", "BACKLOG"),
        )  # fmt: skip
        for number, step in enumerate(plan.steps, 1):
            what = (str(number), step.kind.value, numbers_of(step.slots))
            rows.add_row(*what, *_expected_cost_row(step.expected_cost), escape(_what(step)))
        console.print(rows)
    _print_ways(console, plan)
    for refusal in plan.refusals:
        console.print(f"  [red]refused[/red]: {escape(refusal)}")
    for note in plan.notes:
        console.print(f"  note: {escape(note)}")


def _print_ways(console: Console, plan: Plan) -> None:
    """Prints other ways to make the plan's changes, beside its own."""
    if not plan.alternatives:
        return
    right = ("REBALANCES", "MOVED", "DOWNTIME", "P95", "SETTLED", "BACKLOG")
    rows = table("STEP", "WAY", "STARTS", *right, "", right=right)
    for each in plan.alternatives:
        marks = ["chosen"] * each.chosen + ["cheapest"] * each.cheapest
        marks += [f"exceeds {limit}" for limit in each.exceeded]
        starts = f"in {each.starts_in_s:.0f} s" if each.starts_in_s else "now"
        figures = (str(each.rebalances), str(each.moved))
        times = (_seconds(t) for t in (each.downtime_s, each.downtime_p95_s, each.settled_s))
        ways = (str(each.step + 1), each.way, starts)
        rows.add_row(*ways, *figures, *times, _count(each.backlog), ", ".join(marks))
    console.print(rows)


def print_change(console: Console, change: Change) -> None:
    """Prints a change: its receipts, then its state in a sentence."""
    print_receipts(console, change)
    if change.traceback is not None:
        print_traceback(console, change.traceback)
    colour = "green" if good(change) else "red"
    console.print(
        f"[bold]{escape(change.group)}[/bold]: [{colour}]{escape(outcome(change))}[/{colour}]"
    )


def print_receipts(console: Console, change: Change) -> None:
    """Prints what the coordinator recorded of a change's steps, beside what was expected."""
    if change.receipts:
        rows = table(
            "STEP", "KIND", "EXPECTED", "RECORDED", "EXTERNAL", "ABORTED", "MOVED", "DOWNTIME",
            "TOOK", "RESULT",
            right=("STEP", "RECORDED", "EXTERNAL", "ABORTED", "MOVED", "DOWNTIME", "TOOK"),
        )  # fmt: skip
        for receipt in change.receipts:
            rows.add_row(*_receipt_row(receipt))
        console.print(rows)
    for receipt in change.receipts:
        if expected := describe_expected_cost(receipt.expected_cost):
            console.print(f"  step {receipt.step + 1}: expected {expected}")
        if receipt.settled_s is not None:
            console.print(f"  step {receipt.step + 1}: settled after {receipt.settled_s:.1f} s")
        for sentence in receipt.sentences:
            console.print(f"  step {receipt.step + 1}: {escape(sentence)}")


def print_failed(console: Console, change: Change | None) -> None:
    """Prints that the same revision failed before, and why."""
    if change is not None:
        console.print(f"  [red]failed before[/red]: {escape(outcome(change))}")
        if change.traceback is not None:
            print_traceback(console, change.traceback)


def print_traceback(console: Console, traceback: str, *, lines: int = 60) -> None:
    """Prints the job's traceback, indented; of a long one only the end, where the error is."""
    shown = traceback.splitlines()
    if len(shown) > lines:
        left_out = len(shown) - lines
        shown = [f"… {left_out} lines left out: `fleet logs GROUP` prints them …", *shown[-lines:]]
    for line in shown:
        console.print(f"    {escape(line)}", soft_wrap=True)


def outcome(change: Change) -> str:
    """Joins state and sentence of a change, without a repeated word."""
    state, sentence = change.state.value, change.sentence
    if not sentence or sentence.startswith(state):
        return sentence or state
    return f"{state}: {sentence}"


def _receipt_row(receipt: Receipt) -> list[str]:
    unverified = receipt.result is ReceiptResult.UNVERIFIED
    return [
        str(receipt.step + 1),
        receipt.kind.value,
        str(receipt.expected_cost),
        *("-" if unverified else str(getattr(receipt, name)) for name in _COUNTS),
        _seconds(receipt.longest_downtime_s),
        f"{receipt.seconds:.1f} s",
        _RESULT[receipt.result],
    ]


def _expected_cost_row(expected_cost: ExpectedCost) -> list[str]:
    times = (expected_cost.downtime_s, expected_cost.downtime_p95_s, expected_cost.settled_s)
    return [
        expected_within(
            expected_cost.rebalances_expected,
            expected_cost.rebalances_min,
            expected_cost.rebalances_max,
        ),
        expected_within(
            expected_cost.moved_expected, expected_cost.moved_min, expected_cost.moved_max
        ),
        *map(_seconds, times),
        _count(expected_cost.backlog),
    ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _what(step: Step) -> str:
    return (
        f"{step.sentence} ({step.expected_cost.note})" if step.expected_cost.note else step.sentence
    )


def as_answer(
    value: object, *only: str, names: Mapping[str, str] = MappingProxyType({}), **more: object
) -> dict[str, Any]:
    """Converts a value to the contract's form: all its fields or `only` these, and `more`.

    `x_s` becomes `x_seconds`, `tp` a topic and a partition, others as in `names`. If the value is
    None, each of `only` is null.
    """
    found = {} if value is None else as_json(value, *only)
    found |= {name: getattr(value, name, None) for name in only if name not in found}
    return {names.get(key, key): each for key, each in _in_full(found).items()} | more


def _in_full(value: Any) -> Any:
    if isinstance(value, dict):
        value = {**value.pop("tp", {}), **value}
        return {re.sub("_s$", "_seconds", key): _in_full(each) for key, each in value.items()}
    return [_in_full(each) for each in value] if isinstance(value, list) else value


def previous_failure(change: Change | None, plan: Plan) -> Change | None:
    """Returns the group's last change if it failed to bring the plan's revision."""
    if change is None or change.plan.revision != plan.revision or not plan.steps:
        return None
    return change if change.state in {ChangeState.ROLLED_BACK, ChangeState.FAILED} else None


def failed_answer(change: Change | None) -> dict[str, Any] | None:
    """Returns the JSON of `previous_failure`."""
    if change is None:
        return None
    known = change_answer(change)
    return {key: known[key] for key in ("plan_id", "state", "sentence", "ended_at", "traceback")}


def change_answer(change: Change) -> dict[str, Any]:
    """Returns the JSON of a change, without its plan."""
    return as_answer(
        change,
        *("group", "state", "sentence", "actor", "step", "started_at", "ended_at", "traceback"),
        plan_id=change.plan.id,
        steps=len(change.plan.steps),
        receipts=[receipt_answer(receipt) for receipt in change.receipts],
    )


def receipt_answer(receipt: Receipt) -> dict[str, Any]:
    """Returns the JSON of a receipt; counts are null if they could not be verified."""
    uncounted = _COUNTS if receipt.result is ReceiptResult.UNVERIFIED else ()
    return as_answer(receipt) | dict.fromkeys(uncounted)
