"""A backlog that the policy shall see: until it wants a size, and kept until a change has begun.

On a fast machine a backlog is gone before a change is planned: it is kept by producing as much as
is processed. Cost: one look at the group per quarter second.
"""

from collections.abc import Callable
from typing import Final

from fleet.clock import Clock
from fleet.demo.stage import RECORDS_PER_WORKER
from fleet.errors import FleetError
from fleet.manager.cycle import Fleet

KEPT: Final = 8 * RECORDS_PER_WORKER
"""More than six workers' share, so that the policy wants six also where one more batch is done."""
CAUGHT_UP: Final = 2 * RECORDS_PER_WORKER
_POLICY_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5


def await_policy(
    fleet: Fleet, group: str, wanted: int, *, clock: Clock, say: Callable[[str], None]
) -> None:
    """Look until the policy wants this many slots; FleetError after a minute."""
    deadline = clock.monotonic() + _POLICY_SECONDS
    while True:
        decision = fleet.wanted(group, fleet.snapshot([group]))
        if decision.wanted == wanted:
            say(f"the policy: {decision.sentence}")
            return
        if clock.monotonic() > deadline:
            raise FleetError(
                f"the policy does not want {wanted} slots after {_POLICY_SECONDS:g} s: "
                f"{decision.sentence}"
            )
        clock.sleep(_LOOK_SECONDS)


def keep_backlog(
    fleet: Fleet,
    group: str,
    *,
    surge: int,
    steady: int,
    rate: Callable[[int], None],
    until: Callable[[], bool],
    clock: Clock,
) -> None:
    """Produce in surges, as much as keeps the backlog, until `until`; steady afterwards.

    Returns after a minute at the latest: what was waited for fails in its own words then.
    """
    deadline = clock.monotonic() + _POLICY_SECONDS
    now = surge
    rate(now)
    while not until() and clock.monotonic() < deadline:
        seen = fleet.snapshot([group]).groups.get(group)
        wanted = surge if seen is None or (seen.lag or 0) < KEPT else steady
        if wanted != now:
            now = wanted
            rate(now)
        clock.sleep(_LOOK_SECONDS / 2)
    rate(steady)
