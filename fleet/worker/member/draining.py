"""What a member is asked to drain for, for how long, and what becomes of an ask that is taken back.

Problem: a leave may be called off while the batch in hand runs. Whoever reads on from what is
committed then reads that batch's records again, cuts them with what came meanwhile, and gives a
sink a range that it does not know: a clean change processes twice. Choice: an ask that is taken
back is a drain like the others, which ends in reading again: the batch in hand is committed first,
and takes the time that it takes. Cost: nothing is read ahead of that commit.
"""

from fleet.slots import Phase
from fleet.worker.member.member_state import Drain, MemberState


class Draining:
    """Of one membership; used on its thread. timeout: seconds that a batch in hand may take."""

    def __init__(self, state: MemberState, *, timeout: float) -> None:
        self.then: Drain | None = None
        """What follows; None: it reads."""
        self._state = state
        self._timeout = timeout
        self._by = 0.0
        self._before = state.phase

    def begin(self, then: Drain, now: float) -> bool:
        """It is asked for, at this monotonic time; whether nothing was until now."""
        begins = self.then in {None, Drain.GO_ON}
        if begins:
            self._by = now + self._timeout
            self._before, self._state.phase = self._state.phase, Phase.DRAINING
        self.then = then
        return begins

    def take_back(self) -> None:
        """A leave is asked for no more. It proves nothing: who was joining is so again [22]."""
        if self.then in {Drain.HOLD, Drain.STILL}:
            self.then, self._state.phase = Drain.GO_ON, self._before

    def late(self, now: float) -> bool:
        """Whether the batch in hand has had its time."""
        return self.then is not Drain.GO_ON and now >= self._by

    def over(self, now: float, *, busy: bool, unsettled: bool) -> bool:
        """See `Drain.is_over`."""
        return Drain.is_over(busy=busy, unsettled=unsettled, in_time=now < self._by)

    def end(self) -> None:
        """Read again, unless more was asked while the member left to join again."""
        if self.then in {Drain.REJOIN, Drain.GO_ON}:
            self.then = None
