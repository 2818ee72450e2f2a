"""What names a plan, and whether a plan made anew is the one that a person approved.

Problem: a plan is looked at, approved, and carried out later by a process that plans anew; what
was approved must be what is done. Choice: an id is the group, the second in which the plan was
made, and a hash of what the plan saw and would do. Two plans with one hash are one plan at two
times; A→B→A are three ids, since their seconds differ [35]. Cost: of an older plan only the id
is known, so a refusal cannot name what has changed, only what would be done now.
"""

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime

from fleet.decide.slugs import slug
from fleet.model import Plan, Step

HASH = 12
"""Hex digits."""


def plan_id(
    cluster: str,
    group: str,
    *,
    now: float,
    seen: tuple[object, ...],
    wanted: int,
    steps: Iterable[Step],
) -> str:
    """The id; `seen` is what the plan was decided on, of values whose repr tells them apart."""
    at = datetime.fromtimestamp(now, tz=UTC).strftime("%Y%m%dT%H%M%S")
    does = [(s.kind.value, s.slots, s.revision, str(s.price)) for s in steps]
    digest = hashlib.sha256(repr((group, wanted, seen, does)).encode()).hexdigest()
    return f"{slug(cluster, group)}-{at}-{digest[:HASH]}"


def not_as_approved(approved: str, plan: Plan) -> str | None:
    """Why `plan`, made now, is not what was approved under that id; None where it is."""
    ours, _, _ = _parts(plan.id)
    if _parts(approved)[0] != ours:
        return f"{approved!r} is no plan of group {plan.group}: their ids begin with {ours}-"
    if _parts(approved)[2] == _parts(plan.id)[2]:
        return None
    steps = "; ".join(step.sentence for step in plan.steps) or "nothing"
    return (
        f"group {plan.group} is not as plan {approved} saw it, so nothing was done; what would be "
        f"done now: {steps}; to approve that, name plan {plan.id}"
    )


def _parts(name: str) -> tuple[str, str, str]:
    """Whose, when, and the hash; empty where it is no id."""
    head, _, digest = name.rpartition("-")
    whose, _, at = head.rpartition("-")
    return whose, at, digest
