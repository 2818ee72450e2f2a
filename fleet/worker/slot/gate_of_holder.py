"""What the holder of a slot writes into its group's gate, by compare-and-set."""

from dataclasses import replace

from fleet.slots.store import Store


class GateOfHolder:
    """Raises Unreachable where the store is silent, or the gate never holds still."""

    def __init__(self, store: Store, group: str, number: int) -> None:
        self._store = store
        self._group = group
        self._number = number

    def ask_rejoin(self, token: int) -> None:
        """Ask this slot's holder, which is us, to leave and join again once."""
        self._store.change_gate(
            self._group, lambda gate: replace(gate, rejoin={**gate.rejoin, self._number: token})
        )

    def take_back_rejoin(self) -> None:
        """It is done."""
        self._store.change_gate(
            self._group,
            lambda gate: replace(
                gate, rejoin={n: t for n, t in gate.rejoin.items() if n != self._number}
            ),
        )

    def shut(self) -> None:
        """A foreign process uses this slot's instance id: nobody takes it any more."""
        self._store.change_gate(
            self._group, lambda gate: replace(gate, quarantined=gate.quarantined | {self._number})
        )
