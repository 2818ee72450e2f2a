"""What a step remembers across the death of its actor, as the change's record keeps it.

Problem: an actor may die between any two writes, and its successor, maybe of another release,
has to know what was there before. Choice: each kind of step has a dataclass whose fields are the
keys of the record's one JSON object; a field that is None is not known yet and not written. What
a record holds beside them, of another kind or another release, is not looked at and stays. Cost:
what was once remembered cannot be forgotten before the step ends, which is when all of it goes.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStart:
    """Of every kind: from when and where a step's rebalances count, and whose members are ours."""

    started_at: float | None = None
    """Wall time."""
    position: int | None = None
    """In the coordinator's records; None where they cannot be read."""
    members: tuple[str, ...] | None = None
    """Member ids (of an adopted group: instance ids, else member ids) that were there."""
    errors: tuple[str, ...] | None = None
    """What slots told then, numbers aside: new code is not blamed for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMemory:
    """Of a plan that stops all and opens again, kept until its last step: what it can put back."""

    stopped: tuple[int, ...] | None = None
    """The slots that were open, once the new workers were warm."""
    ran: str | None = None
    """The revision of those; empty where it is not known."""
    undone: str | None = None
    """Why what ran is put back; the next manager reads it too."""
