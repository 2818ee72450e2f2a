"""The group's lease while a change is carried out: kept alive beside the work, written whole.

Problem: a change lasts minutes, its actor may die at any line, and nobody else may act on the
group meanwhile. Choice: the change's own row is the lease; a thread raises its counter every
third of the lease duration, and every step written raises it too. Whoever sees the counter
stand still for the lease duration may adopt the change (Watch) [13]. Cost: a slow store
delays the actor, and an actor that lost the lease learns of it at its next write.
"""

import contextlib
import os
import socket
import threading
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from fleet.clock import Clock
from fleet.errors import FleetError, LostLease, Unreachable
from fleet.slots import Change
from fleet.slots.codec import as_json, from_json
from fleet.slots.store import Store
from fleet.system.processes import ProcessId, alive, identify

# Whether a change's actor works on it, told at once and for words alone: only a lease that stands
# still for its whole duration proves it dead [13]. The actor leaves its process identity beside
# the change, every observer the lease it saw and when, by its machine's clock. A process gone from
# this machine is dead, a lease that moved is alive, one that stood still for long enough is dead,
# anything else is not known yet; whoever adopts watches the lease first (`fleet.act.change`).


_ACTOR: Final = "change-actor"
_SEEN: Final = "change-lease-looks"
_MOST_OBSERVERS: Final = 50
"""Whose looks at one state of a lease are kept."""
_THIS_PROCESS: Final = uuid.uuid4().hex
"""An observer's clock where a machine does not tell its boot: no other process' look counts."""


def sign(store: Store, change: Change) -> None:
    """Leave who carries the change out: this process."""
    me = _here()
    if me is not None:
        store.put_manager_state(change.group, _ACTOR, {"token": change.token, **me})


def works_on(store: Store, change: Change, *, lease: float, clock: Clock) -> bool | None:
    """Whether its actor lives; None where that shows only at a later look, one lease from now."""
    me = _here()
    actor = store.manager_state(change.group, _ACTOR) or {}
    ours = me is not None and _same_machine(actor, me) and actor.get("token") == change.token
    if ours and not alive(ProcessId.from_json(actor)):
        return False
    mark = [change.actor, change.token, change.counter]
    seen = store.manager_state(change.group, _SEEN) or {}
    before, now = seen.get("mark"), clock.monotonic()
    looks = _looks(seen) if before == mark else {}
    first = looks.get(_observer(me))
    if first is None:
        kept = dict(list(looks.items())[1 - _MOST_OBSERVERS :])
        looks = {**kept, _observer(me): now}
        store.put_manager_state(change.group, _SEEN, {"mark": mark, "looks": looks})
    elif now - first >= max(lease, change.lease):
        return False
    if isinstance(before, list) and before[:2] == mark[:2] and before != mark:
        return True
    return True if ours else None


def _looks(seen: Mapping[str, object]) -> dict[str, float]:
    """By observer: when it first saw the lease so, by its own clock."""
    looks = seen.get("looks")
    return {str(k): float(v) for k, v in looks.items()} if isinstance(looks, Mapping) else {}


def _observer(me: Mapping[str, object] | None) -> str:
    """Whoever reads the same monotonic clock as this process."""
    host = socket.gethostname()
    return f"{host} {me['boot_id']} {me['pids']}" if me else f"{host} {_THIS_PROCESS}"


def _here() -> dict[str, Any] | None:
    """This process, its machine, its boot, and whose pids it sees: containers of one pod share
    a host name and a boot, and each has pids of its own.
    """
    me = identify(os.getpid())
    if me is None:
        return None
    return {"host": socket.gethostname(), "pids": _pid_namespace(), **me.as_json()}


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _same_machine(one: Mapping[str, object], two: Mapping[str, object]) -> bool:
    return all(one.get(key) == two.get(key) for key in ("host", "boot_id", "pids"))


Memory = TypeVar("Memory")


class ChangeLease:
    """Holds a RUNNING change: `with ChangeLease(...)` renews it until the block ends."""

    def __init__(self, store: Store, change: Change, *, lease: float) -> None:
        self._store = store
        self._change = change
        self._interval = lease / 3
        self._lock: AbstractContextManager[object] = threading.Lock()
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
                "--continue` goes on with it"
            )
