"""What a slot's holder does next: one state machine, events in and instructions out.

Problem: a holder is asked for several things (hand over, leave with others, rejoin, end), may
lose its slot, its membership or both, and which of them wins decides whether two processes ever
use one instance id; decided between threads, that is tried only as far as threads happen to meet.
Choice: everything is decided here, of what was seen at one look, without a thread, a clock or a
request; `SlotHolder` carries out what it is told and tells what came of it, and the simulation
(tests/schedules) does the same on simulated time. What may follow what stands in one table; a move
that is not in it is a defect of ours, and raises with the story. Cost: what the store or the
coordinator answers comes back as an event of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from fleet.slots import Gate, Phase
from fleet.worker.member.member_state import Drain, End, Ended


class Ask(StrEnum):
    """What gate or process ask of a holder, most urgent first."""

    END = "end"
    LEAVE = "leave"
    SLOT_CLOSED = "slot closed"
    HANDOVER = "handover"
    REJOIN = "rejoin"


class Asked(NamedTuple):
    """An ask, and the token of whom it is asked where it names one."""

    what: Ask
    token: int | None


def asked_of(gate: Gate, number: int, token: int, *, ending: bool) -> Asked | None:
    """What is asked of the slot's holder with this token. ending: its process was told to end."""
    if ending:
        return Asked(Ask.END, None)
    if number in gate.leaving:
        return Asked(Ask.LEAVE, None)
    if number not in gate.open or number in gate.quarantined:
        return Asked(Ask.SLOT_CLOSED, None)
    pin = gate.handover.get(number)
    if pin is not None and pin.token == token:
        return Asked(Ask.HANDOVER, token)
    if gate.rejoin.get(number) == token:
        return Asked(Ask.REJOIN, token)
    return None


class Life(StrEnum):
    """What a tenure is at.

    SERVING: a member, or about to be one.
      action: renew, read, commit
      transitions: asked to leave with others => HOLDING; asked to rejoin => REJOINING; asked to
        go (end, slot closed, handover) => CLOSING; the store shows another holder => LOST
    HOLDING: drains, stays a member, and closes with the others that leave.
      action: once all are drained, close (a dynamic member: poll no more)
      transitions: asked no more => SERVING; asked otherwise => REJOINING or CLOSING; another
        holder => LOST
    REJOINING: drains, leaves and joins again.
      action: once it has joined again, take the ask back
      transitions: asked no more => SERVING; asked otherwise => HOLDING or CLOSING; another
        holder => LOST
    CLOSING: drains, closes, and gives the slot up.
      action: none; an ask that was taken back comes too late
      transitions: asked otherwise => HOLDING or REJOINING, which changes nothing any more for
        the member; another holder => LOST
    LOST: the slot is somebody else's.
      action: stop at once, commit nothing
      transitions: its membership has ended => OVER
    OVER: nothing is held; whatever the state was, an ended membership leads here, unless it joins
      once more => SERVING.
      action: none
      transitions: none
    """

    SERVING = "serving"
    HOLDING = "holding"
    REJOINING = "rejoining"
    CLOSING = "closing"
    LOST = "lost"
    OVER = "over"


_BEGINS: Final[Mapping[Ask, Life]] = {
    Ask.END: Life.CLOSING,
    Ask.LEAVE: Life.HOLDING,
    Ask.SLOT_CLOSED: Life.CLOSING,
    Ask.HANDOVER: Life.CLOSING,
    Ask.REJOIN: Life.REJOINING,
}
_ASKABLE: Final = (Life.SERVING, Life.HOLDING, Life.REJOINING, Life.CLOSING)
_STAYS: Final = (Life.SERVING, Life.REJOINING)
"""Nothing is asked that ends a tenure."""
MOVES: Final[frozenset[tuple[Life, Life]]] = frozenset(
    {
        *((before, after) for before in _ASKABLE for after in _BEGINS.values()),
        *((before, Life.LOST) for before in (*_ASKABLE, Life.LOST)),
        *((before, Life.OVER) for before in (*_ASKABLE, Life.LOST)),
        (Life.SERVING, Life.SERVING),
        (Life.HOLDING, Life.SERVING),
        (Life.REJOINING, Life.SERVING),
        (Life.CLOSING, Life.SERVING),  # fenced or refused meanwhile: it joins once more
    }
)
"""Which state may follow which."""


class IllegalLife(Exception):
    """A defect: a holder was to make a move that there is not."""


class Do(StrEnum):
    """What is to be carried out now."""

    ABORT = "abort"
    """Stop the membership, commit nothing."""
    DRAIN = "drain"
    GO_ON = "go on"
    """What was drained for is asked no more: read again."""
    REJOINED = "rejoined"
    """Take the ask to rejoin back: it is done."""


class Instruction(NamedTuple):
    """One thing to do; DRAIN: what follows it, and why where that is news."""

    do: Do
    then: Drain | None = None
    why: Ask | None = None


class Last(StrEnum):
    """What is to be done with the slot, now that its membership has ended."""

    RELEASE = "release"
    ABANDON = "abandon"
    """Leave it alone: it is somebody else's."""
    JOIN_AGAIN = "join again"
    FREE = "free"
    """Make the coordinator forget the instance id's former member; then `freed`, `foreign`."""
    SHUT = "shut"
    """Close the slot for everybody, then release it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastAct:
    """The end of a membership; exit: why the worker ends with it, None where it goes on."""

    do: Last
    exit: str | None = None
    clean: bool = False
    closed: bool = False
    """Released for a batched leave: its member is to be removed yet."""
    gone: bool = False
    """Its member left with its close."""
    handed: bool = False
    """It was handed over: this worker does not take it back."""
    said: str | None = None
    """For people, where nothing ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderLook:
    """What one look of the holder saw."""

    gate: Gate
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
    """Whether the store shows another holder."""


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
        self._again = False
        self._story: list[str] = []

    def begins(self) -> None:
        """A membership begins: nothing is asked of it yet."""
        self._move(Life.SERVING, "a membership begins")
        self._began = None

    def asked(self, gate: Gate, *, ending: bool) -> Asked | None:
        """What is asked of this holder now."""
        return asked_of(gate, self._number, self._token, ending=ending)

    # --- while its membership lasts ---------------------------------------------------------

    def look(self, seen: HolderLook) -> tuple[Instruction, ...]:
        """Begin what is asked now, take back what is asked no more."""
        if seen.lost:
            self._move(Life.LOST, "the store shows another holder")
            return (Instruction(Do.ABORT),)
        asked = self.asked(seen.gate, ending=seen.ending)
        if asked is None:
            return self._asked_nothing()
        told: list[Instruction] = []
        if asked != self._began:
            self._move(_BEGINS[asked.what], f"asked: {asked.what}")
            self._began, self._joined_before = asked, seen.joined_at
            then = {Ask.LEAVE: Drain.HOLD, Ask.REJOIN: Drain.REJOIN}.get(asked.what, Drain.CLOSE)
            told.append(Instruction(Do.DRAIN, then, asked.what))
        if asked.what is Ask.LEAVE and seen.phase is Phase.DRAINED and seen.stored is seen.phase:
            if seen.all_drained:
                # A dynamic member's close is a leave of its own: it waits for the one for all.
                then = Drain.CLOSE if self._static else Drain.STILL
                told.append(Instruction(Do.DRAIN, then))
        elif asked.what is Ask.REJOIN and seen.joined_at != self._joined_before:
            told.append(Instruction(Do.REJOINED))
        return tuple(told)

    def _asked_nothing(self) -> tuple[Instruction, ...]:
        before = self.state
        if before not in {Life.HOLDING, Life.REJOINING}:
            return ()
        self._move(Life.SERVING, "asked no more")
        self._began = None
        return (Instruction(Do.GO_ON),) if before is Life.HOLDING else ()

    # --- once it has ended -----------------------------------------------------------------

    def ended(self, end: Ended, *, lost: str | None, cured: bool) -> LastAct:
        """What an end that is no refusal leads to. lost: why the slot is not ours any more.

        cured: nothing of a former holder runs any more, as far as we can see to it.
        """
        self._move(Life.OVER, f"its membership has ended: {end.how}")
        if lost is not None:
            return LastAct(do=Last.ABANDON, exit=f"{lost}: stopped, batch void")
        # A dynamic member id is nobody's after its close: no leave shall be sent for it.
        gone, clean = not self._static, end.clean and cured
        if end.how is End.FATAL:
            return LastAct(do=Last.RELEASE, exit=end.sentence, clean=clean, gone=gone)
        why = self._began.what if self._began is not None else None
        return LastAct(
            do=Last.RELEASE,
            clean=clean,
            closed=why is Ask.LEAVE,
            gone=gone,
            handed=why is Ask.HANDOVER,
        )

    def stalled(self, end: Ended, *, lost: str | None) -> LastAct | None:
        """A member that has to begin with a new consumer; None: it ended for another reason, or
        goes anyway.
        """
        if end.how is not End.STALLED or lost is not None or self.state not in _STAYS:
            return None
        return LastAct(do=Last.JOIN_AGAIN, said=end.sentence)

    def fenced(self, end: Ended, *, ours: bool | None, now: float, cured: bool) -> LastAct:
        """82: once it may be librdkafka fencing itself; twice it is another process [15].

        ours: whether the store, asked since, names us still; None: asked to end before it told.
        now: monotonic.
        """
        if not ours:
            return self._others(82, ours, ": stopped, batch void")
        if self._fenced_at is None or now - self._fenced_at > self._window:
            self._fenced_at = now
            said = f"fenced (82) while slot {self._number} is ours: joining once more"
            return LastAct(do=Last.JOIN_AGAIN, said=said)
        sentence = (
            f"another process uses the instance id {self._instance_id} (82 twice within "
            f"{self._window:g} s): slot {self._number} is closed; find that process, then open it"
        )
        return self.foreign(sentence, clean=end.clean and cured)

    def refused(self, *, ours: bool | None, now: float) -> LastAct:
        """111: free the instance id and join once more; refused again, the worker ends [10]."""
        if not ours:
            return self._others(111, ours, ": stopped")
        self._again = self._freed_at is not None and now - self._freed_at <= self._window
        self._freed_at = now
        return LastAct(do=Last.FREE)

    def freed(self, why: str | None, sentence: str) -> LastAct:
        """What follows FREE. why: why the id is not free; sentence: the refusal's."""
        if why is None and not self._again:
            said = f"refused (111) while slot {self._number} is ours: joining once more"
            return LastAct(do=Last.JOIN_AGAIN, said=said)
        self._move(Life.OVER, "refused again")
        return LastAct(  # not clean: the next taker has to free it as well
            do=Last.RELEASE,
            exit=(
                f"the coordinator refuses {self._instance_id} (111), since it believes that its "
                f"former member lives, for {self._window:g} s at most: {why or sentence}"
            ),
        )

    def foreign(self, sentence: str, *, clean: bool) -> LastAct:
        """A foreign process has our instance id [15]."""
        self._move(Life.OVER, "a foreign process has its instance id")
        return LastAct(do=Last.SHUT, exit=sentence, clean=clean)

    def _others(self, code: int, ours: bool | None, rest: str) -> LastAct:
        self._move(Life.OVER, f"refused ({code}), and the store does not name it")
        if ours is None:
            sentence = f"asked to end while nobody tells whose slot {self._number} is ({code})"
        else:
            sentence = f"slot {self._number} has another holder ({code}){rest}"
        return LastAct(do=Last.ABANDON, exit=sentence)

    def _move(self, after: Life, why: str) -> None:
        if (self.state, after) not in MOVES:
            told = "\n  ".join(self._story)
            raise IllegalLife(
                f"the holder of slot {self._number} is {self.state} and cannot be {after} "
                f"({why}); what led there:\n  {told}"
            )
        if after is not self.state:
            self._story.append(f"{why}: {self.state} => {after}")
            self.state = after
