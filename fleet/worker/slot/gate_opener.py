"""Opens a gate that nobody has opened, where a fleet is applied without a manager [22].

Problem: manifests alone must start a fleet, and members that join one after the other cost a
rebalance each. Choice: the store says how many slots are wanted first; each standby counts the
warm ones and writes the gate once as many are there, or `after` seconds after it saw the first;
compare-and-set lets one of them do it, with `open_at` ahead as a manager's opening has it [19].
Cost: with fewer standbys than slots, the later ones join later, at a rebalance each.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from fleet.clock import Clock
from fleet.slots import FirstOpening, Gate, WorkerReport
from fleet.slots.evidence import LeaseWatch
from fleet.slots.store import Store
from fleet.text import plural
from fleet.worker.events import Events

AHEAD: Final = 1.5
"""Seconds between the write and the joint subscribe: time to take, build, connect [19]."""
_LOOK: Final = 0.5
"""Seconds between two looks at who is warm."""


def first_gate(
    gate: Gate, asked: FirstOpening | None, *, warm: int, waited: float, now: float
) -> Gate | None:
    """The gate to write, None where it is not due: written before, not asked for, too early.

    warm: living standbys. waited: seconds since the first of them was seen.
    """
    if gate.version != 0 or gate.open or asked is None or asked.slots < 1 or warm < 1:
        return None
    if warm < asked.slots and waited < asked.after:
        return None
    return replace(gate, open=frozenset(range(asked.slots)), open_at=now + AHEAD)


class GateOpener:
    """One standby's part in the first opening; nothing where the store leaves it to a manager."""

    def __init__(
        self, store: Store, *, group: str, lease: float, clock: Clock, events: Events
    ) -> None:
        self._store = store
        self._group = group
        self._clock = clock
        self._events = events
        self._watch = LeaseWatch(lease, None)
        self._looked_at: float | None = None
        self._first_seen: float | None = None
        self.waits_for: str | None = None
        """In words, while the gate is not open."""

    def step(self, gate: Gate) -> bool:
        """Open the gate where that is due; True where it was written here. Raises Unreachable."""
        if gate.version != 0 or not self._store.unmanaged:
            self.waits_for = None
            return False
        now = self._clock.monotonic()
        if self._looked_at is not None and now - self._looked_at < _LOOK:
            return False
        self._looked_at = now
        asked = self._store.first(self._group)
        warm = self._warm(self._store.reports(self._group), now)
        if warm and self._first_seen is None:
            self._first_seen = now
        waited = 0.0 if self._first_seen is None else now - self._first_seen
        self.waits_for = _waiting(asked, warm)
        wanted = first_gate(gate, asked, warm=warm, waited=waited, now=self._clock.now())
        if wanted is None or self._store.write_gate(wanted) is None:
            return False
        self.waits_for = None
        self._events.log(
            f"opened {plural(len(wanted.open), 'slot')}, with {plural(warm, 'standby')} warm"
        )
        self._events.emit("first_opening", slots=len(wanted.open), warm=warm)
        return True

    def _warm(self, reports: Iterable[WorkerReport], now: float) -> int:
        """Standbys whose reports move: a dead pod's report stays."""
        return sum(
            report.phase == "standby"
            and not self._watch.expired(report.worker, report.counter, now)
            for report in reports
        )


def _waiting(asked: FirstOpening | None, warm: int) -> str:
    if asked is None:
        return "a manager that opens the gate: no slot is open"
    return f"the first opening: {warm} of {asked.slots} standbys are warm"
