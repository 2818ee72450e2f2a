"""Plans, changes and receipts as people read them and as JSON; the contract is docs/json.md.

The stored form of a change (fleet.act) may grow with what a performer has to remember; what
is printed here may not change its meaning within one schema version.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from fleet.model import Plan, Price, Receipt, Step, Verdict
from fleet.slots import Change, ChangeState
from fleet.text import numbers_of

_PIPE_WIDTH: Final = 200
_VERDICT: Final = {
    Verdict.EQUAL: "[green]equal[/green]",
    Verdict.DIFFERS: "[red]DIFFERS[/red]",
    Verdict.UNVERIFIED: "[yellow]unverified[/yellow]",
}


def stdout() -> Console:
    """The console of an answer: a terminal's own width, wide enough not to wrap in a pipe."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(highlight=False, width=width)


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """An unboxed table; `right` names the columns of numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        number = column in right  # a number that is broken is another number
        made.add_column(
            column, justify="right" if number else "left", overflow="fold", no_wrap=number
        )
    return made


def print_json(answer: dict[str, Any]) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(answer, indent=2))


def good(change: Change) -> bool:
    """Whether a change ended as planned: done, and no receipt differs."""
    return change.state is ChangeState.DONE and not any(
        receipt.verdict is Verdict.DIFFERS for receipt in change.receipts
    )


def print_plan(console: Console, plan: Plan) -> None:
    """The plan with its price, before anything is done."""
    slots = f"{plan.wanted} slot{'' if plan.wanted == 1 else 's'}"
    console.print(f"[bold]{_plain(plan.group)}[/bold]: {slots} of revision {plan.revision or '-'}")
    told = any(note.startswith("nothing to do") for note in plan.notes)
    if plan.empty and not plan.refusals and not told:
        console.print("  nothing to do")
    if plan.steps:
        rows = table("STEP", "KIND", "SLOTS", "REBALANCES", "MOVED", "PAUSE", "WHAT")
        for number, step in enumerate(plan.steps, 1):
            rows.add_row(
                str(number),
                step.kind.value,
                numbers_of(step.slots),
                str(step.price),
                _moved(step.price),
                "-" if step.price.pause_s is None else f"{step.price.pause_s:.1f} s",
                _plain(_what(step)),
            )
        console.print(rows)
    for refusal in plan.refusals:
        console.print(f"  [red]refused[/red]: {_plain(refusal)}")
    for note in plan.notes:
        console.print(f"  note: {_plain(note)}")


def print_change(console: Console, change: Change) -> None:
    """What a change came to: its receipts, then its state in a sentence."""
    if change.receipts:
        rows = table(
            "STEP", "KIND", "EXPECTED", "RECORDED", "OTHERS", "ABORTED", "MOVED", "PAUSE", "TOOK",
            "RECEIPT", right=("STEP", "RECORDED", "OTHERS", "ABORTED", "MOVED", "PAUSE", "TOOK"),
        )  # fmt: skip
        for receipt in change.receipts:
            rows.add_row(*_receipt_row(receipt))
        console.print(rows)
    for receipt in change.receipts:
        for sentence in receipt.sentences:
            console.print(f"  step {receipt.step + 1}: {_plain(sentence)}")
    if change.traceback is not None:
        print_traceback(console, change.traceback)
    colour = "green" if good(change) else "red"
    console.print(
        f"[bold]{_plain(change.group)}[/bold]: [{colour}]{_plain(outcome(change))}[/{colour}]"
    )


def print_failed(console: Console, change: Change | None) -> None:
    """That the same revision was tried before, and why it did not go well."""
    if change is not None:
        console.print(f"  [red]tried before[/red]: {_plain(outcome(change))}")
        if change.traceback is not None:
            print_traceback(console, change.traceback)


def print_traceback(console: Console, traceback: str, *, lines: int = 60) -> None:
    """What the job's own code said, indented; of a long one the end, where the error is."""
    told = traceback.splitlines()
    if len(told) > lines:
        left_out = len(told) - lines
        told = [f"… {left_out} lines left out: `fleet logs` has them …", *told[-lines:]]
    for line in told:
        console.print(f"    {_plain(line)}", soft_wrap=True)


def outcome(change: Change) -> str:
    """State and sentence of a change, without saying the same word twice."""
    state, sentence = change.state.value, change.sentence
    if not sentence or sentence.startswith(state):
        return sentence or state
    return f"{state}: {sentence}"


def _receipt_row(receipt: Receipt) -> list[str]:
    unverified = receipt.verdict is Verdict.UNVERIFIED
    pause = receipt.longest_pause_s
    return [
        str(receipt.step + 1),
        receipt.kind.value,
        str(receipt.price),
        "-" if unverified else str(receipt.ours),
        "-" if unverified else str(receipt.others),
        "-" if unverified else str(receipt.aborted),
        "-" if unverified else str(receipt.moved),
        "-" if pause is None else f"{pause:.2f} s",
        f"{receipt.seconds:.1f} s",
        _VERDICT[receipt.verdict],
    ]


def _moved(price: Price) -> str:
    if price.moved_max is None:
        return "?"
    if price.moved_min in (None, price.moved_max):
        return str(price.moved_max)
    return f"{price.moved_min}-{price.moved_max}"


def _what(step: Step) -> str:
    return f"{step.sentence} ({step.price.note})" if step.price.note else step.sentence


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def plan_answer(plan: Plan) -> dict[str, Any]:
    """A plan in the contract's form."""
    return {
        "id": plan.id,
        "cluster": plan.cluster,
        "group": plan.group,
        "created_at": plan.created_at,
        "snapshot_at": plan.snapshot_at,
        "wanted": plan.wanted,
        "revision": plan.revision,
        "steps": [_step_answer(step) for step in plan.steps],
        "refusals": list(plan.refusals),
        "notes": list(plan.notes),
    }


def _step_answer(step: Step) -> dict[str, Any]:
    return {
        "kind": step.kind.value,
        "slots": list(step.slots),
        "revision": step.revision,
        "sentence": step.sentence,
        "price": _price_answer(step.price),
    }


def _price_answer(price: Price) -> dict[str, Any]:
    return {
        "rebalances_min": price.rebalances_min,
        "rebalances_max": price.rebalances_max,
        "moved_min": price.moved_min,
        "moved_max": price.moved_max,
        "pause_seconds": price.pause_s,
        "note": price.note,
    }


def failed_before(change: Change | None, plan: Plan) -> Change | None:
    """The group's last change, where it was to the plan's revision and did not go well."""
    if change is None or change.plan.revision != plan.revision or not plan.steps:
        return None
    return change if change.state in {ChangeState.ROLLED_BACK, ChangeState.FAILED} else None


def failed_answer(change: Change | None) -> dict[str, Any] | None:
    """The contract's form of `failed_before`."""
    if change is None:
        return None
    return {
        "plan_id": change.plan.id,
        "state": change.state.value,
        "sentence": change.sentence,
        "ended_at": change.ended_at,
        "traceback": change.traceback,
    }


def change_answer(change: Change) -> dict[str, Any]:
    """A change in the contract's form: the plan that was performed is `plan`."""
    return {
        "group": change.group,
        "plan_id": change.plan.id,
        "state": change.state.value,
        "sentence": change.sentence,
        "actor": change.actor,
        "step": change.step,
        "steps": len(change.plan.steps),
        "started_at": change.started_at,
        "ended_at": change.ended_at,
        "receipts": [receipt_answer(receipt) for receipt in change.receipts],
        "traceback": change.traceback,
    }


def receipt_answer(receipt: Receipt) -> dict[str, Any]:
    """A receipt in the contract's form; counts are null where they could not be verified."""
    unverified = receipt.verdict is Verdict.UNVERIFIED
    return {
        "plan_id": receipt.plan_id,
        "group": receipt.group,
        "step": receipt.step,
        "kind": receipt.kind.value,
        "price": _price_answer(receipt.price),
        "ours": None if unverified else receipt.ours,
        "others": None if unverified else receipt.others,
        "aborted": None if unverified else receipt.aborted,
        "moved": None if unverified else receipt.moved,
        "longest_pause_seconds": receipt.longest_pause_s,
        "from_generation": receipt.from_generation,
        "to_generation": receipt.to_generation,
        "started_at": receipt.started_at,
        "seconds": receipt.seconds,
        "verdict": receipt.verdict.value,
        "sentences": list(receipt.sentences),
    }
