"""One owned slot, from its take to its release: what the main thread does meanwhile.

Problem: an owner is asked for several things (hand over, leave with others, rejoin, end). It may
lose its slot, its membership or both, and must answer each within a batch. Choice: `SlotLife`
decides the next action from one poll, so that a request may come twice or be taken back. This class
carries it out, between the store, the coordinator and the member's thread. Cost: a poll of 50 ms.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from fleet.errors import FleetError, Unreachable
from fleet.slots import Handover, Phase, Slot, SlotTargets
from fleet.slots.transitions import has_worked, is_alone
from fleet.worker.batch.columnar import Columnar
from fleet.worker.batch.executor import BatchRunner
from fleet.worker.events import WorkerContext
from fleet.worker.group_query import OrphanWatch
from fleet.worker.member.losses import StoppedPartitionsView
from fleet.worker.member.member_state import End, MembershipEnd
from fleet.worker.member.membership import Membership
from fleet.worker.slot.leave_completion import (
    ExternalOwner,
    Failover,
    FormerOwner,
    LeaveCompleter,
    all_drained,
)
from fleet.worker.slot.reporting import Reporter
from fleet.worker.slot.slot_lease import SlotLease, SlotWatcher
from fleet.worker.slot.slot_life import Conclusion, OwnerObservation, SlotLife

if TYPE_CHECKING:
    from fleet.worker.program.membership import ProgramMembership
    from fleet.worker.program.process import NoBatches

    Member = Membership | ProgramMembership

TICK: Final = 0.05
_HARD_EXIT: Final = 1
_LAST_WORD: Final = 0.5
"""Seconds that the consumer thread has for its last commit before a hard exit."""
_SILENCE: Final = 1.0
"""Seconds between two requests to a silent store for the slot's owner."""
_LONGEST_WAIT: Final = 30.0
"""Seconds by which an opening may be ahead."""
NEW_OWNER_JOINS: Final = 2.0
"""Seconds from a take to its join: the dead owner's leave, connections, subscribe."""
LATEST: Final = 30.0
"""Seconds for which an opening is believed to be ahead."""


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
        runner: "BatchRunner | NoBatches",
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
        self._membership: Member | None = None
        self._cured = True
        """Whether nothing of a former owner runs any more, as far as we can see to it."""
        self._stops = StoppedPartitionsView(self._store, context)
        self._orphans = OrphanWatch(context, rejoin=self._ask_for_rebalance)
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
        """Takes the slot and ends its former owner's work; False: another worker was quicker."""
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
            self._runner.end_session(former).add_done_callback(self._record_cleanup)
        if seen.member_id is not None and not context.is_static:
            self._evict(seen.member_id)
        if context.worker.protocol == "consumer" and seen.owner is not None:
            self._free_before_joining()
        return True

    def _record_cleanup(self, cure: "Future[str | None]") -> None:
        """Records that a former owner's work on Spark has ended [3].

        A read before that may commit what the dead owner still writes. Ending it takes longer than
        the time until the joint subscribe. So it is the batch thread's first work, and the join
        waits for nothing [19]. Until now the slot named the session to end; from here on it names
        this worker's.
        """
        error = cure.exception()
        why = cure.result() if error is None else type(error).__name__
        result = "is interrupted and released" if why is None else f"could not be ended ({why})"
        self._events.log(f"the former owner's Spark session {result}")
        self._cured = True
        self.renew()  # a silent store delays no batch

    def _evict(self, member_id: str) -> None:
        """Evicts a dead dynamic member, which no successor replaces by name and which would delay
        the join [18].

        The round of its leave is that of this join; refused, it ends with its session.
        """
        why = self._failover.evict((None, member_id))
        result = "has left" if why is None else f"stays until its session expires ({why})"
        self._events.log(f"the former owner's member {member_id} {result}")

    def _remove_own_member(self) -> None:
        """Removes a member of its own that joined before the loss of the slot was known.

        A worker that stood still may have joined again. librdkafka's close sends no leave while its
        join is under way. Partitions would go to a member without a process until its session ends.
        Seen with KIP-848, where a member keeps its id: 20 s of 20.
        """
        member_id = self._membership.state.member_id if self._membership is not None else None
        if member_id is None or self._context.is_static:
            return
        if self._failover.evict((None, member_id)) is None:
            self._events.log(f"its member {member_id} has left the group")

    def _free_before_joining(self) -> None:
        """Lets the dead owner leave before a KIP-848 join, which is refused otherwise [17].

        A former owner that released the slot closed its consumer, clean or not: then no leave is
        needed.
        """
        try:
            why = self._free()
        except ExternalOwner as error:
            why = str(error)
        if why is not None:  # the join is refused then, and this is tried once more
            self._events.log(f"the former member could not leave: {why}")

    def _free(self) -> str | None:
        """Frees the instance id of the former owner; returns why it is not free."""
        if not self._context.is_static:
            return None
        seen, ours = self._former, self._membership
        ids = (ours.state.member_id if ours is not None else None, seen.member_id)
        return self._failover.free(
            FormerOwner(
                instance_id=seen.instance_id(),
                member_ids=tuple(i for i in ids if i is not None),
                workers=frozenset(n for n in (self._context.name, seen.owner) if n is not None),
            )
        )

    def is_ours(self) -> bool:
        """Whether the slot is still owned; for the batch thread, before a repeated batch."""
        return self._lease.is_ours()

    def renew(self) -> bool:
        """Stores the new session; for the batch thread, before a batch in another session.

        The next owner has to find that session named [3]. False if another worker owns the slot.
        """
        return self._lease.renew()

    def serve(self) -> tuple[int, str] | None:
        """Runs members until the slot is released; returns why the worker ends, or None."""
        runner = self._runner
        runner.slot = self._number
        try:
            while (last := self._after(self._one_membership())).again is not None:
                self._events.log(last.again)
            return None if last.exit is None else (1, last.exit)
        finally:
            self._orphans.end()
            runner.slot = None
            self._reporter.membership_ended()
            self._watcher.attend(None)
            self._watcher.forget()

    # --- one membership --------------------------------------------------------------------

    def _one_membership(self) -> MembershipEnd:
        # A writer with a wrong clock must not delay a member for long.
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

    # tests/schedules replaces these, to run the rest on simulated time.

    def _new_lease(self, slot: Slot) -> SlotLease:
        return SlotLease(
            self._store,
            slot,
            lease=self._context.lease,
            fields=self._fields,
            clock=self._clock,
            events=self._events,
            after=self._reporter.on_renewed,
        )

    def _new_membership(self, open_at: float) -> "Member":
        assert isinstance(self._runner, BatchRunner)
        return Membership(
            self._context,
            self._lease.slot,
            open_at=open_at,
            runner=self._runner,
            marks=self._stops,
            may_join=self._lease.may_join,
            may_wait=self._may_wait,
            ours=lambda: self._lease.lost is None,
            joining=lambda: self._joining,
            columnar=self._columnar,
        )

    def _may_wait(self) -> bool:
        """Whether a failure may be transient; not for a canary [22]."""
        revision = self._context.settings.revision
        return not self._canary.running or is_alone(self._watcher.slots, self._former, revision)

    def _tick(self, membership: "Member") -> None:
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
        told = (
            state.reported_phase,
            state.joined_at,
            state.member_id,
            state.error,
            state.batches > 0,
        )
        if told != self._told or (state.batches < 10 and state.batches != self._told_batches):
            self._told, self._told_batches = told, state.batches
            self._lease.renew_soon()
        self._orphans.step(self._number, watcher.targets, watcher.slots)
        if self._completer.check(watcher):
            lifted = self._stops.find_lifted(membership.state.stopped_partitions)
            if lifted:
                membership.lift(lifted)
            self._keep_committed(state.committed)
            changed = self._find_change(watcher.targets, watcher.slots, watcher.dead())
            if changed is not None:
                membership.expect_change(*changed)
            # Others' leases matter for a leave [21], their revisions for a failing canary [22].
            every = self._canary.running or bool(watcher.targets.leaving)
            watcher.attend(None if every else self._number)
        self._answer(membership)

    def _keep_committed(self, topics: frozenset[str]) -> None:
        """Stores, once, the topics that the group has committed offsets of [53]."""
        if topics <= self._committed:
            return
        try:
            self._committed = self._store.committed_topics(self._context.group, *topics)
        except FleetError as error:
            self._events.log_rarely(str(error))

    def _answer(self, membership: "Member") -> None:
        """Begins what the slot targets (or a signal) ask; takes back what they ask no more."""
        watcher, state = self._watcher, membership.state
        told = self._life.decide(
            OwnerObservation(
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
        """Asks this slot's owner, which is this worker, to leave and join again once."""
        self._write_targets(with_rejoin, self._number, self._lease.slot.token)

    def _write_targets(self, change: Callable[..., SlotTargets], *what: int) -> None:
        """Writes the slot targets; for a silent store the caller tries again."""
        with contextlib.suppress(Unreachable):
            self._store.change_targets(self._context.group, lambda targets: change(targets, *what))
        self._watcher.forget()

    # --- changes of the group's membership ---------------------------------------------------
    #
    # To make members learn of a change at once [41], the owner compares what it reads anyway; no
    # request is needed. Changes are slots that open or close, a forced rebalance that is over, and
    # a dead owner's slot with a new owner. A handover is no change, because a replaced static
    # member moves nothing. Members that heartbeat between a dead member's leave and the new owner's
    # join would cause an assignment of their own. So they wait until the new owner is ready, or for
    # `NEW_OWNER_JOINS`, and then learn whether they get some of its partitions.

    def _find_change(
        self, targets: SlotTargets, slots: Sequence[Slot], dead: Collection[int]
    ) -> tuple[str, float] | None:
        """Returns what changed since the last poll, and from which monotonic time on members have
        to learn of it.
        """
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
            opens = now + (targets.open_at - self._clock.now())  # as a joining member waits for it
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

    def _after(self, ended: MembershipEnd) -> Conclusion:
        """Does with the slot what follows this end, and logs it."""
        lost, refused = self._lease.lost, ended.how in {End.FENCED, End.UNRELEASED}
        ours, now = self._is_ours() if refused else None, self._clock.monotonic()
        last = self._life.conclude(ended, lost=lost, ours=ours, now=now, cured=self._cured)
        if last is None:
            try:
                last = self._life.conclude_freed(self._free(), ended.sentence)
            except ExternalOwner as error:
                last = self._life.conclude_external(str(error), clean=ended.clean and self._cured)
        if last.again is not None:
            return last
        if not refused and (last.exit is None or not last.ours):
            self._canary.end()
        if last.exit is not None and last.ours:
            self._error(last.exit)
        return self._end(last, ended)

    def _end(self, last: Conclusion, ended: MembershipEnd) -> Conclusion:
        kept = False
        try:
            if not last.ours:
                self._lease.abandon()
                self._remove_own_member()
                return last
            if last.quarantine:
                self._store.change_targets(
                    self._context.group, lambda targets: with_quarantined(targets, self._number)
                )
            kept = self._lease.release(clean=last.clean, closed=last.closed, gone=last.gone)
        except FleetError as error:
            if last.exit is None:
                raise
            self._lease.abandon()  # the store's error is not why it ends
            self._events.log(f"slot {self._number} is left to its lease: {error}")
        if last.exit is not None:
            return last
        if not kept:
            return Conclusion(
                exit=f"another worker took slot {self._number} while it was drained: stopped"
            )
        self._watcher.forget_released(self._lease.slot, handed=last.handed)
        self._events.log(f"released slot {self._number}{'' if ended.clean else ', not clean'}")
        self._events.emit("released", slot=self._number, clean=ended.clean, closed=last.closed)
        return last

    def _is_ours(self) -> bool | None:
        """Whether the slot names this worker, which alone allows another join.

        A silent store is waited for until the worker has to end (None). A worker that was
        disconnected from the store and is refused by the coordinator may have a successor. A join
        by guess would fence that one, and be fenced in turn.
        """
        while (ours := self._lease.confirm()) is None:
            self._events.log_rarely("refused as a member while the store does not answer: waiting")
            if self._context.stop.wait(_SILENCE):
                return None
        return ours

    def _error(self, sentence: str) -> None:
        if self._membership is not None:
            self._membership.state.error = sentence
        self._canary.fail(sentence)
        self._reporter.failed(sentence)

    def _end_hard(self, why: str) -> None:
        """Ends the process at once: a thread hangs in the user's code."""
        try:
            if self._membership is not None:
                self._membership.take_back_tries()
                self._clock.sleep(_LAST_WORD)
            self._error(why)
            with contextlib.suppress(FleetError):
                self._lease.release(clean=False)
            self._events.emit("exit", code=_HARD_EXIT, reason=why)
            self._events.log(f"ended: {why}")
        finally:  # even if something failed before
            os._exit(_HARD_EXIT)

    # --- what other parts need -------------------------------------------------------------

    def _fields(self) -> dict[str, Any]:
        """Returns what a renewal writes."""
        membership, known = self._membership, dict[str, Any]()
        if self._cured:  # else the slot names the session that still has to end [3]
            known["spark_session"] = self._runner.session_id
        if membership is None:
            return known
        state = membership.state
        if state.member_id is not None:
            known["member_id"] = state.member_id
        return {
            "phase": state.reported_phase,
            "batches": state.batches,
            "error": state.error,
            **known,
        }


def _joins(slot: Slot) -> bool:
    return slot.owner is not None and slot.phase is Phase.JOINING


def with_rejoin(targets: SlotTargets, number: int, token: int) -> SlotTargets:
    """Returns slot targets that ask this slot's owner to leave and join again once."""
    return replace(targets, rejoin={**targets.rejoin, number: token})


def without_rejoin(targets: SlotTargets, number: int) -> SlotTargets:
    """Returns slot targets that ask for it no more, because it is done."""
    return replace(targets, rejoin={n: t for n, t in targets.rejoin.items() if n != number})


def with_quarantined(targets: SlotTargets, number: int) -> SlotTargets:
    """Returns slot targets with this slot quarantined: an external process uses its instance id."""
    return replace(targets, quarantined=targets.quarantined | {number})
