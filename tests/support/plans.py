"""Plans, changes and receipts of which a test says only what matters to it."""

from collections.abc import Iterable
from typing import Any

from fleet.model import ExpectedCost, Plan, Receipt, ReceiptResult, Step, StepKind
from fleet.slots import Change, ChangeState

FREE = ExpectedCost(rebalances_min=0, rebalances_max=0)
ONE = ExpectedCost(rebalances_min=1, rebalances_max=1)
TWO = ExpectedCost(rebalances_min=2, rebalances_max=2)
_USUAL = {StepKind.OPEN: ONE, StepKind.LEAVE: ONE, StepKind.REJOIN: ONE, StepKind.STOP_ALL: ONE}


def step_of(
    kind: StepKind,
    slots: Iterable[int],
    revision: str = "new",
    expected_cost: ExpectedCost | None = None,
) -> Step:
    """One step with its usual expected cost."""
    return Step(
        kind=kind,
        slots=tuple(slots),
        revision=revision,
        expected_cost=expected_cost or _USUAL.get(kind, FREE),
        sentence=str(kind),
    )


def plan_of(*steps: Step, group: str = "orders", **fields: Any) -> Plan:
    """These steps; wanted 1, of the last step's revision."""
    usual: dict[str, Any] = {
        "id": "p",
        "cluster": "main",
        "created_at": 0.0,
        "snapshot_at": 0.0,
        "wanted": 1,
        "revision": steps[-1].revision if steps else "r",
    }
    return Plan(group=group, steps=steps, **{**usual, **fields})


def receipt_of(plan: Plan, *, rebalances: int = 1, **fields: Any) -> Receipt:
    """Of the plan's first step, at its expected cost unless said otherwise."""
    step = plan.steps[0]
    usual: dict[str, Any] = {
        "external_rebalances": 0,
        "aborted": 0,
        "moved": 0,
        "longest_downtime_s": None,
        "from_generation": 1,
        "to_generation": 1 + rebalances,
        "started_at": 100.0,
        "seconds": 60.0,
        "result": ReceiptResult.EQUAL,
    }
    return Receipt(
        plan_id=plan.id,
        group=plan.group,
        step=0,
        kind=step.kind,
        expected_cost=step.expected_cost,
        rebalances=rebalances,
        **{**usual, **fields},
    )


def change_of(plan: Plan, state: ChangeState, *receipts: Receipt, **fields: Any) -> Change:
    """Of a plan, as far as there are receipts of it."""
    usual: dict[str, Any] = {
        "actor": "ann",
        "token": 1,
        "counter": 1,
        "step": len(receipts),
        "started_at": 100.0,
        "ended_at": None if state is ChangeState.RUNNING else 160.0,
    }
    return Change(
        group=plan.group, plan=plan, state=state, receipts=receipts, **{**usual, **fields}
    )
