"""The store of slots, slot targets and changes: its rules, over any back end.

Problem: the same guarantees must hold in a file, on an API server and in memory. Choice: a pure
function (`fleet.slots.transitions`) says what may be written, and a back end compares and swaps one
object at a time. This module joins the two. The slot targets fence a change's actor by its token:
an actor that adopts a change writes its token there before it acts. Cost: what concerns two objects
takes several requests, in an order that is safe wherever it ends.
"""

import contextlib
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final, TypeVar

from fleet.clock import Clock
from fleet.errors import FleetError, Unreachable
from fleet.model import Plan, TopicPartition
from fleet.slots import (
    Change,
    FirstOpening,
    Handover,
    Pause,
    Phase,
    Slot,
    SlotTargets,
    StoppedPartition,
    WorkerReport,
    transitions,
)
from fleet.slots.backend import (
    Backend,
    Claim,
    ConcurrentWrite,
    Key,
    Kind,
    SlotTargetsRecord,
    Space,
    Value,
    partition_key,
)
from fleet.slots.evidence import WriteLog
from fleet.slots.transitions import has_good_canary, waits_for_canary

GRACE: Final = 4.0
"""Seconds for which a write is tried again while other processes write the same object."""
_PAUSE: Final = 0.02

Found = TypeVar("Found")
Made = TypeVar("Made")


def write_attempts(
    what: str, *, clock: Clock, jitter: Callable[[], float] = random.random
) -> Iterator[None]:
    """Yields for each attempt of a write, with short pauses; raises Unreachable in the end."""
    deadline = clock.monotonic() + GRACE
    while True:
        yield
        if clock.monotonic() > deadline:
            raise Unreachable(f"cannot write {what}: other processes keep changing it; retry")
        clock.sleep(jitter() * _PAUSE)


def edit_object(
    read: Callable[[bool], Found],
    edit: Callable[[Found], Made | None],
    swap: Callable[[Made, Found], Made],
    *,
    reads_cache: bool,
    write_attempts: Iterator[None],
) -> Made | None:
    """Stores what `edit` makes of the object, again for every newer one; None: `edit` refuses.

    reads_cache: a cached object (`read(False)`) is good enough to begin with, because the swap
    compares and raises ConcurrentWrite. A refusal counts only for a fresh one (`read(True)`).
    """
    fresh = not reads_cache
    for _ in write_attempts:
        found = read(fresh)
        wanted = edit(found)
        if wanted is None and not fresh:
            fresh, found = True, read(True)
            wanted = edit(found)
        if wanted is None:
            return None
        with contextlib.suppress(ConcurrentWrite):
            return swap(wanted, found)
        fresh = True
    return None


def key_of(slot: Slot) -> Key:
    """Returns the key of a slot's object."""
    return Key(slot.group, Kind.SLOT, slot.number)


def record_of(group: str, value: Value | None) -> SlotTargetsRecord:
    """Returns the slot targets' object; without one, nothing is open."""
    return (
        value
        if isinstance(value, SlotTargetsRecord)
        else SlotTargetsRecord(targets=SlotTargets(group=group))
    )


def change_of(value: Value | None) -> Change | None:
    """Returns the change's object, or None."""
    return value if isinstance(value, Change) else None


# Taking a slot changes the owner of one object, and two objects must agree.
#
# Problem: the slot targets must admit a worker that takes a slot, and standbys of a revision
# without a good canary may get one slot of an older revision, not two. But a back end compares one
# object at a time, and a worker may be stopped or killed between any two lines.
#
# Choice: the worker writes itself into the slot (compare and swap on what it read), then reads the
# slot targets again. If they no longer admit it, it returns the slot before `take` returns, and no
# worker has acted as its owner. The take counts from that second read.
#
# If a canary is needed, the worker first writes a claim into the slot targets: one per revision,
# (slot, token). The claim is used, and void, once the slot has that token. A worker that finds an
# unused claim waits two seconds, replaces it and reads the slots again. A worker that took its slot
# reads its claim again. So of two concurrent workers one sees the other and steps back. If a new
# owner dies, at most an unused claim or a slot with a dead owner remains.
#
# Cost: a take is a read, a swap and a read. The first one of a new revision also reads all slots
# and swaps the slot targets. A new owner that died with a claim delays its revision by two seconds.


CLAIM_GRACE: Final = 2.0
"""Seconds after which an unused claim is replaced, by the clock of the worker that finds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeAttempt:
    """One attempt to take a slot: the worker, and the slot as it was read."""

    seen: Slot
    worker: str
    revision: str
    spark_session: str | None
    lease: float
    void: Handover | None

    def is_admitted(self, record: SlotTargetsRecord) -> bool:
        """Whether the slot targets let this worker into this slot."""
        return transitions.can_take(
            record,
            self.seen.number,
            worker=self.worker,
            revision=self.revision,
            void=self.void,
        )

    def new_slot(self, stored: Slot) -> Slot:
        """Returns the slot as this attempt stores it."""
        return transitions.take_slot(
            stored,
            worker=self.worker,
            revision=self.revision,
            spark_session=self.spark_session,
            lease=self.lease,
        )

    def is_stored(self, stored: Slot) -> bool:
        """Whether this very attempt is stored."""
        return (stored.owner, stored.token) == (self.worker, self.seen.token + 1)


def _is_over(claim: Claim, slots: Mapping[int, Slot]) -> bool:
    """Whether the take of this claim is over; its new owner may read the claim until then."""
    slot = slots.get(claim.slot)
    if slot is None or slot.token < claim.token:
        return False
    looked = slot.phase is not Phase.JOINING
    return slot.token > claim.token or slot.owner != claim.worker or looked


_NOTE_KEY: Final = re.compile(r"[A-Za-z0-9-]{1,100}")


class Store:
    """Stores slots, slot targets and changes over a back end. Every method is one transaction.

    Thread-safe. Methods raise Unreachable if the back end does not answer in bounded time, or if
    other processes keep writing.
    """

    unmanaged: ClassVar[bool] = False
    """Whether something else than a manager rolls workers out [22]."""
    report_every: ClassVar[float] = 0.0
    """Seconds between two reports of an owner without news; at least one lease."""

    def __init__(
        self, backend: Backend, *, clock: Clock, jitter: Callable[[], float] = random.random
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._jitter = jitter
        self._uncertain_takes: dict[tuple[str, int], tuple[TakeAttempt, Slot]] = {}
        """Takes with an unknown result, and the slot before: they have to be returned."""
        self._claims_seen: dict[tuple[str, str, Claim], float] = {}

    @property
    def writes(self) -> WriteLog:
        """Returns the log of this process's own writes; watchers of leases need it [38]."""
        return self._backend.writes

    def beat(self, group: str) -> None:
        """Writes something without effect, by the same path as an owner's renewal.

        If it is stored, every living owner's renewal would have been stored [38].
        """
        self._backend.beat(group)

    def data_version(self) -> int:
        """Returns a value that differs after any change in the store, for pollers."""
        return self._backend.version()

    def known_since(self) -> float | None:
        """Returns the monotonic time since when reads are current; None: they are not now."""
        return self._backend.known_since()

    def close(self) -> None:
        """Closes the back end; owners keep their slots."""
        self._backend.close()

    def first_opening(self, group: str) -> FirstOpening | None:
        """Returns what opens without a manager; None if slot targets exist or none is declared."""
        del group
        return None

    def rank(self, worker: str, *, owns: bool) -> None:
        """Records whether the worker owns a slot, for those who remove workers by number."""
        del worker, owns

    def attend(self, group: str, slot: int | None) -> bool:
        """Follows one owner's slot and what changes beside it; None: each slot, with its lease.

        Returns whether other slots' leases are hidden now. A hidden slot is read as owned, active.
        """
        del group, slot
        return False

    def since(self, group: str, template_hash: str, now: float) -> float:
        """Returns the wall time of a pod template's first worker: `now` if that is the caller."""
        del group, template_hash
        return now

    # --- reading and compare-and-swap of single objects ----------------------------------------
    #
    # A write that was decided on an older state must not be stored. So it is a function of the
    # stored object, called again for every newer one until it is stored or refuses.

    def _attempts(self, what: str) -> Iterator[None]:
        return write_attempts(what, clock=self._clock, jitter=self._jitter)

    def _edit(self, key: Key, edit: Callable[[Value | None], Value | None]) -> Value | None:
        """Stores what `edit` makes of the object (see `edit_object`); None: it refuses."""
        return edit_object(
            lambda fresh: self._backend.read(key, fresh=fresh),
            lambda entry: edit(None if entry is None else entry.value),
            lambda wanted, entry: self._backend.swap(key, wanted, entry),
            reads_cache=self._backend.reads_cache,
            write_attempts=self._attempts(f"{key.kind.value} {key.number} of group {key.group}"),
        )

    def _change_record(
        self, group: str, edit: Callable[[SlotTargetsRecord], SlotTargetsRecord | None]
    ) -> SlotTargetsRecord | None:
        """Returns what is stored with the slot targets after `edit`; None if it refuses."""
        stored = self._edit(Key(group, Kind.TARGETS), lambda value: edit(record_of(group, value)))
        return None if stored is None else record_of(group, stored)

    def _change_slot(self, slot: Slot, edit: Callable[[Slot], Slot | None]) -> Slot | None:
        """Returns the slot once `edit` is stored; None if it refuses or the slot does not exist."""
        stored = self._edit(key_of(slot), lambda v: edit(v) if isinstance(v, Slot) else None)
        return stored if isinstance(stored, Slot) else None

    def _read_slot(self, slot: Slot) -> Slot | None:
        """Returns the slot as it is now; None if it does not exist."""
        entry = self._backend.read(key_of(slot), fresh=True)
        return entry.value if entry is not None and isinstance(entry.value, Slot) else None

    def _record(self, group: str, *, fresh: bool = False) -> SlotTargetsRecord:
        """Returns what is stored with the slot targets."""
        entry = self._backend.read(Key(group, Kind.TARGETS), fresh=fresh)
        return record_of(group, None if entry is None else entry.value)

    def _create_slot(self, group: str, number: int) -> None:
        """Creates the slot's object before the slot opens."""
        key = Key(group, Kind.SLOT, number)
        if self._backend.read(key, fresh=True) is None:
            with contextlib.suppress(ConcurrentWrite):  # another process just created it
                self._backend.swap(key, Slot(group=group, number=number), None)

    # --- slot targets -----------------------------------------------------------------------

    def targets(self, group: str) -> SlotTargets:
        """Returns the group's slot targets; version 0 and nothing open if none were written."""
        return self._record(group).targets

    def write_targets(
        self, targets: SlotTargets, *, by: Change | None = None
    ) -> SlotTargets | None:
        """Stores `targets` if its version is unchanged; returns it as stored (version + 1), or
        None.

        by: the change whose actor writes. Raises LostLease, in the same transaction, if (actor,
        token) are no longer the running change's.
        """

        def edit(record: SlotTargetsRecord) -> SlotTargetsRecord | None:
            if by is not None and by.token < record.token:
                raise transitions.lost_lease(by, self.change(targets.group))
            if record.targets.version != targets.version:
                return None
            for number in sorted(targets.open - record.opened):
                self._create_slot(targets.group, number)
            return replace(
                record,
                targets=replace(targets, version=targets.version + 1),
                opened=record.opened | targets.open,
                token=record.token if by is None else by.token,
            )

        stored = self._change_record(targets.group, edit)
        return None if stored is None else stored.targets

    def change_targets(
        self,
        group: str,
        change: Callable[[SlotTargets], SlotTargets | None],
        *,
        by: Change | None = None,
    ) -> SlotTargets | None:
        """Stores what `change` makes of the slot targets, again for every newer one; None: it
        refuses.

        Raises LostLease as `write_targets` does, and Unreachable if other processes keep writing.
        """
        for _ in self._attempts(f"the slot targets of group {group}"):
            wanted = change(self.targets(group))
            if wanted is None:
                return None
            stored = self.write_targets(wanted, by=by)
            if stored is not None:
                return stored
        return None

    def committed_topics(self, group: str, *topics: str) -> frozenset[str]:
        """Returns the topics that the group has committed offsets of, with these added [53].

        Writes only new topics: as a rule once per group.
        """
        known = self._record(group, fresh=True).committed
        if not known.issuperset(topics):
            self._change_record(
                group, lambda record: replace(record, committed=record.committed.union(topics))
            )
        return known.union(topics)

    # --- slots ------------------------------------------------------------------------------

    def slots(self, group: str) -> tuple[Slot, ...]:
        """Returns all slots that were ever opened, by number, also those without an owner."""
        record, found = self._backend.scan(group, fresh=False)
        opened = frozenset() if record is None else record.opened
        used = {number for number, slot in found.items() if slot.token}
        return tuple(found.get(n) or Slot(group=group, number=n) for n in sorted(opened | used))

    def take(
        self,
        seen: Slot,
        *,
        worker: str,
        revision: str,
        spark_session: str | None,
        lease: float = 0.0,
        void: Handover | None = None,
    ) -> Slot | None:
        """Takes the slot if it is open, not leaving, not quarantined and (owner, token, counter)
        are as seen.

        That is a free slot, or one whose lease the caller has seen expire. Enforces a Handover's
        revision, except that of `void`, of which the caller has seen no standby for a while.
        Without a Handover it enforces `waits_for_canary`, over the slots as stored at that moment.
        So two standbys whose revision owned no slot do not both get another revision's. Token + 1,
        phase joining, clean False, batches 0, no error, `lease`. member_id and the former owner's
        session stay in `seen`. None: not taken.
        """
        self.return_uncertain_takes()
        attempt = TakeAttempt(
            seen=seen,
            worker=worker,
            revision=revision,
            spark_session=spark_session,
            lease=lease,
            void=void,
        )
        fresh = not self._backend.reads_cache
        claim: Claim | bool = False
        was: Slot | None = None  # the slot before an own write with an unknown result
        for _ in self._attempts(f"slot {seen.number} of group {seen.group}"):
            entry = self._backend.read(key_of(seen), fresh=fresh)
            if entry is None:
                return None
            before = entry.value
            assert isinstance(before, Slot)
            if was is not None and attempt.is_stored(before):
                return self._confirm_take(attempt, before, was, claim)
            claim = self._permission(attempt, before, fresh=fresh)
            if not claim:
                if fresh:
                    return None
                fresh = True
                continue
            try:
                held = self._backend.swap(key_of(seen), attempt.new_slot(before), entry)
            except ConcurrentWrite:
                fresh, was = True, before
                continue
            except Unreachable:
                self._uncertain_takes[seen.group, seen.number] = (attempt, before)
                raise
            assert isinstance(held, Slot)
            return self._confirm_take(attempt, held, before, claim)
        return None

    def return_uncertain_takes(self) -> None:
        """Returns slots whose take had an unknown result.

        Raises Unreachable if it is too early.
        """
        away: Unreachable | None = None
        for key in list(self._uncertain_takes):
            doubt = self._uncertain_takes.pop(key, None)  # another thread may do the same
            if doubt is None:
                continue
            try:
                self._give_back(*doubt)
            except Unreachable as error:
                self._uncertain_takes[key] = doubt
                away = error
        if away is not None:
            raise away

    def _confirm_take(
        self, attempt: TakeAttempt, held: Slot, before: Slot, claim: Claim | bool
    ) -> Slot | None:
        """Returns the slot if the slot targets still admit its new owner."""
        self._uncertain_takes[held.group, held.number] = (attempt, before)
        record = self._record(held.group, fresh=True)
        stands = claim is True or record.canaries.get(attempt.revision) == claim
        if stands and attempt.is_admitted(record):
            self._uncertain_takes.pop((held.group, held.number), None)
            return held
        self.return_uncertain_takes()
        return None

    def _give_back(self, attempt: TakeAttempt, before: Slot) -> None:
        self._change_slot(
            attempt.seen,
            lambda stored: (
                transitions.undo_take(stored, before) if attempt.is_stored(stored) else None
            ),
        )

    def _permission(self, attempt: TakeAttempt, stored: Slot, *, fresh: bool) -> Claim | bool:
        """Returns the claim by which the new owner may have this slot; True: it needs none; False:
        it may not.
        """
        if not transitions.is_unchanged(stored, attempt.seen):
            return False
        record = self._record(attempt.seen.group, fresh=fresh)
        if not attempt.is_admitted(record):
            return False
        pin = record.targets.handover.get(stored.number)
        pinned = pin is not None and pin.revision == attempt.revision
        if pinned or stored.revision in {None, attempt.revision} or self._has_canary(attempt):
            return True
        return self._claim(attempt)

    def _has_canary(self, attempt: TakeAttempt) -> bool:
        """Whether the revision has a good canary now. Slots known to be good are read again."""
        backend, group = self._backend, attempt.seen.group
        if not backend.reads_cache:
            return False  # the claim reads all of them anyway
        for slot in backend.scan(group, fresh=False)[1].values():
            if has_good_canary([slot], attempt.revision):
                now = self._read_slot(slot)
                if now and has_good_canary([now], attempt.revision):
                    return True
        return False

    def _claim(self, attempt: TakeAttempt) -> Claim | bool:
        """Returns the claim that makes this take its revision's canary; True, False: as above."""
        seen, revision = attempt.seen, attempt.revision
        key = Key(seen.group, Kind.TARGETS)
        for _ in self._attempts(f"the slot targets of group {seen.group}"):
            entry = self._backend.read(key, fresh=True)
            record = record_of(seen.group, None if entry is None else entry.value)
            slots = self._all_slots(attempt)
            tried = waits_for_canary(slots.values(), slots[seen.number], revision)
            if tried or not attempt.is_admitted(record):
                return False
            if has_good_canary(slots.values(), revision):
                return True
            other = record.canaries.get(revision)
            abandoned = other is not None and not self._is_void(attempt, other, slots)
            if other is not None and abandoned and not self._has_waited(attempt, other):
                return False
            mine = Claim(slot=seen.number, token=seen.token + 1, worker=attempt.worker)
            kept = {r: t for r, t in record.canaries.items() if not _is_over(t, slots)}
            with contextlib.suppress(ConcurrentWrite):
                self._backend.swap(key, replace(record, canaries={**kept, revision: mine}), entry)
                return mine if not abandoned or not self._is_tried(attempt) else False
        return False

    def _all_slots(self, attempt: TakeAttempt) -> Mapping[int, Slot]:
        """Returns all slots as they are now, with the wanted one."""
        _, found = self._backend.scan(attempt.seen.group, fresh=True)
        return {attempt.seen.number: attempt.seen, **found}

    def _is_tried(self, attempt: TakeAttempt) -> bool:
        """Whether the worker with the earlier claim took its slot after all."""
        slots = self._all_slots(attempt)
        return waits_for_canary(slots.values(), slots[attempt.seen.number], attempt.revision)

    def _is_void(self, attempt: TakeAttempt, claim: Claim, slots: Mapping[int, Slot]) -> bool:
        slot = slots.get(claim.slot)  # it may have been deleted
        return claim.worker == attempt.worker or (slot is not None and slot.token >= claim.token)

    def _has_waited(self, attempt: TakeAttempt, claim: Claim) -> bool:
        """Whether this claim was unused for so long that its worker may be dead."""
        seen, now = (attempt.seen.group, attempt.revision, claim), self._clock.monotonic()
        if now - self._claims_seen.setdefault(seen, now) < CLAIM_GRACE:
            return False
        self._claims_seen.pop(seen, None)
        return True

    def renew(self, slot: Slot) -> Slot | None:
        """Writes the owner's fields (phase, member_id, spark_session, batches, error), counter + 1.

        Only if (owner, token) still match; None = another worker owns the slot: stop at once.
        """
        try:
            return self._change_slot(slot, lambda stored: transitions.renew_slot(stored, slot))
        except FleetError:
            with contextlib.suppress(FleetError):
                stored = self._read_slot(slot)
                if stored is not None and transitions.renew_slot(stored, slot) is None:
                    return None
            raise

    def release(self, slot: Slot, *, clean: bool) -> bool:
        """Releases the slot if (owner, token) still match.

        Owner None, phase free (closed if the slot's phase is CLOSED), member_id kept.
        """
        stored = self._change_slot(
            slot, lambda stored: transitions.release_slot(stored, slot, clean=clean)
        )
        return stored is not None

    def end_owner(self, seen: Slot) -> bool:
        """Records that the process of this very owner has ended, if (owner, token) still match.

        For the process that saw it end: its supervisor, or the next container of the same pod. The
        slot keeps owner, member and session for its new owner. A renewal of the old owner is
        refused.
        """
        stored = self._change_slot(seen, lambda stored: transitions.mark_owner_ended(stored, seen))
        return stored is not None

    def clear(self, slot: Slot) -> bool:
        """Removes member_id, revision and a dead owner after a leave; phase free.

        Only if the token is as seen. Spark session and `clean` stay for the next owner [3].
        """
        stored = self._change_slot(slot, lambda stored: transitions.clear_slot(stored, slot))
        return stored is not None

    # --- changes ----------------------------------------------------------------------------

    def begin_change(
        self, plan: Plan, *, actor: str, started_at: float, lease: float = 0.0
    ) -> Change | None:
        """Starts a change; None if one is RUNNING for the group (see `change`).

        A repeated call with the same plan, actor and time returns the running one.
        """

        def edit(last: Value | None) -> Value | None:
            after = 0 if last is not None else self._record(plan.group).token
            return transitions.begin_change(
                change_of(last), plan, actor=actor, started_at=started_at, lease=lease, after=after
            )

        return change_of(self._edit(Key(plan.group, Kind.CHANGE), edit))

    def change(self, group: str) -> Change | None:
        """Returns the running change, or else the last one."""
        entry = self._backend.read(Key(group, Kind.CHANGE), fresh=False)
        return None if entry is None else change_of(entry.value)

    def adopt(self, seen: Change, *, actor: str, lease: float = 0.0) -> Change | None:
        """Takes over a running change that is still as seen; None if it is not.

        The slot targets get the new token before the new actor acts. From then on the former actor,
        who may only have slept, cannot write them. Its earlier writes are visible here.
        """
        stored = self._edit(
            Key(seen.group, Kind.CHANGE),
            lambda last: transitions.adopt_change(change_of(last), seen, actor=actor, lease=lease),
        )
        change = change_of(stored)
        if change is None:
            return None
        token = change.token
        self._change_record(
            seen.group, lambda r: None if r.token >= token else replace(r, token=token)
        )
        return change

    def advance(self, change: Change) -> Change:
        """Writes step, detail, receipts, state, sentence, ended_at; counter + 1 renews the lease.

        Raises LostLease if (actor, token) no longer match.
        """
        stored = self._edit(
            Key(change.group, Kind.CHANGE),
            lambda last: transitions.advance_change(change_of(last), change),
        )
        assert isinstance(stored, Change)
        return stored

    def changes(self, group: str, *, limit: int = 20) -> tuple[Change, ...]:
        """Returns the group's changes, latest first."""
        last = self.change(group)
        if last is None:
            return ()
        ended = self._backend.ended_changes(group, limit=limit)
        return (last, *(each for each in ended if each.token < last.token))[:limit]

    # --- writes without a comparison -----------------------------------------------

    def report(self, report: WorkerReport) -> None:
        """Replaces the worker's report; first returns takes with an unknown result."""
        with contextlib.suppress(Unreachable):
            self.return_uncertain_takes()
        self._backend.merge(Space.WORKER_REPORTS, report.group, {report.worker: report})

    def reports(self, group: str) -> tuple[WorkerReport, ...]:
        """Returns all stored reports of the group's workers; the counter shows which are old."""
        found = self._backend.entries(Space.WORKER_REPORTS, group)
        return tuple(r for _, r in sorted(found.items()) if isinstance(r, WorkerReport))

    def forget_worker(self, worker: str) -> None:
        """Removes the report of a worker that was removed."""
        self._backend.merge(Space.WORKER_REPORTS, None, {worker: None})

    def pause(self, pause: Pause) -> None:
        """Stores an operator's pause; replaces an earlier one of the same scope."""
        self._backend.merge(Space.PAUSES, "", {pause.group or "": pause})

    def resume(self, group: str | None) -> bool:
        """Lifts a pause; True if there was one."""
        return self._backend.merge(Space.PAUSES, "", {group or "": None}) == 1

    def pauses(self) -> tuple[Pause, ...]:
        """Returns all pauses, the one of all groups first."""
        found = self._backend.entries(Space.PAUSES, "")
        return tuple(p for _, p in sorted(found.items()) if isinstance(p, Pause))

    def manager_state(self, group: str, key: str) -> dict[str, object] | None:
        """Returns a small JSON value that managers keep, such as the scaling agreement."""
        found = self._backend.entries(Space.MANAGER_STATE, group).get(key)
        return dict(found) if isinstance(found, Mapping) else None

    def put_manager_state(self, group: str, key: str, value: Mapping[str, object] | None) -> None:
        """Replaces a value of managers; None removes it.

        Keys are letters, digits and dashes, because not every store has blanks in names.
        """
        if not _NOTE_KEY.fullmatch(key):
            raise ValueError(
                f"a manager's value is named {key!r}: a name has letters, digits and dashes only"
            )
        self._backend.merge(Space.MANAGER_STATE, group, {key: value})

    def stop_partition(self, mark: StoppedPartition) -> None:
        """Records a stopped partition; replaces an earlier record of the same partition."""
        self._backend.merge(Space.STOPPED_PARTITIONS, mark.group, {partition_key(mark.tp): mark})

    def stopped_partitions(self, group: str) -> tuple[StoppedPartition, ...]:
        """Returns the group's stopped partitions, in order."""
        found = self._backend.entries(Space.STOPPED_PARTITIONS, group).values()
        marks = (mark for mark in found if isinstance(mark, StoppedPartition))
        return tuple(sorted(marks, key=lambda mark: (mark.tp.topic, mark.tp.partition)))

    def lift(self, group: str, tp: TopicPartition | None) -> int:
        """Removes records of stopped partitions (all if tp is None); returns how many."""
        wanted = None if tp is None else {partition_key(tp): None}
        return self._backend.merge(Space.STOPPED_PARTITIONS, group, wanted)
