"""One slot held, from taking it to giving it up: what the main thread does meanwhile.

Problem: an owner is asked for several things (hand over, leave with others, rejoin, end), may
lose its slot, its membership or both, and must answer each within a batch. Choice: what it does
next is decided by `SlotLife` of what a tick saw, so that an ask may come twice, or be taken back;
this carries it out, between the store, the coordinator and the member's thread. Cost: a tick of
50 ms.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

from fleet.errors import FleetError, Unreachable
from fleet.slots import Handover, Phase, Slot, SlotTargets
from fleet.slots.transitions import has_worked, is_alone
from fleet.worker.asking import Orphans
from fleet.worker.batch.columnar import Columnar
from fleet.worker.batch.executor import BatchRunner
from fleet.worker.events import WorkerContext
from fleet.worker.member.losses import QuarantinedPartitions
from fleet.worker.member.member_state import End, Ended
from fleet.worker.member.membership import Membership
from fleet.worker.slot.leave_completion import (
    ExternalOwner,
    Failover,
    Former,
    LeaveCompleter,
    all_drained,
)
from fleet.worker.slot.reporting import Reporter
from fleet.worker.slot.slot_lease import SlotLease, SlotWatcher
from fleet.worker.slot.slot_life import LastAct, OwnerLook, SlotLife

TICK: Final = 0.05
_HARD_EXIT: Final = 1
_LAST_WORD: Final = 0.5
"""Seconds that the consumer thread has for its last commit before a hard exit."""
_SILENCE: Final = 1.0
"""Seconds between two questions to a silent store whose the slot is."""
_LONGEST_WAIT: Final = 30.0
"""Seconds that the slot targets may lie ahead."""
NEW_OWNER_JOINS: Final = 2.0
"""Seconds from taking a slot to its join: the dead one's leave, connections, subscribe."""
LATEST: Final = 30.0
"""Seconds that an opening is believed to lie ahead."""


class SlotOwner:
    """One slot from `take` to its end. seen: as it was; void: its pin, which has ended."""

    def __init__(
        self,
        context: WorkerContext,
        seen: Slot,
        void: Handover | None = None,
        *,
        watcher: SlotWatcher,
        completer: LeaveCompleter,
        failover: Failover,
        runner: BatchRunner,
        reporter: Reporter,
        columnar: Columnar | None = None,
    ) -> None:
        self._context = context
        self._events = context.events
        self._clock = context.clock
        self._former = seen
        self._void = void
        self._number = seen.number
        self._watcher = watcher
        self._store = watcher.store
        self._completer = completer
        self._failover = failover
        self._runner = runner
        self._reporter = reporter
        self._canary = reporter.canary
        self._columnar = columnar
        self._membership: Membership | None = None
        self._cured = True
        """Whether nothing of a former owner runs any more, as far as we can see to it."""
        self._marks = QuarantinedPartitions(self._store, context)
        self._orphans = Orphans(context, rejoin=self._ask_for_rebalance)
        self._told: tuple[Any, ...] = ()
        self._told_batches = 0
        self._committed = frozenset[str]()
        self._seen_targets: SlotTargets | None = None
        self._seen_slots: dict[int, Slot] = {}
        self._new_owners: dict[int, tuple[int, float]] = {}
        self._joining = False
        """Whether a slot's living owner is not ready yet."""

    # --- taking ------------------------------------------------------------------------------

    def take(self) -> bool:
        """Take the slot, and cure what its owner left running; False: somebody was quicker."""
        context, seen = self._context, self._former
        session = self._runner.session_id
        try:
            slot = self._store.take(
                seen,
                worker=context.name,
                revision=context.settings.revision,
                spark_session=session,
                lease=context.lease,
                void=self._void,
            )
        except Unreachable as error:
            self._events.log_rarely(str(error))
            return False
        if slot is None:
            return False
        self._life = SlotLife(
            number=slot.number,
            instance_id=slot.instance_id(),
            token=slot.token,
            static=context.is_static,
            window=context.session_timeout,
        )
        self._lease = self._new_lease(slot)
        former = seen.spark_session
        self._cured = seen.clean or former is None or former == session
        self._lease.start()
        self._canary.start()
        how = "has ended" if seen.owner_ended else "let its lease expire"
        whose = "" if seen.owner is None else f" from {seen.owner}, which {how}"
        self._events.log(f"took slot {slot.number}{whose}")
        self._events.emit("slot", slot=slot.number, token=slot.token, former=seen.owner)
        if former is not None and not self._cured:
            self._runner.cure(former).add_done_callback(self._note_cured)
        if seen.member_id is not None and not context.is_static:
            self._evict(seen.member_id)
        if context.worker.protocol == "consumer" and seen.owner is not None:
            self._free_before_joining()
        return True

    def _note_cured(self, cure: "Future[str | None]") -> None:
        """What a former owner that did not release left running on Spark is stopped [3].

        Who reads before that may commit what the dead one still writes, and ending it takes longer
        than the slot targets are ahead: it is the batch thread's first work, and the join waits for
        nothing [19]. Until now the slot named the session that was to be ended; from here on it
        names ours.
        """
        error = cure.exception()
        why = cure.result() if error is None else type(error).__name__
        result = "is interrupted and released" if why is None else f"could not be ended ({why})"
        self._events.log(f"the former owner's Spark session {result}")
        self._cured = True
        self.renew()  # a store that is silent holds up no batch

    def _evict(self, member_id: str) -> None:
        """A dead dynamic member has no successor by name: it would hold up our join [18].

        The round of its leave is that of our join; refused, it ends with its session.
        """
        why = self._failover.evict((None, member_id))
        result = "has left" if why is None else f"stays until its session ends ({why})"
        self._events.log(f"the former owner's member {member_id} {result}")

    def _leave_nobody_behind(self) -> None:
        """Whoever stood still may have joined anew before it heard that it is out.

        librdkafka's close sends no leave while its join is under way: partitions would be given to
        a member that nobody is, until its session ends. Seen with KIP-848, where a member keeps
        its id: 20 s of 20.
        """
        member_id = self._membership.state.member_id if self._membership is not None else None
        if member_id is None or self._context.is_static:
            return
        if self._failover.evict((None, member_id)) is None:
            self._events.log(f"its member {member_id} is out of the group")

    def _free_before_joining(self) -> None:
        """KIP-848: let the dead owner leave, else the join is refused [17].

        One that released the slot closed its consumer before, clean or not: no leave, no expected
        cost.
        """
        try:
            why = self._free()
        except ExternalOwner as error:
            why = str(error)
        if why is not None:  # the join will tell: it is refused, and this is tried once more
            self._events.log(f"the former member could not leave: {why}")

    def _free(self) -> str | None:
        """Free the instance id of whoever had the slot; why it is not free."""
        if not self._context.is_static:
            return None
        seen, ours = self._former, self._membership
        ids = (ours.state.member_id if ours is not None else None, seen.member_id)
        return self._failover.free(
            Former(
                instance_id=seen.instance_id(),
                member_ids=tuple(i for i in ids if i is not None),
                workers=frozenset(n for n in (self._context.name, seen.owner) if n is not None),
            )
        )

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
        runner = self._runner
        runner.slot = self._number
        try:
            while (last := self._after(self._one_membership())).again is not None:
                self._events.log(last.again)
            return None if last.exit is None else (1, last.exit)
        finally:
            self._orphans.end()
            runner.slot = None
            self._reporter.left()
            self._watcher.forget()

    # --- one membership --------------------------------------------------------------------

    def _one_membership(self) -> Ended:
        # A writer whose clock is wrong must not keep a member out for long.
        open_at = min(self._watcher.targets.open_at, self._clock.now() + _LONGEST_WAIT)
        membership = self._membership = self._new_membership(open_at)
        self._life.begins()
        self._reporter.member(self._number, membership.state)
        membership.start()
        while membership.ended is None:
            self._tick(membership)
            if membership.join(TICK):
                break
        assert membership.ended is not None
        return membership.ended

    # What tests/schedules replace, to play all the rest on simulated time.

    def _new_lease(self, slot: Slot) -> SlotLease:
        return SlotLease(
            self._store,
            slot,
            lease=self._context.lease,
            fields=self._fields,
            clock=self._clock,
            events=self._events,
            after=self._reporter.renewed,
        )

    def _new_membership(self, open_at: float) -> Membership:
        return Membership(
            self._context,
            self._lease.slot,
            open_at=open_at,
            runner=self._runner,
            marks=self._marks,
            may_join=self._lease.may_join,
            may_wait=self._may_wait,
            ours=lambda: self._lease.lost is None,
            joining=lambda: self._joining,
            columnar=self._columnar,
        )

    def _may_wait(self) -> bool:
        """Whether what fails may be the weather: not so for a canary [22]."""
        revision = self._context.settings.revision
        return not self._canary.running or is_alone(self._watcher.slots, self._former, revision)

    def _tick(self, membership: Membership) -> None:
        watcher = self._watcher
        stuck = self._runner.watch()
        if stuck is not None:
            self._end_hard(stuck)
        if self._lease.lost is not None:
            self._answer(membership)
            return
        state = membership.state
        worked = has_worked(state.phase, error=state.error, batches=state.batches)
        if self._canary.running and worked:
            self._canary.succeed()
        told = (state.told, state.joined_at, state.member_id, state.error, state.batches > 0)
        if told != self._told or (state.batches < 10 and state.batches != self._told_batches):
            self._told, self._told_batches = told, state.batches
            self._lease.changed()
        self._orphans.step(self._number, watcher.targets, watcher.slots)
        if self._completer.see(watcher):
            lifted = self._marks.lifted(membership.state.quarantined)
            if lifted:
                membership.lift(lifted)
            self._keep_committed(state.committed)
            changed = self._what_changed(watcher.targets, watcher.slots, watcher.dead())
            if changed is not None:
                membership.hear(*changed)
        self._answer(membership)

    def _keep_committed(self, topics: frozenset[str]) -> None:
        """Tell the store, once, which topics the group has committed offsets of [53]."""
        if topics <= self._committed:
            return
        try:
            self._committed = self._store.committed_topics(self._context.group, *topics)
        except FleetError as error:
            self._events.log_rarely(str(error))

    def _answer(self, membership: Membership) -> None:
        """Begin what the slot targets (or a signal) asks for now; take back what it asks no
        more.
        """
        watcher, state = self._watcher, membership.state
        told = self._life.look(
            OwnerLook(
                targets=watcher.targets,
                phase=state.phase,
                stored=self._lease.slot.phase,
                joined_at=state.joined_at,
                all_drained=all_drained(watcher.targets, watcher.slots, watcher.dead()),
                ending=self._context.stop.is_set(),
                lost=self._lease.lost is not None,
            )
        )
        if told is None:
            return
        if told.why is not None:
            self._events.log(f"draining: {told.why}")
            self._events.emit("drain", why=told.why)
        if told.rejoined:
            self._write_targets(without_rejoin, self._number)
        else:
            membership.become(told.life)

    def _ask_for_rebalance(self) -> None:
        """Ask this slot's owner, which is us, to leave and join again once."""
        self._write_targets(with_rejoin, self._number, self._lease.slot.token)

    def _write_targets(self, change: Callable[..., SlotTargets], *what: int) -> None:
        """A store that is silent is asked again by what asks for it."""
        with contextlib.suppress(Unreachable):
            self._store.change_targets(self._context.group, lambda targets: change(targets, *what))
        self._watcher.forget()

    # --- what it sees of a change of its group's membership ----------------------------------
    #
    # Members that shall hear of a change at once [41] have to know that there is one, without a
    # question to anybody: the owner compares what it reads anyway. Slots that open or close, a
    # forced rebalance that is over, and a slot that a dead owner's successor took are changes; a
    # handover is none, since a static member that is replaced moves nothing. Members that
    # heartbeat between a dead member's leave and its successor's join would bring an assignment of
    # their own, so they wait until the new owner is ready, or for `NEW_OWNER_JOINS`. They hear
    # then, since what the dead one had may be theirs.

    def _what_changed(
        self, targets: SlotTargets, slots: Sequence[Slot], dead: Collection[int]
    ) -> tuple[str, float] | None:
        """Since the last look: what, and the monotonic time from which on members shall hear."""
        now = self._clock.monotonic()
        before, self._seen_targets = self._seen_targets, targets
        held, self._seen_slots = self._seen_slots, {each.number: each for each in slots}
        self._joining = any(
            each.number in targets.open and each.number not in dead and _joins(each)
            for each in slots
        )
        if before is None:
            return None
        self._note_new_owners(targets, held, now)
        if targets.open - before.open:
            opens = now + (targets.open_at - self._clock.now())  # as a joiner waits for it
            return "slots were opened", min(max(now, opens), now + LATEST)
        if before.open - targets.open:
            return "slots were closed", now
        if before.rejoin.keys() - targets.rejoin.keys():
            return "a forced rebalance", now
        for number, (token, since) in list(self._new_owners.items()):
            slot = self._seen_slots.get(number)
            if slot is None or slot.token != token or slot.owner is None:
                del self._new_owners[number]
            elif not _joins(slot) or now - since >= NEW_OWNER_JOINS:
                del self._new_owners[number]
                return f"slot {number} was taken over", now
        return None

    def _note_new_owners(self, targets: SlotTargets, held: dict[int, Slot], now: float) -> None:
        for number, slot in self._seen_slots.items():
            last, pin = held.get(number), targets.handover.get(number)
            if last is None or slot.token == last.token or slot.owner is None:
                continue
            handed = pin is not None and pin.token == last.token
            back = last.owner is None and last.clean and last.member_id is not None
            if not handed and not back:
                self._new_owners[number] = (slot.token, now)

    # --- its end ---------------------------------------------------------------------------

    def _after(self, ended: Ended) -> LastAct:
        """Do with the slot what follows this end; told as it came to be."""
        lost, refused = self._lease.lost, ended.how in {End.FENCED, End.UNRELEASED}
        ours, now = self._is_ours() if refused else None, self._clock.monotonic()
        last = self._life.ended(ended, lost=lost, ours=ours, now=now, cured=self._cured)
        if last is None:
            try:
                last = self._life.freed(self._free(), ended.sentence)
            except ExternalOwner as error:
                last = self._life.external(str(error), clean=ended.clean and self._cured)
        if last.again is not None:
            return last
        if not refused and (last.exit is None or not last.ours):
            self._canary.end()
        if last.exit is not None and last.ours:
            self._error(last.exit)
        return self._end(last, ended)

    def _end(self, last: LastAct, ended: Ended) -> LastAct:
        kept = False
        try:
            if not last.ours:
                self._lease.abandon()
                self._leave_nobody_behind()
                return last
            if last.shut:
                self._store.change_targets(
                    self._context.group, lambda targets: shut(targets, self._number)
                )
            kept = self._lease.release(clean=last.clean, closed=last.closed, gone=last.gone)
        except FleetError as error:
            if last.exit is None:
                raise
            self._lease.abandon()  # the store's error is not what it ends with
            self._events.log(f"slot {self._number} is left to its lease: {error}")
        if last.exit is not None:
            return last
        if not kept:
            return LastAct(exit=f"slot {self._number} was taken while it was drained: stopped")
        self._watcher.released(self._lease.slot, handed=last.handed)
        self._events.log(f"released slot {self._number}{'' if ended.clean else ', not clean'}")
        self._events.emit("released", slot=self._number, clean=ended.clean, closed=last.closed)
        return last

    def _is_ours(self) -> bool | None:
        """Whether the slot names us, which alone lets us join again; a silent store is waited for
        until we are to end (None).

        Whoever was cut off from the store and is refused by the coordinator may have a successor:
        joining on a guess would throw that one out, and be thrown out by it in turn.
        """
        while (ours := self._lease.confirm()) is None:
            self._events.log_rarely("refused as a member while the store is silent: waiting")
            if self._context.stop.wait(_SILENCE):
                return None
        return ours

    def _error(self, sentence: str) -> None:
        if self._membership is not None:
            self._membership.state.error = sentence
        self._canary.fail(sentence)
        self._reporter.failed(sentence)

    def _end_hard(self, why: str) -> None:
        """A thread hangs in the user's code: no exit handler may wait for it."""
        try:
            if self._membership is not None:
                self._membership.spare()
                self._clock.sleep(_LAST_WORD)
            self._error(why)
            with contextlib.suppress(FleetError):
                self._lease.release(clean=False)
            self._events.emit("exit", code=_HARD_EXIT, reason=why)
            self._events.log(f"ended: {why}")
        finally:  # whatever failed on the way
            os._exit(_HARD_EXIT)

    # --- what the parts ask ----------------------------------------------------------------

    def _fields(self) -> dict[str, Any]:
        """What a renewal writes."""
        membership, known = self._membership, dict[str, Any]()
        if self._cured:  # else the slot names the session that is still to be ended [3]
            known["spark_session"] = self._runner.session_id
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


def _joins(slot: Slot) -> bool:
    return slot.owner is not None and slot.phase is Phase.JOINING


def with_rejoin(targets: SlotTargets, number: int, token: int) -> SlotTargets:
    """The slot targets that asks this slot's owner to leave and join again once."""
    return replace(targets, rejoin={**targets.rejoin, number: token})


def without_rejoin(targets: SlotTargets, number: int) -> SlotTargets:
    """The slot targets that asks it no more: it is done."""
    return replace(targets, rejoin={n: t for n, t in targets.rejoin.items() if n != number})


def shut(targets: SlotTargets, number: int) -> SlotTargets:
    """The slot targets by which nobody takes this slot: a foreign process uses its instance id."""
    return replace(targets, quarantined=targets.quarantined | {number})
