"""A slot's life on one page: what is seen, and the state → the next state, and what is done.

Problem: an owner is asked for several things (hand over, leave with others, rejoin, end), may
lose its slot, its membership or both, and which of them wins decides whether two processes ever
use one instance id; decided between threads, that is tried only as far as threads happen to meet.
Choice: everything is decided here, of what was seen at one look, without a thread, a clock or a
request; `SlotOwner` carries it out and tells what came of it. What may follow what is one table;
a move that is not in it is a defect of ours, and raises with the story. Cost: what the store or
the coordinator answers comes back as an argument of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from fleet.slots import Phase, SlotTargets
from fleet.worker.member.member_state import End, Ended


class Life(StrEnum):
    """What a tenure is at, and what its member is told to be."""

    SERVING = "serving"
    """A member, or about to be one: reads and commits. As told: read again."""
    HOLDING = "holding"
    """Leaves with others: drained, it stays a member until all are, and closes then."""
    STILL = "still"
    """Told only, to a dynamic member in place of its close, which would be a leave of its own:
    poll no more, heartbeat on. Whom the batched leave removes must not join again."""
    REJOINING = "rejoining"
    """Drains, leaves and joins again: one forced rebalance. Then it takes the ask back."""
    CLOSING = "closing"
    """Drains, closes (a static member sends no LeaveGroup) and gives the slot up. An ask that is
    taken back comes too late."""
    LOST = "lost"
    """The slot is somebody else's: stop at once, commit nothing."""
    OVER = "over"
    """Nothing is held."""


class Seen(StrEnum):
    """What a look may show, most urgent first; what is asked goes by what it is told as."""

    LOST = "lost"
    END = "end"
    LEAVE = "leave"
    SLOT_CLOSED = "slot closed"
    HANDOVER = "handover"
    REJOIN = "rejoin"
    NOTHING = "asked no more"
    ENDED = "its membership has ended"
    BEGINS = "a membership begins"


_HELD: Final = (Life.SERVING, Life.HOLDING, Life.REJOINING, Life.CLOSING)
TABLE: Final[Mapping[Seen, Mapping[Life, Life]]] = {
    Seen.LOST: dict.fromkeys((*_HELD, Life.LOST), Life.LOST),
    Seen.END: dict.fromkeys(_HELD, Life.CLOSING),
    Seen.LEAVE: dict.fromkeys(_HELD, Life.HOLDING),
    Seen.SLOT_CLOSED: dict.fromkeys(_HELD, Life.CLOSING),
    Seen.HANDOVER: dict.fromkeys(_HELD, Life.CLOSING),
    Seen.REJOIN: dict.fromkeys(_HELD, Life.REJOINING),
    Seen.NOTHING: {**dict.fromkeys(_HELD, Life.SERVING), Life.CLOSING: Life.CLOSING},
    Seen.ENDED: dict.fromkeys((*_HELD, Life.LOST), Life.OVER),
    Seen.BEGINS: dict.fromkeys(_HELD, Life.SERVING),  # the first, or once more
}
"""What is seen → the state before → the state after."""


class IllegalLife(Exception):
    """A defect: an owner was to make a move that there is not."""


class Asked(NamedTuple):
    """An ask, and the token of whom it is asked where it names one."""

    what: Seen
    token: int | None = None


class Instruction(NamedTuple):
    """What is to be done now: the member is to be this (LOST: stop at once)."""

    life: Life
    why: Seen | None = None
    """Where it is news."""
    rejoined: bool = False
    """Nothing of that: the ask to rejoin is taken back, since it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLook:
    """What one look of the owner saw."""

    targets: SlotTargets
    phase: Phase
    """The member's."""
    stored: Phase
    """As the slot tells others."""
    joined_at: float | None
    all_drained: bool
    """Whether every slot that leaves has committed what it had."""
    ending: bool
    """Whether this process was told to end."""
    lost: bool
    """Whether the store shows another owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastAct:
    """What the end of a membership leads to: the slot is released, if nothing else is said."""

    again: str | None = None
    """The slot is kept, and the member joins once more: why, for people."""
    exit: str | None = None
    """Why the worker ends with it; None: it goes on as a standby."""
    ours: bool = True
    """False: the slot is somebody else's, and left alone."""
    shut: bool = False
    """It is closed for everybody first: a foreign process uses its instance id [15]."""
    clean: bool = False
    closed: bool = False
    """Released for a batched leave: its member is to be removed yet."""
    gone: bool = False
    """Its member left with its close."""
    handed: bool = False
    """It was handed over: this worker does not take it back."""


class SlotLife:
    """One tenure of one slot, from its taking to its end; pure."""

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
        self._began: Asked | None = None
        self._joined_before: float | None = None
        self._fenced_at: float | None = None
        self._freed_at: float | None = None
        self._freed_twice = False
        self._story: list[str] = []

    def begins(self) -> None:
        """A membership begins: nothing is asked of it yet."""
        self._move(Seen.BEGINS)
        self._began = None

    def asked(self, targets: SlotTargets, *, ending: bool) -> Asked | None:
        """What is asked of this owner now. ending: its process was told to end."""
        number, token = self._number, self._token
        if ending:
            return Asked(Seen.END)
        if number in targets.leaving:
            return Asked(Seen.LEAVE)
        if number not in targets.open or number in targets.quarantined:
            return Asked(Seen.SLOT_CLOSED)
        pin = targets.handover.get(number)
        if pin is not None and pin.token == token:
            return Asked(Seen.HANDOVER, token)
        return Asked(Seen.REJOIN, token) if targets.rejoin.get(number) == token else None

    def look(self, seen: OwnerLook) -> Instruction | None:
        """Begin what is asked now, take back what is asked no more."""
        if seen.lost:
            return Instruction(self._move(Seen.LOST))
        before, asked = self.state, self.asked(seen.targets, ending=seen.ending)
        if asked is None:
            if self._move(Seen.NOTHING) is Life.SERVING:
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

    def ended(
        self, end: Ended, *, lost: str | None, ours: bool | None, now: float, cured: bool
    ) -> LastAct | None:
        """What follows a membership; None: free the instance id, then `freed` or `external`.

        lost: why the slot is not ours any more. ours: of a refused member whether the store, asked
        since, names us still; None: asked to end before it told. now: monotonic. cured: nothing of
        a former owner runs any more, as far as we can see to it.
        """
        # A dynamic member id is nobody's after its close: no leave shall be sent for it.
        gone, clean = not self._static, end.clean and cured
        if end.how is End.FENCED or end.how is End.UNRELEASED:
            return self._refused(end, ours=ours, now=now, clean=clean)
        stays = lost is None and self.state in {Life.SERVING, Life.REJOINING}
        if end.how is End.STALLED and stays:  # else it goes anyway
            return LastAct(again=end.sentence)
        self._move(Seen.ENDED)
        if lost is not None:
            return LastAct(ours=False, exit=f"{lost}: stopped, batch void")
        if end.how is End.FATAL:
            return LastAct(exit=end.sentence, clean=clean, gone=gone)
        why = self._began.what if self._began is not None else None
        closed, handed = why is Seen.LEAVE, why is Seen.HANDOVER
        return LastAct(clean=clean, closed=closed, gone=gone, handed=handed)

    def _refused(self, end: Ended, *, ours: bool | None, now: float, clean: bool) -> LastAct | None:
        """82: once it may be librdkafka fencing itself; twice it is another process [15].

        111: the instance id is freed, once; refused again, the worker ends [10].
        """
        number, code = self._number, 82 if end.how is End.FENCED else 111
        if not ours:
            self._move(Seen.ENDED)
            if ours is None:
                why = f"asked to end while nobody tells whose slot {number} is ({code})"
            else:
                void = ", batch void" if end.how is End.FENCED else ""
                why = f"slot {number} has another owner ({code}): stopped{void}"
            return LastAct(ours=False, exit=why)
        if end.how is End.UNRELEASED:
            before, self._freed_at = self._freed_at, now
            self._freed_twice = before is not None and now - before <= self._window
            return None
        before, self._fenced_at = self._fenced_at, now
        if before is None or now - before > self._window:
            return LastAct(again=f"fenced (82) while slot {number} is ours: joining once more")
        sentence = (
            f"another process uses the instance id {self._instance_id} (82 twice within "
            f"{self._window:g} s): slot {number} is closed; find that process, then open it"
        )
        return self.external(sentence, clean=clean)

    def freed(self, why: str | None, sentence: str) -> LastAct:
        """Somebody tried to free the id. why: it is not; sentence: the refusal's."""
        if why is None and not self._freed_twice:
            said = f"refused (111) while slot {self._number} is ours: joining once more"
            return LastAct(again=said)
        self._move(Seen.ENDED)
        return LastAct(  # not clean: the next new owner has to free it as well
            exit=f"the coordinator refuses {self._instance_id} (111), since it believes that its "
            f"former member lives, for {self._window:g} s at most: {why or sentence}"
        )

    def external(self, sentence: str, *, clean: bool) -> LastAct:
        """A foreign process has our instance id [15]."""
        self._move(Seen.ENDED)
        return LastAct(shut=True, exit=sentence, clean=clean)

    def _move(self, seen: Seen) -> Life:
        after = TABLE[seen].get(self.state)
        if after is None:
            told = "\n  ".join(self._story)
            raise IllegalLife(
                f"the owner of slot {self._number} is {self.state}, where there is no "
                f"'{seen}'; what led there:\n  {told}"
            )
        if after is not self.state:
            self._story.append(f"{seen}: {self.state} => {after}")
            self.state = after
        return after
