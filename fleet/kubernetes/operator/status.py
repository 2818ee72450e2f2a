"""Computes the status of a ConsumerFleet: what `kubectl get`, Argo CD and Helm read. Pure.

Conditions follow kstatus: Reconciling while a change runs, Stalled if a person has to act, and
Ready once every open slot has a worker that has committed or polled.
"""

from dataclasses import dataclass
from typing import Any

from fleet.kubernetes.client.api import Object, timestamp
from fleet.kubernetes.leases.lease_objects import shortened
from fleet.kubernetes.operator.resource import DeclaredFleet
from fleet.slots import Change, ChangeState, Phase, Slot, SlotTargets, WorkerProcess, WorkerReport


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOutcome:
    """What one pass of the operator over a resource came to."""

    reason: str
    """One word for programs, such as `Paused`."""
    message: str
    reconciling: bool = False
    stalled: bool = False
    unknown: bool = False
    """Kafka or the API server does not answer, so that nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """What Fleet stores of a group, and its lag."""

    targets: SlotTargets
    selector: str = ""
    """Selects the pods that own a slot."""
    slots: tuple[Slot, ...] = ()
    reports: tuple[WorkerReport, ...] = ()
    workers: tuple[WorkerProcess, ...] = ()
    change: Change | None = None
    lag: int | None = None
    storm: bool = False

    @property
    def open(self) -> frozenset[int]:
        """Returns the open slots without quarantined ones."""
        return self.targets.open - self.targets.quarantined

    @property
    def owners(self) -> dict[str, int]:
        """Returns the slot of each worker that owns one."""
        return {s.owner: s.number for s in self.slots if s.owner and not s.owner_ended}

    @property
    def ready(self) -> int:
        """Counts open slots whose owner has committed or polled."""
        active = {s.number for s in self.slots if s.phase is Phase.ACTIVE and not s.owner_ended}
        return len(active & self.open)

    @property
    def standbys(self) -> int:
        """Counts warm workers without a slot."""
        running = {w.name for w in self.workers if w.running}
        return sum(r.phase == "standby" and r.worker in running for r in self.reports)


def status_of(
    declared: DeclaredFleet, view: FleetView | None, outcome: PassOutcome, *, now: float
) -> Object:
    """Returns the status; without a view, what was known before stays."""
    made: Object = {"observedGeneration": declared.generation}
    if view is not None:
        made |= {
            "replicas": len(view.owners),
            "selector": view.selector,
            "slots": {"open": len(view.open), "owned": len(view.owners), "ready": view.ready},
            "standbys": view.standbys,
            "storm": view.storm,
            "lag": None if view.lag is None else _rounded(view.lag),
            **_change(view.change),
        }
    made["conditions"] = _conditions(declared, view, outcome, now)
    return made


def news_of(status: Object) -> Object:
    """Returns what is written at once if it changes; the lag alone waits."""
    return {key: value for key, value in status.items() if key != "lag"}


def _rounded(count: int) -> int:
    """Returns a number by its two leading digits."""
    size: int = 10 ** max(0, len(str(count)) - 2)
    return count // size * size


def _change(change: Change | None) -> dict[str, Any]:
    if change is None:
        return {}
    made: dict[str, Any] = {
        "change": {
            "plan": change.plan.id,
            "state": change.state.value,
            "step": f"{min(change.step + 1, len(change.plan.steps))}/{len(change.plan.steps)}",
            "message": shortened(change.sentence),
            "actor": change.actor,
            "startedAt": timestamp(change.started_at),
        }
    }
    if change.receipts:
        receipt = change.receipts[-1]
        made["lastReceipt"] = {
            "plan": receipt.plan_id,
            "result": receipt.result.value,
            "rebalances": receipt.rebalances,
            "expectedRebalances": str(receipt.expected_cost),
            "movedPartitions": receipt.moved,
            "message": shortened(" ".join(receipt.sentences)),
        }
    return made


def _conditions(
    declared: DeclaredFleet, view: FleetView | None, outcome: PassOutcome, now: float
) -> list[Object]:
    change = None if view is None else view.change
    running = change is not None and change.state is ChangeState.RUNNING
    told = {"reason": outcome.reason, "message": shortened(outcome.message)}
    wanted = (
        {"type": "Ready", **_ready(view, outcome)},
        {"type": "Reconciling", "status": str(outcome.reconciling or running), **told},
        {"type": "Stalled", "status": str(outcome.stalled), **told},
    )
    before = {each["type"]: each for each in declared.status.get("conditions") or ()}
    made = []
    for each in wanted:
        known = before.get(each["type"], {})
        same = known.get("status") == each["status"] and known.get("lastTransitionTime")
        since = str(known["lastTransitionTime"]) if same else timestamp(now)
        generation = declared.generation
        made.append({**each, "observedGeneration": generation, "lastTransitionTime": since})
    return made


def _ready(view: FleetView | None, outcome: PassOutcome) -> dict[str, str]:
    told = {"reason": outcome.reason, "message": shortened(outcome.message)}
    if outcome.unknown:
        return {"status": "Unknown", **told}
    if outcome.stalled or view is None or (outcome.reconciling and not view.targets.version):
        return {"status": "False", **told}
    count = f"{view.ready} of {len(view.open)} open slots have a ready worker"
    status = str(view.ready == len(view.open))
    return {"status": status, "reason": "Slots", "message": count}
