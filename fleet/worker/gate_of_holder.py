"""What the holder of a slot writes into its group's gate, by compare-and-set."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fleet.errors import FleetError
from fleet.slots import Gate, SlotStore

_TRIES: Final = 20


class GateOfHolder:
    """Raises Unreachable where the store is silent, FleetError where the gate never holds still."""

    def __init__(self, store: SlotStore, group: str, number: int) -> None:
        self._store = store
        self._group = group
        self._number = number

    def ask_rejoin(self, token: int) -> None:
        """Ask this slot's holder, which is us, to leave and join again once."""
        self._change(lambda gate: replace(gate, rejoin={**gate.rejoin, self._number: token}))

    def take_back_rejoin(self) -> None:
        """It is done."""
        self._change(
            lambda gate: replace(
                gate, rejoin={n: t for n, t in gate.rejoin.items() if n != self._number}
            )
        )

    def shut(self) -> None:
        """A foreign process uses this slot's instance id: nobody takes it any more."""
        self._change(lambda gate: replace(gate, quarantined=gate.quarantined | {self._number}))

    def _change(self, change: Callable[[Gate], Gate]) -> None:
        for _ in range(_TRIES):
            if self._store.write_gate(change(self._store.gate(self._group))) is not None:
                return
        raise FleetError(f"the gate of group {self._group} changes too often to be written")
