"""Values that several tests of this folder need."""

from pathlib import Path

from fleet.config.load import load
from fleet.config.spec import FleetSpec, GroupSpec
from fleet.model import Plan, Price, Receipt, Step, StepKind, Verdict
from fleet.slots import Change, ChangeState

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
        price=Price(rebalances_min=1, rebalances_max=2),
        sentence=f"Do {kind.value}.",
    )


def plan(*steps: Step, refusals: tuple[str, ...] = (), wanted: int = 2) -> Plan:
    """A plan for the first group."""
    return Plan(
        id="plan-1",
        cluster="main",
        group="orders-enrichment",
        created_at=1000.0,
        snapshot_at=1000.0,
        wanted=wanted,
        revision="abc",
        steps=steps,
        refusals=refusals,
    )


def receipt(verdict: Verdict, *, ours: int = 1) -> Receipt:
    """The receipt of the first step."""
    return Receipt(
        plan_id="plan-1",
        group="orders-enrichment",
        step=0,
        kind=StepKind.OPEN,
        price=Price(rebalances_min=1, rebalances_max=2),
        ours=ours,
        others=0,
        aborted=0,
        moved=6,
        longest_pause_s=0.25,
        from_generation=1,
        to_generation=1 + ours,
        started_at=1000.0,
        seconds=3.0,
        verdict=verdict,
        sentences=("Joined within 12 ms.",),
    )


def change(
    state: ChangeState, *receipts: Receipt, actor: str = "dagster run r1", counter: int = 3
) -> Change:
    """A change of the first group."""
    return Change(
        group="orders-enrichment",
        plan=plan(step()),
        state=state,
        actor=actor,
        token=1,
        counter=counter,
        step=len(receipts),
        started_at=1000.0,
        ended_at=None if state is ChangeState.RUNNING else 1010.0,
        receipts=receipts,
        sentence="Opened 2 slots.",
    )
