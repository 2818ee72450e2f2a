"""One slot held, from taking it to giving it up: what the main thread does meanwhile.

Problem: a holder is asked for several things (hand over, leave with others, rejoin, end), may
lose its slot, its membership or both, and must answer each within a batch. Choice: what it does
next is decided by `SlotLife` of what a tick saw, so that an ask may come twice, or be taken back;
this is what carries it out, between the store, the coordinator and the member's thread. Cost: a
tick of 50 ms.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

from fleet.clock import Clock
from fleet.errors import FleetError, Unreachable
from fleet.slots import Gate, Handover, Phase, Slot
from fleet.slots.store import Store
from fleet.slots.transitions import alone
from fleet.worker.batch.executor import BatchRunner
from fleet.worker.events import Events
from fleet.worker.member.losses import QuarantinedPartitions
from fleet.worker.member.member_state import End, Ended
from fleet.worker.member.membership import Membership, Nudging
from fleet.worker.slot.holder_tools import HolderTools
from fleet.worker.slot.leave_completion import ForeignHolder, Former, all_drained
from fleet.worker.slot.membership_setup import membership_of, orphans_of, session_timeout
from fleet.worker.slot.slot_lease import SlotLease
from fleet.worker.slot.slot_life import HolderLook, LastAct, SlotLife

# What a holder sees in gate and slots of a change of its group's membership.
#
# Problem: members that shall hear of a change at once [41] have to know that there is one, without
# a question to anybody. Choice: the holder compares what it reads anyway. Slots that open or
# close, a forced rebalance that is over, and a slot that a dead holder's successor took are
# changes; a handover is none, since a static member that is replaced moves nothing. Members that
# heartbeat between a dead member's leave and its successor's join would bring an assignment of
# their own, so that they wait until the taker is ready, or for `TAKER_JOINS`. They hear then,
# since what the dead one had may be theirs: where a member has one partition more than others,
# another may get it. Cost: none.


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


# What the holder of a slot writes into its group's gate, by compare-and-set.


class GateOfHolder:
    """Raises Unreachable where the store is silent, or the gate never holds still."""

    def __init__(self, store: Store, group: str, number: int) -> None:
        self._store = store
        self._group = group
        self._number = number

    def ask_rejoin(self, token: int) -> None:
        """Ask this slot's holder, which is us, to leave and join again once."""
        self._store.change_gate(
            self._group, lambda gate: replace(gate, rejoin={**gate.rejoin, self._number: token})
        )

    def take_back_rejoin(self) -> None:
        """It is done."""
        self._store.change_gate(
            self._group,
            lambda gate: replace(
                gate, rejoin={n: t for n, t in gate.rejoin.items() if n != self._number}
            ),
        )

    def shut(self) -> None:
        """A foreign process uses this slot's instance id: nobody takes it any more."""
        self._store.change_gate(
            self._group, lambda gate: replace(gate, quarantined=gate.quarantined | {self._number})
        )


# Stopping what a former holder that did not release left running on Spark [3].
#
# Problem: who reads before that is over may commit what the dead one still writes, and ending it
# takes longer than a gate is ahead. Choice: it is the batch thread's first work, so every batch of
# ours runs behind it, while the join waits for nothing: whoever joins late costs a rebalance [19].
# Until it is over the slot goes on naming the session that is to be ended, and is not clean; then
# it names ours, before a batch of ours runs. Cost: a renewal on the batch thread, once per unclean
# take.


class SparkCleanup:
    """Begins at once, where there is something to end. renew: writes the slot with our session."""

    def __init__(
        self,
        runner: BatchRunner,
        seen: Slot,
        *,
        ours: str | None,
        renew: Callable[[], bool],
        events: Events,
    ) -> None:
        self._renew = renew
        self._events = events
        former = seen.spark_session
        self.over = seen.clean or former is None or former == ours
        """Whether nothing of a former holder runs any more, as far as we can see to it."""
        if former is not None and not self.over:
            runner.cure(former).add_done_callback(self._ended)

    def _ended(self, cure: "Future[str | None]") -> None:
        error = cure.exception()
        why = cure.result() if error is None else type(error).__name__
        result = "is interrupted and released" if why is None else f"could not be ended ({why})"
        self._events.log(f"the former holder's Spark session {result}")
        self.over = True
        self._renew()  # a store that is silent holds up no batch


TICK: Final = 0.05
_HARD_EXIT: Final = 1
_LAST_WORD: Final = 0.5
"""Seconds that the consumer thread has for its last commit before a hard exit."""
_SILENCE: Final = 1.0
"""Seconds between two questions to a silent store whose the slot is."""
_LONGEST_WAIT: Final = 30.0
"""Seconds that a gate may lie ahead."""


class SlotHolder:
    """One slot from `take` to its end."""

    def __init__(self, tools: HolderTools, slot: Slot, *, former: Slot | None = None) -> None:
        self._tools = tools
        self._number = slot.number
        self._gate = GateOfHolder(tools.store, tools.settings.group.group, slot.number)
        self._former = former
        self._membership: Membership | None = None
        self._life = SlotLife(
            number=slot.number,
            instance_id=slot.instance_id(),
            token=slot.token,
            static=tools.is_static,
            window=session_timeout(tools.settings),
        )
        self._cure: SparkCleanup | None = None
        self._quarantine = QuarantinedPartitions(
            tools.store,
            group=tools.settings.group.group,
            revision=tools.settings.revision,
            clock=tools.clock,
            events=tools.events,
        )
        self._orphans = orphans_of(
            tools.settings, rejoin=self._ask_for_rebalance, clock=tools.clock, events=tools.events
        )
        self._changes = SeenChanges(tools.clock)
        self._told: tuple[Any, ...] = ()
        self._told_batches = 0
        self._committed = frozenset[str]()
        self._lease = SlotLease(
            tools.store,
            slot,
            lease=tools.settings.group.runtime.lease,
            fields=self._fields,
            after=tools.reporter.renewed,
            clock=tools.clock,
            events=tools.events,
        )

    @classmethod
    def take(
        cls, tools: HolderTools, seen: Slot, void: Handover | None = None
    ) -> "SlotHolder | None":
        """Take the slot, and cure what its holder left running; None: somebody was quicker.

        void: its pin, which has ended.
        """
        session, told = tools.runner.session_id, tools.settings
        lease = told.group.runtime.lease
        try:
            slot = tools.store.take(
                seen,
                worker=tools.name,
                revision=told.revision,
                spark_session=session,
                lease=lease,
                void=void,
            )
        except Unreachable as error:
            tools.events.log_rarely(str(error))
            return None
        if slot is None:
            return None
        tools.canary.start()
        how = "has ended" if seen.holder_ended else "let its lease expire"
        whose = "" if seen.holder is None else f" from {seen.holder}, which {how}"
        tools.events.log(f"took slot {slot.number}{whose}")
        tools.events.emit("slot", slot=slot.number, token=slot.token, former=seen.holder)
        holder = cls(tools, slot, former=seen)
        holder._cure = SparkCleanup(
            tools.runner, seen, ours=session, renew=holder.renew, events=tools.events
        )
        if seen.member_id is not None and not tools.is_static:
            holder._evict(seen.member_id)
        if tools.protocol.exclusive and seen.holder is not None:
            holder._free_before_joining()
        return holder

    def _evict(self, member_id: str) -> None:
        """A dead dynamic member has no successor by name: it would hold up our join [18].

        The round of its leave is that of our join; refused, it ends with its session.
        """
        why = self._leave(member_id)
        result = "has left" if why is None else f"stays until its session ends ({why})"
        self._tools.events.log(f"the former holder's member {member_id} {result}")

    def _leave(self, member_id: str) -> str | None:
        """One request; why it was refused."""
        try:
            return self._tools.leave(self._tools.settings.group.group, [(None, member_id)])
        except FleetError as error:
            return str(error)

    def _leave_nobody_behind(self) -> None:
        """Whoever stood still may have joined anew before it heard that it is out.

        librdkafka's close sends no leave while its join is under way: partitions would be given to
        a member that nobody is, until its session ends. Seen with KIP-848, where a member keeps
        its id: 20 s of 20.
        """
        member_id = self._membership.state.member_id if self._membership is not None else None
        if member_id is not None and not self._tools.is_static and self._leave(member_id) is None:
            self._tools.events.log(f"its member {member_id} is out of the group")

    def _free_before_joining(self) -> None:
        """KIP-848: let the dead holder leave, else the join is refused [17].

        One that released the slot closed its consumer before, clean or not: no leave, no price.
        """
        try:
            why = self._free()
        except ForeignHolder as error:
            why = str(error)
        if why is not None:  # the join will tell: it is refused, and this is tried once more
            self._tools.events.log(f"the former member could not leave: {why}")

    def _free(self) -> str | None:
        worker = self._tools.settings.group.worker
        if worker is None or worker.membership != "static":
            return None
        return self._tools.takeover.free(self._who_was())

    def _who_was(self) -> Former:
        seen, ours = self._former, self._membership
        ids = [ours.state.member_id if ours is not None else None]
        ids.append(seen.member_id if seen is not None else None)
        names = {self._tools.name, seen.holder if seen is not None else None}
        return Former(
            instance_id=self._lease.slot.instance_id(),
            member_ids=tuple(i for i in ids if i is not None),
            workers=frozenset(n for n in names if n is not None),
        )

    @property
    def _cured(self) -> bool:
        return self._cure is None or self._cure.over

    def still_ours(self) -> bool:
        """For the batch thread, before it runs a batch again."""
        return self._lease.still_ours()

    def renew(self) -> bool:
        """For the batch thread, before it runs a batch in another session: whoever takes the slot
        has to find that one named [3]. False where the slot is somebody else's.
        """
        return self._lease.renew()

    def serve(self) -> tuple[int, str] | None:
        """Be a member until the slot is given up; what the worker ends with, or None: standby."""
        tools = self._tools
        tools.runner.identity = replace(tools.runner.identity, slot=self._number)
        try:
            while (last := self._after(self._one_membership())).again is not None:
                tools.events.log(last.again)
            return None if last.exit is None else (1, last.exit)
        finally:
            self._orphans.end()
            tools.runner.identity = replace(tools.runner.identity, slot=None)
            tools.reporter.left()
            tools.watcher.forget()

    # --- one membership --------------------------------------------------------------------

    def _one_membership(self) -> Ended:
        tools = self._tools
        membership = self._membership = membership_of(
            tools.settings,
            self._lease.slot,
            name=tools.name,
            # A writer whose clock is wrong must not keep a member out for long.
            open_at=min(tools.watcher.gate.open_at, tools.clock.now() + _LONGEST_WAIT),
            protocol=tools.protocol,
            runner=tools.runner,
            marks=self._quarantine,
            may_join=self._lease.may_join,
            begun=lambda: tools.store.committed(tools.settings.group.group),
            may_wait=self._may_wait,
            nudging=Nudging(
                ours=lambda: self._lease.lost is None,
                joining=lambda: self._changes.joining,
                clock=tools.clock,
                events=tools.events,
            ),
            clock=tools.clock,
            events=tools.events,
            columnar=tools.columnar,
        )
        self._life.begins()
        self._tools.reporter.member(self._number, membership.state)
        membership.start()
        while membership.ended is None:
            self._tick(membership)
            if membership.join(TICK):
                break
        assert membership.ended is not None
        return membership.ended

    def _may_wait(self) -> bool:
        """Whether what fails may be the weather: not so for a canary [22]."""
        tools, revision = self._tools, self._tools.settings.revision
        return not tools.canary.running or alone(tools.watcher.slots, self._former, revision)

    def _tick(self, membership: Membership) -> None:
        tools = self._tools
        stuck = tools.runner.watch()
        if stuck is not None:
            self._end_hard(stuck)
        if self._lease.lost is not None:
            self._answer(membership)
            return
        state = membership.state
        well = state.error is None or state.batches > 0
        if tools.canary.running and state.phase is Phase.ACTIVE and well:
            tools.canary.prove()
        told = (state.told, state.joined_at, state.member_id, state.error, state.batches > 0)
        if told != self._told or (state.batches < 10 and state.batches != self._told_batches):
            self._told, self._told_batches = told, state.batches
            self._lease.changed()
        self._orphans.step(self._number, tools.watcher.gate, tools.watcher.slots)
        if tools.see():
            lifted = self._quarantine.lifted(membership.state.quarantined)
            if lifted:
                membership.lift(lifted)
            self._keep_committed(state.committed)
            watcher = tools.watcher
            changed = self._changes.look(watcher.gate, watcher.slots, watcher.dead())
            if changed is not None:
                membership.hear(*changed)
        self._answer(membership)

    def _keep_committed(self, topics: frozenset[str]) -> None:
        """Tell the store, once, which topics the group has committed offsets of [53]."""
        if topics <= self._committed:
            return
        group = self._tools.settings.group.group
        try:
            self._committed = self._tools.store.committed(group, *topics)
        except FleetError as error:
            self._tools.events.log_rarely(str(error))

    def _answer(self, membership: Membership) -> None:
        """Begin what the gate (or a signal) asks for now; take back what it asks no more."""
        tools, watcher, state = self._tools, self._tools.watcher, membership.state
        told = self._life.look(
            HolderLook(
                gate=watcher.gate,
                phase=state.phase,
                stored=self._lease.slot.phase,
                joined_at=state.joined_at,
                all_drained=all_drained(watcher.gate, watcher.slots, watcher.dead()),
                ending=tools.stop.is_set(),
                lost=self._lease.lost is not None,
            )
        )
        if told is None:
            return
        if told.why is not None:
            tools.events.log(f"draining: {told.why}")
            tools.events.emit("drain", why=told.why)
        if told.rejoined:
            self._take_back_rejoin()
        else:
            membership.become(told.life)

    def _ask_for_rebalance(self) -> None:
        with contextlib.suppress(Unreachable):
            self._gate.ask_rejoin(self._lease.slot.token)
        self._tools.watcher.forget()

    def _take_back_rejoin(self) -> None:
        with contextlib.suppress(Unreachable):  # the gate asks on, and so it is tried again
            self._gate.take_back_rejoin()
        self._tools.watcher.forget()

    # --- its end ---------------------------------------------------------------------------

    def _after(self, ended: Ended) -> LastAct:
        """Do with the slot what follows this end; told as it came to be."""
        lost, refused = self._lease.lost, ended.how in {End.FENCED, End.UNRELEASED}
        ours, now = self._is_ours() if refused else None, self._tools.clock.monotonic()
        last = self._life.ended(ended, lost=lost, ours=ours, now=now, cured=self._cured)
        if last is None:
            try:
                last = self._life.freed(self._free(), ended.sentence)
            except ForeignHolder as error:
                last = self._life.foreign(str(error), clean=ended.clean and self._cured)
        if last.again is not None:
            return last
        if not refused and (last.exit is None or not last.ours):
            self._tools.canary.end()
        if last.exit is not None and last.ours:
            self._error(last.exit)
        return self._end(last, ended)

    def _end(self, last: LastAct, ended: Ended) -> LastAct:
        tools, kept = self._tools, False
        try:
            if not last.ours:
                self._lease.abandon()
                self._leave_nobody_behind()
                return last
            if last.shut:
                self._gate.shut()
            kept = self._lease.release(clean=last.clean, closed=last.closed, gone=last.gone)
        except FleetError as error:
            if last.exit is None:
                raise
            self._lease.abandon()  # the store's error is not what it ends with
            tools.events.log(f"slot {self._number} is left to its lease: {error}")
        if last.exit is not None:
            return last
        if not kept:
            return LastAct(exit=f"slot {self._number} was taken while it was drained: stopped")
        tools.watcher.released(self._lease.slot, handed=last.handed)
        tools.events.log(f"released slot {self._number}{'' if ended.clean else ', not clean'}")
        tools.events.emit("released", slot=self._number, clean=ended.clean, closed=last.closed)
        return last

    def _is_ours(self) -> bool | None:
        """Whether the slot names us, which alone lets us join again; a silent store is waited for
        until we are to end (None).

        Whoever was cut off from the store and is refused by the coordinator may have a successor:
        joining on a guess would throw that one out, and be thrown out by it in turn.
        """
        while (ours := self._lease.confirm()) is None:
            self._tools.events.log_rarely("refused as a member while the store is silent: waiting")
            if self._tools.stop.wait(_SILENCE):
                return None
        return ours

    def _error(self, sentence: str) -> None:
        if self._membership is not None:
            self._membership.state.error = sentence
        self._tools.canary.fail(sentence)
        self._tools.reporter.failed(sentence)

    def _end_hard(self, why: str) -> None:
        """A thread hangs in the user's code: no exit handler may wait for it."""
        try:
            if self._membership is not None:
                self._membership.spare()
                self._tools.clock.sleep(_LAST_WORD)
            self._error(why)
            with contextlib.suppress(FleetError):
                self._lease.release(clean=False)
            self._tools.events.emit("exit", code=_HARD_EXIT, reason=why)
            self._tools.events.log(f"ended: {why}")
        finally:  # whatever failed on the way
            os._exit(_HARD_EXIT)

    # --- what the parts ask ----------------------------------------------------------------

    def _fields(self) -> dict[str, Any]:
        """What a renewal writes."""
        membership, known = self._membership, dict[str, Any]()
        if self._cured:  # else the slot names the session that is still to be ended [3]
            known["spark_session"] = self._tools.runner.session_id
        if membership is None:
            return known
        state = membership.state
        if state.member_id is not None:
            known["member_id"] = state.member_id
        return {
            "phase": state.told,
            "batches": state.batches,
            "error": state.error,
            **known,
        }
