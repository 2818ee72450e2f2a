"""The group's lease while a change is carried out: kept alive beside the work, written whole.

Problem: a change lasts minutes, its actor may die at any line, and nobody else may act on the
group meanwhile. Choice: the change's own row is the lease; a thread raises its counter every
third of the lease duration, and every step written raises it too. Whoever sees the counter
stand still for the lease duration may adopt the change (Watch) [13]. Cost: a slow store
delays the actor, and an actor that lost the lease learns of it at its next write.
"""

import contextlib
import threading
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from fleet.errors import FleetError, LostLease, Unreachable
from fleet.slots import Change
from fleet.slots.codec import as_json, from_json
from fleet.slots.store import Store

Memory = TypeVar("Memory")


class ChangeLease:
    """Holds a RUNNING change: `with ChangeLease(...)` renews it until the block ends."""

    def __init__(
        self,
        store: Store,
        change: Change,
        *,
        lease: float,
        mutex: AbstractContextManager[object] | None = None,
    ) -> None:
        """mutex: around each write of the change; None: a lock of its own, for threads."""
        self._store = store
        self._change = change
        self._interval = lease / 3
        self._lock = mutex or threading.Lock()
        self._stop = threading.Event()
        self._lost: LostLease | None = None
        self._thread = threading.Thread(target=self._renew, name="change-lease", daemon=True)

    def __enter__(self) -> "ChangeLease":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    @property
    def change(self) -> Change:
        """The change as last written."""
        return self._change

    def update(self, **fields: Any) -> Change:
        """Write fields of the change; raises LostLease where another actor has it."""
        with self._lock:
            self.check()
            try:
                self._change = self._store.advance(replace(self._change, **fields))
            except LostLease as error:
                self._lost = error
                raise
            return self._change

    def recall(self, kind: type[Memory]) -> Memory:
        """What the step in hand was made to remember, by this actor or one before it.

        Raises FleetError where a release that stores it otherwise wrote it.
        """
        try:
            return from_json(kind, self._change.detail)
        except ValueError as error:
            raise FleetError(
                f"what step {self._change.step + 1} of plan {self._change.plan.id} remembers "
                f"cannot be read by this release: {error}; plan again"
            ) from error

    def remember(self, memory: object) -> None:
        """Add what a memory knows to what the step in hand must know after a crash of its actor."""
        self.update(detail={**self._change.detail, **as_json(memory, known=True)})

    def check(self) -> None:
        """Raise LostLease where a renewal found another actor."""
        if self._lost is not None:
            raise self._lost

    def _wait(self) -> bool:
        """Until the next renewal is due; whether the work is done."""
        return self._stop.wait(self._interval)

    def _renew(self) -> None:
        """The lease's thread: what makes it end before the work is done ends the work too [40]."""
        try:
            while not self._wait():
                with contextlib.suppress(Unreachable):
                    self.update()
        except LostLease:
            return
        except BaseException as error:  # noqa: BLE001 - nobody catches it here: `check` raises it
            self._lost = self._lost or LostLease(
                f"the lease of the change of group {self._change.group} is kept no more "
                f"({type(error).__name__}: {error}): stopped; `fleet apply {self._change.group} "
                "--resume` goes on with it"
            )
