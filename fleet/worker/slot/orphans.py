"""Partitions that nobody in a quiet group owns, and the one rebalance that gives them an owner.

Problem: a cooperative rebalance comes in two rounds: a partition is given up in the first and
given to its new owner in the second, which the member that gave it up asks for. Where that
member or the coordinator dies in between, static members come back without a rebalance
(KIP-345), the second round never comes, and a partition is read by nobody for as long as nothing
else changes (seen: a broker's kill -9 after an opened slot). Choice: the holder of the lowest
active slot looks at its group now and then; a partition of its topics that a Stable group has
left without an owner for `PATIENCE` is cured by one forced rebalance through the gate, the same
that a person may ask for. Cost: a question per group and 20 s (fleet.worker.asking: 0.7 % of a
core, in one worker), and a rebalance that no plan has named, told in a sentence. A partition
that was just added is found by the members themselves within their 30 s of metadata age, so
that the patience is longer.
"""

from collections.abc import Callable, Sequence
from typing import Final

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.model import TopicPartition
from fleet.slots import Gate, Phase, Slot
from fleet.worker.asking import Answer, Question
from fleet.worker.events import Events

LOOK: Final = 20.0
PATIENCE: Final = 45.0


class Orphans:
    """One holder's watch over its group; `step` never blocks. `end` it with the holder.

    `ask` puts the question about the group and these topics; FleetError where it cannot.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[str]], Question],
        *,
        topics: Sequence[str],
        rejoin: Callable[[], None],
        clock: Clock,
        events: Events,
    ) -> None:
        self._ask = ask
        self._topics = [topic for topic in topics if not topic.startswith("^")]
        self._rejoin = rejoin
        self._clock = clock
        self._events = events
        self._next = clock.monotonic() + LOOK
        self._asked: Question | None = None
        self._orphans: frozenset[TopicPartition] = frozenset()
        self._since = 0.0
        self._judged_at = 0.0

    def step(self, number: int, gate: Gate, slots: Sequence[Slot]) -> None:
        """Look where it is time and ours to; ask for the rebalance where patience has ended."""
        if not _ours(number, gate, slots):
            self._orphans = frozenset()
            self.end()
            return
        now = self._clock.monotonic()
        if self._asked is not None:
            self._judge(self._asked, now)
        elif now >= self._next and self._topics:
            self._next = now + LOOK
            try:
                self._asked = self._ask(self._topics)
            except FleetError as error:  # weather: no process is to be had
                self._events.log_rarely(str(error), key="orphans")

    def end(self) -> None:
        """Give up what is under way."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.end()

    def _judge(self, asked: Question, now: float) -> None:
        if not asked.done():
            if now >= self._next:
                self.end()
            return
        self._asked = None
        try:
            found = orphans(asked.answer())
        except FleetError:  # weather: look again later
            return
        gap, self._judged_at = now - self._judged_at, now
        if found != self._orphans or gap > 2 * LOOK:  # who did not look does not know [39]
            self._orphans, self._since = found, now
        elif found and now - self._since >= PATIENCE:
            self._orphans = frozenset()
            names = ", ".join(map(str, sorted(found)[:5]))
            self._events.log(f"nobody owns {names} since {PATIENCE:g} s: asking for a rebalance")
            self._events.emit("orphans", partitions=[str(tp) for tp in sorted(found)])
            self._rejoin()


def _ours(number: int, gate: Gate, slots: Sequence[Slot]) -> bool:
    """Whether nothing is being changed, and ours is the lowest active slot."""
    tokens = {each.number: each.token for each in slots}
    # What was asked of a former holder asks nobody any more.
    asked = {n: pin.token for n, pin in gate.handover.items()}.items() | gate.rejoin.items()
    if gate.leaving or asked & tokens.items():
        return False
    active = [each.number for each in slots if each.phase is Phase.ACTIVE]
    return bool(active) and min(active) == number


def orphans(seen: Answer) -> frozenset[TopicPartition]:
    """Partitions of the topics without an owner; none where the group is not Stable."""
    if seen.state != "STABLE":
        return frozenset()
    return seen.partitions.difference(*(member.partitions for member in seen.members))
