"""Decides when a schedule or the operator tries a failed change again.

Problem: a change that failed fails again, and each try costs standbys and a canary. Choice: after
failures in a row with the same target the next try waits 5, 10, 20, ... 60 minutes. Another target
is tried at once. Cost: a cause that went away by itself is found late.
"""

from collections.abc import Sequence
from typing import Final

from fleet.model import Plan
from fleet.slots import Change, ChangeState

_FIRST_WAIT: Final = 300.0
_LONGEST_WAIT: Final = 3600.0
_FAILED: Final = frozenset({ChangeState.FAILED, ChangeState.ROLLED_BACK})


def wait_after(failures: int) -> float:
    """Returns the wait after failures with the same target: it doubles, up to an hour."""
    return 0.0 if failures == 0 else min(_FIRST_WAIT * 2.0 ** (failures - 1), _LONGEST_WAIT)


def aim_of(plan: Plan) -> str:
    """Returns the plan's target, stable between checks: slots, revision and kinds of steps."""
    kinds = "+".join(step.kind.value.replace(" ", "-") for step in plan.steps)
    return f"{plan.wanted}:{plan.revision}:{kinds}"


def wait_left(plan: Plan, changes: Sequence[Change], now: float) -> float:
    """Returns the seconds until a plan may be tried; changes: the group's, latest first."""
    failures, ended_at = 0, 0.0
    for change in changes:
        if change.state not in _FAILED or aim_of(change.plan) != aim_of(plan):
            break
        failures += 1
        ended_at = max(ended_at, change.ended_at or change.started_at)
    waited = now - ended_at
    # Negative: the clock was set, and the end is no evidence.
    return max(0.0, wait_after(failures) - waited) if waited >= 0 else 0.0
