"""Values that several tests of this folder need."""

from pathlib import Path

from fleet.config.load import load
from fleet.config.spec import FleetSpec, GroupSpec
from fleet.model import ExpectedCost, Plan, Receipt, ReceiptResult, Step, StepKind
from fleet.slots import Change, ChangeState
from tests.support.plans import change_of, plan_of, receipt_of

FLEET_YAML = Path(__file__).with_name("fleet.yaml")


def spec() -> FleetSpec:
    """The fleets of this folder's fleet.yaml."""
    return load(FLEET_YAML, {})


def group(name: str = "orders-enrichment") -> GroupSpec:
    """One of them."""
    found = spec().fleet(name)
    assert found is not None
    return found


def step(kind: StepKind = StepKind.OPEN, slots: tuple[int, ...] = (0, 1)) -> Step:
    """A step that expects one rebalance."""
    return Step(
        kind=kind,
        slots=slots,
        revision="abc",
        expected_cost=ExpectedCost(rebalances_min=1, rebalances_max=2),
        sentence=f"Do {kind.value}.",
    )


def plan(*steps: Step, refusals: tuple[str, ...] = (), wanted: int = 2) -> Plan:
    """A plan for the first group."""
    usual = {"group": "orders-enrichment", "id": "plan-1", "revision": "abc"}
    return plan_of(*steps, wanted=wanted, refusals=refusals, **usual)


def receipt(result: ReceiptResult, *, rebalances: int = 1) -> Receipt:
    """The receipt of the first step."""
    return receipt_of(
        plan(step()),
        rebalances=rebalances,
        moved=6,
        longest_downtime_s=0.25,
        started_at=1000.0,
        seconds=3.0,
        settled_s=1.25,
        result=result,
        sentences=("Joined within 12 ms.",),
    )


def change(
    state: ChangeState, *receipts: Receipt, actor: str = "dagster run r1", counter: int = 3
) -> Change:
    """A change of the first group."""
    told = {"actor": actor, "counter": counter, "sentence": "Opened 2 slots."}
    return change_of(plan(step()), state, *receipts, started_at=1000.0, **told)
