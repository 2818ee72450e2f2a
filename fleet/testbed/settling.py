"""Waiting for a group: for its backlog to go, and for its members to stay.

Problem: on a slow machine a backlog of the same stream lasts ten times as long as on a fast one,
so waits by the clock alone would fail on one and rush on the other. Choice: a wait watches the
lag, and gives up only where it comes no nearer. Cost: one look at the group per half second.
"""

from collections.abc import Sequence
from typing import Final

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.manager.cycle import Fleet
from fleet.model import GroupState

_STUCK_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5
_SETTLING_SECONDS: Final = 90.0
_SETTLED_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.25


def await_lag(fleet: Fleet, groups: Sequence[str], most: int, *, clock: Clock) -> None:
    """Wait until each group has at most so many records waiting.

    Raises FleetError where that comes no nearer for a minute.
    """
    best = float("inf")
    deadline = clock.monotonic() + _STUCK_SECONDS
    while True:
        seen = fleet.snapshot(groups).groups
        lags = [seen[g].lag if g in seen else None for g in groups]
        if all(lag is not None and lag <= most for lag in lags):
            return
        now = clock.monotonic()
        waiting = sum(float("inf") if lag is None else lag for lag in lags)
        if waiting < best:
            best, deadline = waiting, now + _STUCK_SECONDS
        if now > deadline:
            raise FleetError(
                f"{waiting:.0f} records of {', '.join(groups)} wait and become no fewer for "
                f"{_STUCK_SECONDS:g} s; see the workers' logs in {fleet.home / 'workers'}"
            )
        clock.sleep(_LOOK_SECONDS)


def await_settled(fleet: Fleet, group: str, *, clock: Clock) -> None:
    """Wait until the group was Stable for heartbeat + 2 s [25]: no round is still to come."""
    deadline = clock.monotonic() + _SETTLING_SECONDS
    calm = clock.monotonic()
    while clock.monotonic() - calm < _SETTLED_SECONDS:
        seen = fleet.snapshot([group]).groups.get(group)
        if seen is None or seen.state is not GroupState.STABLE:
            calm = clock.monotonic()
        if clock.monotonic() > deadline:
            raise FleetError(f"group {group} does not settle within {_SETTLING_SECONDS:g} s")
        clock.sleep(_POLL_SECONDS)
