"""Whether the actor of a change still works on it, told at once and for words alone.

Problem: only a lease that stands still for its whole duration proves an actor dead [13], and a
plan that is only shown should not wait that long, nor say what it does not know. Choice: the
actor leaves its process identity beside the change, and every observer leaves the lease it saw
and when, each by the clock of its own machine; a process that is gone from this machine is dead,
a lease that moved since somebody looked is alive, one that stood still since an own look long
enough ago is dead, and anything else is not known yet. Cost: the answer may be None at a first
look. It decides nothing: whoever adopts a change watches its lease first
(`fleet.act.change.changes`).
"""

import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fleet.clock import Clock
from fleet.slots import Change
from fleet.slots.store import Store
from fleet.system.processes import ProcessId, alive, identify

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
        store.put_note(change.group, _ACTOR, {"token": change.token, **me})


def works_on(store: Store, change: Change, *, lease: float, clock: Clock) -> bool | None:
    """Whether its actor lives; None where that shows only at a later look, one lease from now."""
    me = _here()
    actor = store.note(change.group, _ACTOR) or {}
    ours = me is not None and _same_machine(actor, me) and actor.get("token") == change.token
    if ours and not alive(ProcessId.from_json(actor)):
        return False
    mark = [change.actor, change.token, change.counter]
    seen = store.note(change.group, _SEEN) or {}
    before, now = seen.get("mark"), clock.monotonic()
    looks = _looks(seen) if before == mark else {}
    first = looks.get(_observer(me))
    if first is None:
        kept = dict(list(looks.items())[1 - _MOST_OBSERVERS :])
        looks = {**kept, _observer(me): now}
        store.put_note(change.group, _SEEN, {"mark": mark, "looks": looks})
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
