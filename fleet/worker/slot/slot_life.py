"""A slot's life on one page: observation and state → the next state, and what to do.

Problem: an owner is asked for several things (hand over, leave with others, rejoin, end) and may
lose its slot, its membership or both. Which of them wins decides whether two processes ever use one
instance id. If threads decide it between them, tests cover only the orders that happen. Choice:
everything is decided here from one observation, without a thread, a clock or a request. `SlotOwner`
carries it out and reports the result. One table has the allowed moves; any other move is a defect
of Fleet and raises with its history. Cost: an answer of the store or the coordinator comes back as
an argument of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from fleet.slots import Phase, SlotTargets
from fleet.worker.member.member_state import End, MembershipEnd


class Life(StrEnum):
    """The state of an ownership, and what its member has to be."""

    SERVING = "serving"
    """A member, or about to be one: reads and commits. For the member: read again."""
    HOLDING = "holding"
    """Leaves with others: drained, it stays a member until all are, and closes then."""
    STILL = "still"
    """For a dynamic member, in place of its close, which would be a leave of its own: poll no more,
    heartbeat on. A member that the batched leave removes must not join again."""
    REJOINING = "rejoining"
    """Drains, leaves and joins again: one forced rebalance. Then it takes the request back."""
    CLOSING = "closing"
    """Drains, closes (a static member sends no LeaveGroup) and releases the slot. A request that is
    taken back comes too late."""
    LOST = "lost"
    """Another worker owns the slot: stop at once, commit nothing."""
    OVER = "over"
    """It owns no slot."""


class OwnerEvent(StrEnum):
    """What a poll may show, most urgent first."""

    LOST = "lost"
    END = "end"
    LEAVE = "leave"
    SLOT_CLOSED = "slot closed"
    HANDOVER = "handover"
    REJOIN = "rejoin"
    NOTHING = "asked no more"
    ENDED = "its membership has ended"
    BEGINS = "a membership begins"


_OWNING: Final = (Life.SERVING, Life.HOLDING, Life.REJOINING, Life.CLOSING)
TABLE: Final[Mapping[OwnerEvent, Mapping[Life, Life]]] = {
    OwnerEvent.LOST: dict.fromkeys((*_OWNING, Life.LOST), Life.LOST),
    OwnerEvent.END: dict.fromkeys(_OWNING, Life.CLOSING),
    OwnerEvent.LEAVE: dict.fromkeys(_OWNING, Life.HOLDING),
    OwnerEvent.SLOT_CLOSED: dict.fromkeys(_OWNING, Life.CLOSING),
    OwnerEvent.HANDOVER: dict.fromkeys(_OWNING, Life.CLOSING),
    OwnerEvent.REJOIN: dict.fromkeys(_OWNING, Life.REJOINING),
    OwnerEvent.NOTHING: {**dict.fromkeys(_OWNING, Life.SERVING), Life.CLOSING: Life.CLOSING},
    OwnerEvent.ENDED: dict.fromkeys((*_OWNING, Life.LOST), Life.OVER),
    OwnerEvent.BEGINS: dict.fromkeys(_OWNING, Life.SERVING),  # the first, or once more
}
"""Event → state before → state after."""


class IllegalLifeMove(Exception):
    """A defect: an owner was to make a move that is not allowed."""


class Ask(NamedTuple):
    """A request, and the token of the owner that it names."""

    what: OwnerEvent
    token: int | None = None


class Instruction(NamedTuple):
    """What to do now: the member has to be this (LOST: stop at once)."""

    life: Life
    why: OwnerEvent | None = None
    """The reason, if it is new."""
    rejoined: bool = False
    """True: the request to rejoin is taken back, because it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerObservation:
    """What one poll of the owner observed."""

    targets: SlotTargets
    phase: Phase
    """The member's phase."""
    stored: Phase
    """The phase that the slot shows to others."""
    joined_at: float | None
    all_drained: bool
    """Whether every leaving slot has committed what it had."""
    ending: bool
    """Whether this process was asked to end."""
    lost: bool
    """Whether the store names another owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What the end of a membership leads to; by default the slot is released."""

    again: str | None = None
    """Why the slot is kept and the member joins once more, for people."""
    exit: str | None = None
    """Why the worker ends with it; None: it goes on as a standby."""
    ours: bool = True
    """False: another worker owns the slot, which is left alone."""
    quarantine: bool = False
    """The slot is quarantined first: an external process uses its instance id [15]."""
    clean: bool = False
    closed: bool = False
    """Released for a batched leave: its member still has to be removed."""
    gone: bool = False
    """Its member left with its close."""
    handed: bool = False
    """It was handed over: this worker does not take it back."""


class SlotLife:
    """One ownership of one slot, from its take to its end; pure."""

    def __init__(
        self, *, number: int, instance_id: str, token: int, static: bool, window: float
    ) -> None:
        self.state = Life.SERVING
        self._number = number
        self._instance_id = instance_id
        self._token = token
        self._static = static
        self._window = window
        """Seconds within which a second refusal counts: the session timeout."""
        self._began: Ask | None = None
        self._joined_before: float | None = None
        self._fenced_at: float | None = None
        self._freed_at: float | None = None
        self._freed_twice = False
        self._story: list[str] = []

    def begins(self) -> None:
        """Records that a membership begins: nothing is asked of it yet."""
        self._move(OwnerEvent.BEGINS)
        self._began = None

    def read_ask(self, targets: SlotTargets, *, ending: bool) -> Ask | None:
        """Returns what is asked of this owner now. ending: its process was asked to end."""
        number, token = self._number, self._token
        if ending:
            return Ask(OwnerEvent.END)
        if number in targets.leaving:
            return Ask(OwnerEvent.LEAVE)
        if number not in targets.open or number in targets.quarantined:
            return Ask(OwnerEvent.SLOT_CLOSED)
        pin = targets.handover.get(number)
        if pin is not None and pin.token == token:
            return Ask(OwnerEvent.HANDOVER, token)
        return Ask(OwnerEvent.REJOIN, token) if targets.rejoin.get(number) == token else None

    def decide(self, seen: OwnerObservation) -> Instruction | None:
        """Begins what is asked now, takes back what is asked no more."""
        if seen.lost:
            return Instruction(self._move(OwnerEvent.LOST))
        before, asked = self.state, self.read_ask(seen.targets, ending=seen.ending)
        if asked is None:
            if self._move(OwnerEvent.NOTHING) is Life.SERVING:
                self._began = None
            return Instruction(Life.SERVING) if before is Life.HOLDING else None
        if asked != self._began:
            self._began, self._joined_before = asked, seen.joined_at
            return Instruction(self._move(asked.what), asked.what)
        drained = seen.all_drained and seen.phase is seen.stored is Phase.DRAINED
        if before is Life.HOLDING and drained:
            return Instruction(Life.CLOSING if self._static else Life.STILL)
        if before is Life.REJOINING and seen.joined_at != self._joined_before:
            return Instruction(before, rejoined=True)
        return None

    def conclude(
        self, end: MembershipEnd, *, lost: str | None, ours: bool | None, now: float, cured: bool
    ) -> Conclusion | None:
        """Returns what follows a membership; None: free the instance id, then `conclude_freed` or
        `conclude_external`.

        lost: why the slot is lost. ours: for a refused member, whether the store still names this
        worker; None: asked to end before it answered. now: monotonic. cured: as far as known,
        nothing of a former owner runs any more.
        """
        # A dynamic member id is void after its close: no leave must be sent for it.
        gone, clean = not self._static, end.clean and cured
        if end.how is End.FENCED or end.how is End.UNRELEASED:
            return self._refused(end, ours=ours, now=now, clean=clean)
        stays = lost is None and self.state in {Life.SERVING, Life.REJOINING}
        if end.how is End.STALLED and stays:  # else it goes anyway
            return Conclusion(again=end.sentence)
        self._move(OwnerEvent.ENDED)
        if lost is not None:
            return Conclusion(ours=False, exit=f"{lost}: stopped, batch void")
        if end.how is End.FATAL:
            return Conclusion(exit=end.sentence, clean=clean, gone=gone)
        why = self._began.what if self._began is not None else None
        closed, handed = why is OwnerEvent.LEAVE, why is OwnerEvent.HANDOVER
        return Conclusion(clean=clean, closed=closed, gone=gone, handed=handed)

    def _refused(
        self, end: MembershipEnd, *, ours: bool | None, now: float, clean: bool
    ) -> Conclusion | None:
        """Handles a refused member.

        82: once it may be librdkafka fencing itself; twice it is another process [15]. 111: the
        instance id is freed, once; refused again, the worker ends [10].
        """
        number, code = self._number, 82 if end.how is End.FENCED else 111
        if not ours:
            self._move(OwnerEvent.ENDED)
            if ours is None:
                why = f"asked to end while the store does not say who owns slot {number} ({code})"
            else:
                void = ", batch void" if end.how is End.FENCED else ""
                why = f"slot {number} has another owner ({code}): stopped{void}"
            return Conclusion(ours=False, exit=why)
        if end.how is End.UNRELEASED:
            before, self._freed_at = self._freed_at, now
            self._freed_twice = before is not None and now - before <= self._window
            return None
        before, self._fenced_at = self._fenced_at, now
        if before is None or now - before > self._window:
            return Conclusion(
                again=f"fenced (82) while this worker owns slot {number}: joining once more"
            )
        sentence = (
            f"another process uses the instance id {self._instance_id} (82 twice within "
            f"{self._window:g} s): slot {number} is quarantined; end that process, then reopen it"
        )
        return self.conclude_external(sentence, clean=clean)

    def conclude_freed(self, why: str | None, sentence: str) -> Conclusion:
        """Concludes after an attempt to free the id. why: not free; sentence: the refusal's."""
        if why is None and not self._freed_twice:
            said = f"refused (111) while this worker owns slot {self._number}: joining once more"
            return Conclusion(again=said)
        self._move(OwnerEvent.ENDED)
        return Conclusion(  # not clean: the next new owner has to free it as well
            exit=f"the coordinator refuses {self._instance_id} (111) because it believes that its "
            f"former member lives, for {self._window:g} s at most: {why or sentence}"
        )

    def conclude_external(self, sentence: str, *, clean: bool) -> Conclusion:
        """Concludes if an external process has the instance id [15]."""
        self._move(OwnerEvent.ENDED)
        return Conclusion(quarantine=True, exit=sentence, clean=clean)

    def _move(self, seen: OwnerEvent) -> Life:
        after = TABLE[seen].get(self.state)
        if after is None:
            told = "\n  ".join(self._story)
            raise IllegalLifeMove(
                f"the owner of slot {self._number} is {self.state}, where there is no "
                f"'{seen}'; what led there:\n  {told}"
            )
        if after is not self.state:
            self._story.append(f"{seen}: {self.state} => {after}")
            self.state = after
        return after
