"""A slot in its holder's hands: what a renewal finds, what a release writes; no thread, no lock.

Problem: when a holder has to stop, and what a silent store means, is decided between the lease's
thread and the holder's, and threads meet only by chance. Choice: the rules are here, over a store
and a clock; `SlotLease` calls them from its thread and under its lock, and the simulation
(tests/schedules) from processes on simulated time. Cost: whoever calls from several threads locks.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.slots import Phase, Slot
from fleet.slots.store import Store


class HeldSlot:
    """One slot that this worker has taken."""

    def __init__(
        self,
        store: Store,
        slot: Slot,
        *,
        lease: float,
        fields: Callable[[], dict[str, Any]],
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self.slot = slot
        """As last written."""
        self.lost: str | None = None
        """Why this worker must stop at once; None while the slot is ours."""
        self.pause = lease / 3
        """Seconds to the next renewal; shorter while the store is silent."""
        self._store = store
        self._lease = lease
        self._fields = fields
        self._clock = clock
        self._say = say
        self._renewed_at = -math.inf

    def renew(self) -> bool:
        """Write the fields; False where the slot is somebody else's.

        A store that is silent or refuses is no loss: nobody else can take the slot then [12].
        """
        return self.confirm() is not False

    def confirm(self) -> bool | None:
        """The same; None where the store does not say whose the slot is."""
        if self.lost is not None:
            return False
        began = self._clock.monotonic()  # its answer may be read long after it was stored
        try:
            told = replace(self.slot, lease=self._lease, **self._fields())
            stored = self._store.renew(told)
        except FleetError as error:
            self.pause = self._lease / 12
            self._say(f"{error}; going on as long as Kafka has us as a member")
            return None
        self.pause = self._lease / 3
        if stored is None:
            self.lost = f"slot {self.slot.number} has another holder or token"
            return False
        self.slot = stored
        self._renewed_at = began
        return True

    @property
    def fresh(self) -> bool:
        """Whether the last renewal began less than a third of the lease ago."""
        return self._clock.monotonic() - self._renewed_at < self._lease / 3

    def may_join(self) -> bool | None:
        """Tell whether no other worker can own the slot now; None: the store does not say [54].

        Ask the store if the last renewal is too old, directly before each join.
        """
        if self.lost is None and not self.fresh:
            self.confirm()
        if self.lost is not None:
            return False
        if not self.fresh:
            self._say(f"slot {self.slot.number} is not confirmed by the store: waiting to join")
        return self.fresh or None

    def give_up(self, *, clean: bool, closed: bool = False, gone: bool = False) -> bool:
        """See `SlotLease.release`; nobody renews any more."""
        if not self.renew():
            return False
        if closed or gone:
            phase = Phase.CLOSED if closed else self.slot.phase
            member = None if gone else self.slot.member_id
            stored = self._store.renew(replace(self.slot, phase=phase, member_id=member))
            if stored is None:
                return False
            self.slot = stored
        return self._store.release(self.slot, clean=clean)
