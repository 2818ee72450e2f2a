"""Lets a KIP-848 member hear of its group's change at once, by subscribing again.

Problem: a member hears of an assignment with its next heartbeat, 5 s as Kafka ships it, and every
change waits for the slowest of its members. Choice: librdkafka sends a heartbeat at once when its
consumer subscribes, and the coordinator raises no epoch for the names that it has already [41]:
while slots show that the group changes, the member subscribes again to the very same topics every
0.13 s, until nobody joins any more and its own epoch and partitions have kept still. It ends in any
case after `MOST` times or `LONGEST` seconds, and never begins where the slot is not ours any more.
In the classic protocol a subscribe is a new join: nothing is done there. Cost: a heartbeat each;
about twenty a member and change where that takes a second.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fleet.clock import Clock
from fleet.errors import ConfigError
from fleet.worker.events import Events

VARIABLE: Final = "FLEET_NUDGES"
PAUSE: Final = 0.13
"""Eight are a little more than the second that Kafka leaves between two assignments as it comes
(KIP-1263): who begins together with the first of them hears of the second when it is due."""
STILL: Final = 10
"""Times in a row that nothing of ours moved: longer than that second."""
MOST: Final = 90
LONGEST: Final = 12.0


def wanted(environ: Mapping[str, str]) -> bool:
    """The seam of benchmarks: FLEET_NUDGES=0 leaves members to their heartbeats.

    Raises ConfigError where it is neither 0 nor 1.
    """
    told = environ.get(VARIABLE, "1")
    if told not in {"0", "1"}:
        raise ConfigError(f"{VARIABLE}={told}: write 0 or 1, or unset it")
    return told == "1"


@dataclass(slots=True, kw_only=True)
class _Hurry:
    """One change, as this member hurries it."""

    why: str
    begins: float
    next: float
    count: int = 0
    still: int = 0
    mark: object = None


class Nudging:
    """Of one membership; used on the consumer's thread.

    ours: whether the slot is still held. joining: whether anybody of the group still joins.
    """

    def __init__(
        self,
        *,
        ours: Callable[[], bool],
        joining: Callable[[], bool],
        clock: Clock,
        events: Events,
    ) -> None:
        self._ours = ours
        self._joining = joining
        self._clock = clock
        self._events = events
        self._hurry: _Hurry | None = None

    def begin(self, why: str, at: float) -> None:
        """The group's membership changes from this monotonic time on."""
        self._hurry = _Hurry(why=why, begins=at, next=at)

    def due(self, mark: Callable[[], object]) -> bool:
        """Whether to subscribe again now. mark: what is settled once it keeps still."""
        hurry, now = self._hurry, self._clock.monotonic()
        if hurry is None or now < hurry.next:
            return False
        seen = mark()
        hurry.still = hurry.still + 1 if seen == hurry.mark else 0
        hurry.mark = seen
        over = self._over(hurry, now)
        if over is not None:
            self._end(hurry, over, now)
            return False
        hurry.next, hurry.count = now + PAUSE, hurry.count + 1
        return True

    def _over(self, hurry: _Hurry, now: float) -> str | None:
        if not self._ours():
            return "slot lost"
        if hurry.count >= MOST or now - hurry.begins >= LONGEST:
            return "limit"
        return "settled" if hurry.still >= STILL and not self._joining() else None

    def _end(self, hurry: _Hurry, how: str, now: float) -> None:
        self._hurry = None
        self._events.emit(
            "nudged",
            why=hurry.why,
            count=hurry.count,
            seconds=round(now - hurry.begins, 3),
            ended=how,
        )
        if how == "limit":
            self._events.log(
                f"the group is not settled {now - hurry.begins:.0f} s after {hurry.why}: going "
                "on by heartbeats alone"
            )
