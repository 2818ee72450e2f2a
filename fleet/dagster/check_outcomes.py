"""Computes the outcomes of the checks, for check runs and for the sensors.

An outcome is a value: passed or not, a severity, the numbers and one sentence. ERROR is for alerts
(a lag status of level ERR, a record older than max_lag, a storm, a receipt that differs). WARN is
for readers of the page (a group that does not exist yet, figures that Fleet may not read).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dagster import AssetCheckEvaluation, AssetCheckResult, AssetCheckSeverity, AssetKey

from fleet.config.spec import GroupSpec
from fleet.dagster.change_metadata import (
    bullet_list,
    change_metadata,
    change_sentence,
    failure_metadata,
    join_sentences,
    receipt_notes,
)
from fleet.decide.lag_status import GroupLagStatus, LagStatus, Level
from fleet.decide.storms import Storm
from fleet.model import GroupSnapshot, LagCase, ReceiptResult
from fleet.slots import Change, ChangeState
from fleet.text import duration

WARN = AssetCheckSeverity.WARN
ERROR = AssetCheckSeverity.ERROR
_ENDED_BADLY = (ChangeState.FAILED, ChangeState.ROLLED_BACK)
_OVER = "over the limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """The outcome of one check."""

    passed: bool
    sentence: str
    severity: AssetCheckSeverity = ERROR
    metadata: Mapping[str, Any] = field(default_factory=dict)
    outcome: str = ""
    """The finding in one word, which stays the same while nothing changes."""

    def result(self, check: str, asset: AssetKey | None = None) -> AssetCheckResult:
        """Returns the result of a check run."""
        return AssetCheckResult(asset_key=asset, check_name=check, **self._fields())

    def evaluation(self, check: str, asset: AssetKey) -> AssetCheckEvaluation:
        """Returns the evaluation that a sensor stores."""
        return AssetCheckEvaluation(asset_key=asset, check_name=check, **self._fields())

    def _fields(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "severity": self.severity,
            "description": self.sentence,
            "metadata": {"sentence": self.sentence, **self.metadata},
        }


def lag_outcome(state: GroupSnapshot, keeps_up: GroupLagStatus | None) -> CheckOutcome:
    """Judges whether the group keeps up, by the lag status of `fleet status`.

    `keeps_up` is that lag status, None if unknown. ABANDONED fails too, since fleet.yaml declares
    the group.
    """
    numbers: dict[str, Any] = {"members": len(state.members)}
    if state.lag is not None:
        numbers["lag (records)"] = state.lag
    if keeps_up is not None:
        numbers["lag status"] = str(keeps_up.status)
    said, outcome, severity = _waiting(state), "well", WARN
    if not state.exists:
        outcome = "does not exist"
    elif keeps_up is not None and (
        keeps_up.level is not Level.OK or keeps_up.status is LagStatus.ABANDONED
    ):
        said, outcome = f"{said}; {keeps_up.sentence}", str(keeps_up.status)
        severity = WARN if keeps_up.level is Level.WARN else ERROR
    return CheckOutcome(
        passed=outcome == "well",
        severity=severity,
        sentence=f"{said}.",
        metadata=numbers,
        outcome=outcome,
    )


def freshness_outcome(group: str, age: float | None, *, max_lag: float) -> CheckOutcome:
    """Judges whether the oldest waiting record is younger than `max_lag`, as the alert does.

    An unknown age passes, because the alert does not fire for it either.
    """
    limit = f"the limit is {duration(max_lag)} (max_lag)"
    numbers: dict[str, Any] = {"limit (s)": max_lag}
    if age is None:
        said = f"{group}: the age of the oldest waiting record is unknown; {limit}"
        return CheckOutcome(
            passed=True, severity=WARN, sentence=f"{said}.", metadata=numbers, outcome="unknown"
        )
    over = age > max_lag
    what = f"the oldest record waits for {duration(age)}" if age else "no record is known to wait"
    return CheckOutcome(
        passed=not over,
        sentence=f"{group}: {what}; {limit}.",
        metadata={**numbers, "lag (s)": round(age, 3)},
        outcome=_OVER if over else "well",
    )


def _waiting(state: GroupSnapshot) -> str:
    """Describes the lag, with the cases of partitions that have no plain figure."""
    cases = sorted({p.case.value for p in state.partitions if p.case is not LagCase.OK})
    if not state.exists:
        return f"{state.group} does not exist"
    if state.lag is None:
        return f"the lag of {state.group} is {', '.join(cases) or 'unknown'}"
    said = f"{state.group} has {state.lag:,} records waiting"
    if state.lag_seconds is not None:
        said += f", the oldest for {state.lag_seconds:.1f} s"
    return f"{said} ({', '.join(cases)})" if cases else said


def storm_outcome(fleet: GroupSpec, recorded: int | None, storm: Storm | None) -> CheckOutcome:
    """Judges whether the group is within its budget, not counting what Fleet's plans expect."""
    numbers: dict[str, Any] = {"budget": fleet.storm.rebalances, "window (s)": fleet.storm.window}
    if storm is not None:
        numbers |= {"rebalances": storm.rebalances, "moved": storm.moved, "cause": storm.cause}
        if storm.top_offender is not None:
            numbers["top offender"] = storm.top_offender
        said = f"{fleet.group}: {storm.sentence}."
        return CheckOutcome(passed=False, sentence=said, metadata=numbers, outcome="storm")
    if recorded is None:
        said = f"{fleet.group}: rebalances were not counted: Fleet did not read __consumer_offsets"
        return CheckOutcome(
            passed=True, severity=WARN, sentence=f"{said}.", metadata=numbers, outcome="within"
        )
    numbers["rebalances"] = recorded
    said = f"{recorded} {'rebalance' if recorded == 1 else 'rebalances'}"
    said = f"{fleet.group}: {said} in the last {fleet.storm.window:g} s"
    said += f", budget {fleet.storm.rebalances}"
    if recorded > fleet.storm.rebalances:
        said += ", due to Fleet's changes within their expected cost"
    return CheckOutcome(passed=True, sentence=f"{said}.", metadata=numbers, outcome="within")


def receipt_outcome(change: Change | None) -> CheckOutcome:
    """Judges whether the last change succeeded and each step cost what its plan said."""
    if change is None or (not change.receipts and change.state not in _ENDED_BADLY):
        said = "No step has run, so there is nothing to compare."
        return CheckOutcome(passed=True, severity=WARN, sentence=said)
    sentence = change_sentence(change)
    found = {r.result for r in change.receipts}
    shown = change_metadata(change)
    numbers = {
        key: shown[key]
        for key in ("result", "state", "expected rebalances", "recorded rebalances", "receipt")
    }
    numbers["notes"] = bullet_list(receipt_notes(change.receipts))
    if change.state not in (ChangeState.DONE, ChangeState.RUNNING):
        said = join_sentences(f"{change.group}: {change.state.value}", sentence, group=change.group)
        numbers |= failure_metadata(change)
        severity = ERROR if change.state in _ENDED_BADLY else WARN  # a user aborted it
        return CheckOutcome(passed=False, severity=severity, sentence=said, metadata=numbers)
    if ReceiptResult.DIFFERS in found:
        return CheckOutcome(passed=False, sentence=sentence, metadata=numbers)
    severity = WARN if ReceiptResult.UNVERIFIED in found else ERROR
    return CheckOutcome(passed=True, severity=severity, sentence=sentence, metadata=numbers)
