"""All that is stored with a group's gate: what its slots' takers and a change's actors compare."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from fleet.errors import Unreachable
from fleet.slots import Change, Gate

_TRIES: Final = 50
_PAUSE: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
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
    trials: Mapping[str, Trial] = field(default_factory=dict)
    """By revision."""
    going: frozenset[str] = frozenset()
    """Workers that were asked to go: they live until they are removed, and take nothing."""
    token: int = 0
    """The latest of the changes whose actors wrote here: who has an older one is stale."""


class Gates(Protocol):
    """The part of `fleet.slots.SlotStore` that a change of the gate goes through."""

    def gate(self, group: str) -> Gate:
        """As it stands."""
        ...

    def write_gate(self, gate: Gate, *, by: Change | None = None) -> Gate | None:
        """None where somebody came between."""
        ...


def changed_gate(
    store: Gates,
    group: str,
    change: Callable[[Gate], Gate | None],
    *,
    by: Change | None,
    sleep: Callable[[float], None],
) -> Gate | None:
    """`SlotStore.change_gate` by reading and writing it until nobody came between."""
    for _ in range(_TRIES):
        wanted = change(store.gate(group))
        if wanted is None:
            return None
        stored = store.write_gate(wanted, by=by)
        if stored is not None:
            return stored
        sleep(_PAUSE)
    raise Unreachable(f"the gate of group {group} changes too often to be written")
