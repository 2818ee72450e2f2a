"""What a holder sees in gate and slots of a change of its group's membership.

Problem: members that shall hear of a change at once [41] have to know that there is one, without
a question to anybody. Choice: the holder compares what it reads anyway. Slots that open or close,
a forced rebalance that is over, and a slot that a dead holder's successor took are changes; a
handover is none, since a static member that is replaced moves nothing. Members that heartbeat
between a dead member's leave and its successor's join would bring an assignment of their own, so
that they wait until the taker is ready, or for `TAKER_JOINS`. They hear then, since what the dead
one had may be theirs: where a member has one partition more than others, another may get it.
Cost: none.
"""

from collections.abc import Collection, Sequence
from typing import Final

from fleet.clock import Clock
from fleet.slots import Gate, Phase, Slot

TAKER_JOINS: Final = 2.0
"""Seconds from taking a slot to its join: the dead one's leave, connections, subscribe."""
LATEST: Final = 30.0
"""Seconds that an opening is believed to lie ahead."""
Seen = tuple[str, float]
"""What changes, and the monotonic time from which on members shall hear of it."""


class SeenChanges:
    """One holder's; `look` on one thread, `joining` read by any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gate: Gate | None = None
        self._slots: dict[int, Slot] = {}
        self._taken: dict[int, tuple[int, float]] = {}
        self.joining = False
        """Whether a slot's living holder is not ready yet."""

    def look(self, gate: Gate, slots: Sequence[Slot], dead: Collection[int]) -> Seen | None:
        """Compare with the last look; the first one sees nothing."""
        now = self._clock.monotonic()
        before, self._gate = self._gate, gate
        held, self._slots = self._slots, {each.number: each for each in slots}
        self.joining = any(
            each.number in gate.open and each.number not in dead and _joins(each) for each in slots
        )
        if before is None:
            return None
        self._note_takers(gate, held, now)
        if gate.open - before.open:
            opens = now + (gate.open_at - self._clock.now())  # as a joiner waits for it
            return "slots were opened", min(max(now, opens), now + LATEST)
        if before.open - gate.open:
            return "slots were closed", now
        if before.rejoin.keys() - gate.rejoin.keys():
            return "a forced rebalance", now
        return self._taker(now)

    def _note_takers(self, gate: Gate, held: dict[int, Slot], now: float) -> None:
        for number, slot in self._slots.items():
            last, pin = held.get(number), gate.handover.get(number)
            if last is None or slot.token == last.token or slot.holder is None:
                continue
            handed = pin is not None and pin.token == last.token
            back = last.holder is None and last.clean and last.member_id is not None
            if not handed and not back:
                self._taken[number] = (slot.token, now)

    def _taker(self, now: float) -> Seen | None:
        for number, (token, since) in list(self._taken.items()):
            slot = self._slots.get(number)
            if slot is None or slot.token != token or slot.holder is None:
                del self._taken[number]
            elif not _joins(slot) or now - since >= TAKER_JOINS:
                del self._taken[number]
                return f"slot {number} was taken over", now
        return None


def _joins(slot: Slot) -> bool:
    return slot.holder is not None and slot.phase is Phase.JOINING
