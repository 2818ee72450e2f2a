"""The values of the store as JSON and back: the only doors between them.

Field by field on purpose: a renamed attribute must not silently change stored state or what
`-o json` prints. Reading takes exactly what writing made; a missing key is a KeyError.
"""

from collections.abc import Mapping
from typing import Any

from fleet.model import Plan, Price, Receipt, Step, StepKind, Verdict
from fleet.slots import Change, ChangeState, Gate, Handover, WorkerReport
from fleet.slots.gates import GateRecord, Trial


def price_as_json(price: Price) -> dict[str, Any]:
    """A price; None = cannot be said."""
    return {
        "rebalances_min": price.rebalances_min,
        "rebalances_max": price.rebalances_max,
        "moved_min": price.moved_min,
        "moved_max": price.moved_max,
        "pause_s": price.pause_s,
        "note": price.note,
    }


def price_from_json(value: Mapping[str, Any]) -> Price:
    """The reverse of price_as_json."""
    return Price(
        rebalances_min=value["rebalances_min"],
        rebalances_max=value["rebalances_max"],
        moved_min=value["moved_min"],
        moved_max=value["moved_max"],
        pause_s=value["pause_s"],
        note=value["note"],
    )


def step_as_json(step: Step) -> dict[str, Any]:
    """A step with its price."""
    return {
        "kind": step.kind.value,
        "slots": list(step.slots),
        "revision": step.revision,
        "price": price_as_json(step.price),
        "sentence": step.sentence,
    }


def step_from_json(value: Mapping[str, Any]) -> Step:
    """The reverse of step_as_json."""
    return Step(
        kind=StepKind(value["kind"]),
        slots=tuple(value["slots"]),
        revision=value["revision"],
        price=price_from_json(value["price"]),
        sentence=value["sentence"],
    )


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """A plan with its steps."""
    return {
        "id": plan.id,
        "cluster": plan.cluster,
        "group": plan.group,
        "created_at": plan.created_at,
        "snapshot_at": plan.snapshot_at,
        "wanted": plan.wanted,
        "revision": plan.revision,
        "steps": [step_as_json(step) for step in plan.steps],
        "refusals": list(plan.refusals),
        "notes": list(plan.notes),
    }


def plan_from_json(value: Mapping[str, Any]) -> Plan:
    """The reverse of plan_as_json."""
    return Plan(
        id=value["id"],
        cluster=value["cluster"],
        group=value["group"],
        created_at=value["created_at"],
        snapshot_at=value["snapshot_at"],
        wanted=value["wanted"],
        revision=value["revision"],
        steps=tuple(step_from_json(step) for step in value["steps"]),
        refusals=tuple(value["refusals"]),
        notes=tuple(value["notes"]),
    )


def receipt_as_json(receipt: Receipt) -> dict[str, Any]:
    """A receipt with the price it is held against."""
    return {
        "plan_id": receipt.plan_id,
        "group": receipt.group,
        "step": receipt.step,
        "kind": receipt.kind.value,
        "price": price_as_json(receipt.price),
        "ours": receipt.ours,
        "others": receipt.others,
        "aborted": receipt.aborted,
        "moved": receipt.moved,
        "longest_pause_s": receipt.longest_pause_s,
        "from_generation": receipt.from_generation,
        "to_generation": receipt.to_generation,
        "started_at": receipt.started_at,
        "seconds": receipt.seconds,
        "verdict": receipt.verdict.value,
        "sentences": list(receipt.sentences),
    }


def receipt_from_json(value: Mapping[str, Any]) -> Receipt:
    """The reverse of receipt_as_json."""
    return Receipt(
        plan_id=value["plan_id"],
        group=value["group"],
        step=value["step"],
        kind=StepKind(value["kind"]),
        price=price_from_json(value["price"]),
        ours=value["ours"],
        others=value["others"],
        aborted=value["aborted"],
        moved=value["moved"],
        longest_pause_s=value["longest_pause_s"],
        from_generation=value["from_generation"],
        to_generation=value["to_generation"],
        started_at=value["started_at"],
        seconds=value["seconds"],
        verdict=Verdict(value["verdict"]),
        sentences=tuple(value["sentences"]),
    )


def change_as_json(change: Change) -> dict[str, Any]:
    """A change with its plan and receipts."""
    return {
        "group": change.group,
        "plan": plan_as_json(change.plan),
        "state": change.state.value,
        "actor": change.actor,
        "token": change.token,
        "counter": change.counter,
        "step": change.step,
        "started_at": change.started_at,
        "ended_at": change.ended_at,
        "detail": dict(change.detail),
        "receipts": [receipt_as_json(receipt) for receipt in change.receipts],
        "sentence": change.sentence,
    }


def change_from_json(value: Mapping[str, Any]) -> Change:
    """The reverse of change_as_json."""
    return Change(
        group=value["group"],
        plan=plan_from_json(value["plan"]),
        state=ChangeState(value["state"]),
        actor=value["actor"],
        token=value["token"],
        counter=value["counter"],
        step=value["step"],
        started_at=value["started_at"],
        ended_at=value["ended_at"],
        detail=dict(value["detail"]),
        receipts=tuple(receipt_from_json(receipt) for receipt in value["receipts"]),
        sentence=value["sentence"],
    )


def gate_as_json(gate: Gate) -> dict[str, Any]:
    """A gate; slot numbers are sorted, as keys they are strings."""
    return {
        "group": gate.group,
        "version": gate.version,
        "open": sorted(gate.open),
        "open_at": gate.open_at,
        "leaving": sorted(gate.leaving),
        "handover": {
            str(number): {"token": asked.token, "revision": asked.revision}
            for number, asked in sorted(gate.handover.items())
        },
        "rejoin": {str(number): token for number, token in sorted(gate.rejoin.items())},
        "quarantined": sorted(gate.quarantined),
        "plan_id": gate.plan_id,
    }


def gate_from_json(value: Mapping[str, Any]) -> Gate:
    """The reverse of gate_as_json."""
    return Gate(
        group=value["group"],
        version=value["version"],
        open=frozenset(value["open"]),
        open_at=value["open_at"],
        leaving=frozenset(value["leaving"]),
        handover={
            int(number): Handover(token=asked["token"], revision=asked["revision"])
            for number, asked in value["handover"].items()
        },
        rejoin={int(number): token for number, token in value["rejoin"].items()},
        quarantined=frozenset(value["quarantined"]),
        plan_id=value["plan_id"],
    )


def record_as_json(record: GateRecord) -> dict[str, Any]:
    """A gate with all that is stored beside it; a release that reads only the gate finds it so."""
    return {
        **gate_as_json(record.gate),
        "opened": sorted(record.opened),
        "trials": trials_as_json(record.trials),
        "going": sorted(record.going),
        "token": record.token,
    }


def record_from_json(value: Mapping[str, Any], *, made: frozenset[int]) -> GateRecord:
    """The reverse of record_as_json; made: the slots that were ever open, where it does not say."""
    return GateRecord(
        gate=gate_from_json(value),
        opened=frozenset(value.get("opened", made)),
        trials=trials_from_json(value.get("trials", {})),
        going=frozenset(value.get("going", ())),
        token=value.get("token", 0),
    )


def trials_as_json(trials: Mapping[str, Trial]) -> dict[str, Any]:
    """Claims by revision."""
    return {
        revision: {"slot": trial.slot, "token": trial.token, "worker": trial.worker}
        for revision, trial in sorted(trials.items())
    }


def trials_from_json(value: Mapping[str, Any]) -> dict[str, Trial]:
    """The reverse of trials_as_json."""
    return {
        revision: Trial(slot=told["slot"], token=told["token"], worker=told["worker"])
        for revision, told in value.items()
    }


def report_as_json(report: WorkerReport) -> dict[str, Any]:
    """What a worker says of itself."""
    return {
        "worker": report.worker,
        "group": report.group,
        "revision": report.revision,
        "phase": report.phase,
        "slot": report.slot,
        "counter": report.counter,
        "http_port": report.http_port,
        "batches": report.batches,
        "records": report.records,
        "busy_seconds": report.busy_seconds,
        "joined_at": report.joined_at,
        "last_commit_at": report.last_commit_at,
        "error": report.error,
        "unclean": report.unclean,
        "since": report.since,
    }


def report_from_json(value: Mapping[str, Any]) -> WorkerReport:
    """The reverse of report_as_json."""
    return WorkerReport(
        worker=value["worker"],
        group=value["group"],
        revision=value["revision"],
        phase=value["phase"],
        slot=value["slot"],
        counter=value["counter"],
        http_port=value["http_port"],
        batches=value["batches"],
        records=value["records"],
        busy_seconds=value["busy_seconds"],
        joined_at=value["joined_at"],
        last_commit_at=value["last_commit_at"],
        error=value["error"],
        unclean=value["unclean"],
        since=value.get("since"),
    )
