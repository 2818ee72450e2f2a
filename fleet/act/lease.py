"""Keeps the group's lease while a change is carried out.

Problem: a change lasts minutes, its actor may die at any line, and no other may act on the group
meanwhile. Choice: the change's row is the lease. A thread raises its counter every third of the
lease, and so does every step. An observer that sees the same counter for a whole lease may adopt
the change (LeaseWatch) [13]. Cost: a slow store delays the actor, and an actor that lost the lease
learns it at its next write.
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

# Tells at once whether a change's actor works on it. That is for messages only: a lease without a
# renewal for its whole duration alone proves it dead [13]. The actor stores its process identity
# beside the change, and every observer the lease that it saw and when, by its machine's clock. A
# process that ended on this machine is dead. A renewed lease is alive, one without a renewal for
# long enough is dead, all else is unknown. An adopting actor watches the lease first.


_ACTOR: Final = "change-actor"
_SEEN: Final = "change-lease-looks"
_MOST_OBSERVERS: Final = 50
"""Most observers whose first sight of a lease is kept."""
_THIS_PROCESS: Final = uuid.uuid4().hex
"""Names this process as an observer if the machine has no boot id."""


def sign(store: Store, change: Change) -> None:
    """Stores this process as the actor of a change."""
    me = _this_process()
    if me is not None:
        store.put_manager_state(change.group, _ACTOR, {"token": change.token, **me})


def is_actor_alive(store: Store, change: Change, *, lease: float, clock: Clock) -> bool | None:
    """Tells whether a change's actor lives; None if that shows only one lease from now."""
    me = _this_process()
    actor = store.manager_state(change.group, _ACTOR) or {}
    ours = me is not None and _same_machine(actor, me) and actor.get("token") == change.token
    if ours and not alive(ProcessId.from_json(actor)):
        return False
    mark = [change.actor, change.token, change.counter]
    seen = store.manager_state(change.group, _SEEN) or {}
    before, now = seen.get("mark"), clock.monotonic()
    looks = _first_sights(seen) if before == mark else {}
    observer = this_machine() or f"{socket.gethostname()} {_THIS_PROCESS}"
    first = looks.get(observer)
    if first is None:
        kept = dict(list(looks.items())[1 - _MOST_OBSERVERS :])
        looks = {**kept, observer: now}
        store.put_manager_state(change.group, _SEEN, {"mark": mark, "looks": looks})
    elif now - first >= max(lease, change.lease):
        return False
    if isinstance(before, list) and before[:2] == mark[:2] and before != mark:
        return True
    return True if ours else None


def _first_sights(seen: Mapping[str, object]) -> dict[str, float]:
    """Returns by observer when it first saw this lease, by its own clock."""
    looks = seen.get("looks")
    return {str(k): float(v) for k, v in looks.items()} if isinstance(looks, Mapping) else {}


def this_machine() -> str:
    """Names the processes that share this monotonic clock and these PIDs; empty if unknown."""
    me = _this_process()
    return f"{me['host']} {me['boot_id']} {me['pids']}" if me else ""


def _this_process() -> dict[str, Any] | None:
    """Identifies this process, its host, boot and PID namespace: containers of one pod share a host
    name and a boot, but not their PIDs.
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
    """Renews the lease of a RUNNING change until its `with` block ends."""

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
        """Returns the change as last written."""
        return self._change

    def update(self, **fields: Any) -> Change:
        """Writes fields of the change; raises LostLease if another actor owns it."""
        with self._lock:
            self.check()
            try:
                self._change = self._store.advance(replace(self._change, **fields))
            except LostLease as error:
                self._lost = error
                raise
            return self._change

    def recall(self, kind: type[Memory]) -> Memory:
        """Returns what the current step stored, by this actor or an earlier one.

        Raises FleetError if this release cannot read it.
        """
        try:
            return from_json(kind, self._change.detail)
        except ValueError as error:
            raise FleetError(
                f"this release cannot read the memory of step {self._change.step + 1} of plan "
                f"{self._change.plan.id}: {error}; plan again"
            ) from error

    def remember(self, memory: object) -> None:
        """Stores what the current step must know after a crash of its actor."""
        self.update(detail={**self._change.detail, **as_json(memory, known=True)})

    def check(self) -> None:
        """Raises LostLease if a renewal found another actor."""
        if self._lost is not None:
            raise self._lost

    def _wait(self) -> bool:
        """Waits until the next renewal is due; tells whether the work is done."""
        return self._stop.wait(self._interval)

    def _renew(self) -> None:
        """Renews in a thread; an error that stops the renewal stops the work too [40]."""
        try:
            while not self._wait():
                with contextlib.suppress(Unreachable):
                    self.update()
        except LostLease:
            return
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._lost = self._lost or LostLease(
                f"stopped the change of group {self._change.group}, since its lease cannot be "
                "renewed "
                f"({type(error).__name__}: {error}); run `fleet apply {self._change.group} "
                "--continue` to finish it"
            )
