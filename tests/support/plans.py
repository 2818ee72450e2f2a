"""Plans and steps of which a test says only what matters to it."""

from collections.abc import Iterable
from typing import Any

from fleet.model import Plan, Price, Step, StepKind

FREE = Price(rebalances_min=0, rebalances_max=0)
ONE = Price(rebalances_min=1, rebalances_max=1)
TWO = Price(rebalances_min=2, rebalances_max=2)
_USUAL = {
    StepKind.OPEN: ONE,
    StepKind.LEAVE: ONE,
    StepKind.REJOIN: ONE,
    StepKind.STOP_ALL: ONE,
}


def step_of(
    kind: StepKind, slots: Iterable[int], revision: str = "new", price: Price | None = None
) -> Step:
    """One step with its usual price."""
    return Step(
        kind=kind,
        slots=tuple(slots),
        revision=revision,
        price=price or _USUAL.get(kind, FREE),
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
