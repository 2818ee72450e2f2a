"""All that is stored with a group's gate: what its slots' takers and a change's actors compare."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.slots import Gate


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The one slot of another revision that an unproven revision may take now."""

    slot: int
    token: int
    """Which the slot has once it is taken."""
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRecord:
    """The gate as it is stored."""

    gate: Gate
    opened: frozenset[int] = frozenset()
    """Slots that were ever open."""
    canaries: Mapping[str, Claim] = field(default_factory=dict)
    """By revision."""
    going: frozenset[str] = frozenset()
    """Workers that were asked to go: they live until they are removed, and take nothing."""
    committed: frozenset[str] = frozenset()
    """Topics that the group has committed offsets of, whether Kafka keeps them or not [53]."""
    token: int = 0
    """The latest of the changes whose actors wrote here: who has an older one is stale."""
