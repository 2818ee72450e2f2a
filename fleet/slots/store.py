"""The store of slots, slot targets and changes: its rules, over any place that can compare and
swap.

Problem: the same promises have to hold in a file, on an API server and in memory. Choice: what may
be written is a pure function (`fleet.slots.transitions`), a back end only compares and swaps one
object at a time, and here is what calls them, once. A change's actor is fenced at the slot targets
by its token: whoever adopts a change writes its own there before it acts. Cost: what touches two
objects takes several requests, in an order that leaves no harm wherever it ends.
"""

import contextlib
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
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
    Quarantine,
    Slot,
    SlotTargets,
    WorkerReport,
    transitions,
)
from fleet.slots.backend import (
    Backend,
    Claim,
    Key,
    Kind,
    Moved,
    SlotTargetsRecord,
    Space,
    Value,
    mark_key,
)
from fleet.slots.evidence import Writes
from fleet.slots.transitions import has_good_canary, waits_for_canary

GRACE: Final = 4.0
"""Seconds for which a write is tried again while others write the same object."""
_PAUSE: Final = 0.02

Found = TypeVar("Found")
Made = TypeVar("Made")


def turns(
    what: str, *, clock: Clock, jitter: Callable[[], float] = random.random
) -> Iterator[None]:
    """Turns of a write that others may overtake, with short pauses; Unreachable in the end."""
    deadline = clock.monotonic() + GRACE
    while True:
        yield
        if clock.monotonic() > deadline:
            raise Unreachable(f"{what} changes too often to be written")
        clock.sleep(jitter() * _PAUSE)


def edited(
    read: Callable[[bool], Found],
    edit: Callable[[Found], Made | None],
    swap: Callable[[Made, Found], Made],
    *,
    hears: bool,
    turns: Iterator[None],
) -> Made | None:
    """Store what `edit` makes of what is read, asked again on every newer one; None: it says no.

    hears: what was heard of it (`read(False)`) is good enough to begin with, since the swap
    compares and raises Moved; a no is believed only of what was read for this (`read(True)`).
    """
    fresh = not hears
    for _ in turns:
        found = read(fresh)
        wanted = edit(found)
        if wanted is None and not fresh:
            fresh, found = True, read(True)
            wanted = edit(found)
        if wanted is None:
            return None
        with contextlib.suppress(Moved):
            return swap(wanted, found)
        fresh = True
    return None


def key_of(slot: Slot) -> Key:
    """Of a slot's object."""
    return Key(slot.group, Kind.SLOT, slot.number)


def record_of(group: str, value: Value | None) -> SlotTargetsRecord:
    """What the slot targets' object says; nothing is open where there is none."""
    return (
        value
        if isinstance(value, SlotTargetsRecord)
        else SlotTargetsRecord(targets=SlotTargets(group=group))
    )


def change_of(value: Value | None) -> Change | None:
    """What the change's object says."""
    return value if isinstance(value, Change) else None


# Taking a slot: one object changes hands, two must agree.
#
# Problem: a worker that takes a slot must be let in by the slot targets, and standbys of a revision
# without a good canary may get one slot of an older one, not two; yet a back end compares one
# object at a time, and whoever writes may be stopped or killed between any two lines.
#
# Choice. Who takes writes itself into the slot (compare and swap on what it saw), then reads the
# slot targets once more: the slot targets that no longer lets it in gets the slot back before
# `take` returns, so that nobody has acted as its owner; the take happens at that second reading.
# Where a canary decides, the new owner first claims it at the slot targets: one claim per revision,
# (slot, token). It is used once that slot's token is reached, and void then; who finds it unused
# waits two seconds, replaces it and looks at the slots once more, while a claimant that took its
# slot looks for its claim once more: of two that cross each other one sees the other, whoever was
# slower, and steps back. No line at which a new owner may die leaves more than an unused claim, or
# a slot held by the dead.
#
# Cost: a take is a read, a swap and a read; the first one of a new revision reads all slots and
# swaps the slot targets too; a new owner that died with a claim holds up its revision by two
# seconds.


CLAIM_GRACE: Final = 2.0
"""Seconds after which an unused claim is replaced, on its finder's own clock."""


class Free(Enum):
    """What needs no canary."""

    FREE = "free"


FREE: Final = Free.FREE


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One take: by whom, of what it saw."""

    seen: Slot
    worker: str
    revision: str
    spark_session: str | None
    lease: float
    void: Handover | None

    def is_admitted(self, record: SlotTargetsRecord) -> bool:
        """Whether the slot targets let this worker into this slot."""
        return transitions.admits(
            record,
            self.seen.number,
            worker=self.worker,
            revision=self.revision,
            void=self.void,
        )

    def taken(self, stored: Slot) -> Slot:
        """The slot as this take stores it."""
        return transitions.taken(
            stored,
            worker=self.worker,
            revision=self.revision,
            spark_session=self.spark_session,
            lease=self.lease,
        )

    def stands(self, stored: Slot) -> bool:
        """Whether this very take is what is stored."""
        return (stored.owner, stored.token) == (self.worker, self.seen.token + 1)


def _is_over(claim: Claim, slots: Mapping[int, Slot]) -> bool:
    """Whether its take is done and past; its new owner may look for it until then."""
    slot = slots.get(claim.slot)
    if slot is None or slot.token < claim.token:
        return False
    looked = slot.phase is not Phase.JOINING
    return slot.token > claim.token or slot.owner != claim.worker or looked


_NOTE_KEY: Final = re.compile(r"[A-Za-z0-9-]{1,100}")


class Store:
    """Where slots, slot targets and changes live, over a back end. Every method is one transaction.

    Thread-safe. Methods raise Unreachable where the back end does not answer in bounded time, or
    others write without an end.
    """

    unmanaged: ClassVar[bool] = False
    """Whether workers are rolled out by others than a manager [22]."""

    def __init__(
        self, backend: Backend, *, clock: Clock, jitter: Callable[[], float] = random.random
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._jitter = jitter
        self._doubts: dict[tuple[str, int], tuple[Attempt, Slot]] = {}
        """Takes whose end nobody could tell, and the slot before: to be given back."""
        self._claims_seen: dict[tuple[str, str, Claim], float] = {}

    @property
    def writes(self) -> Writes:
        """What became of this process' own writes: whoever watches leases asks [38]."""
        return self._backend.writes

    def beat(self, group: str) -> None:
        """Write something that changes nothing, by the way that an owner's renewal goes.

        Where this is stored, every living owner's renewal would have been [38].
        """
        self._backend.beat(group)

    def data_version(self) -> int:
        """Differs whenever anything in the store has changed; for pollers."""
        return self._backend.version()

    def known_since(self) -> float | None:
        """Monotonic time since when what is read is known to be true; None: it is not now."""
        return self._backend.known_since()

    def close(self) -> None:
        """What is held stays held."""
        self._backend.close()

    def first(self, group: str) -> FirstOpening | None:
        """What shall open by itself; None where the slot targets were written already, or nothing
        said.
        """
        del group
        return None

    def since(self, group: str, template_hash: str, now: float) -> float:
        """Wall time at which the first worker of a pod template came: `now` where that is us."""
        del group, template_hash
        return now

    # --- reading and compare-and-swap of single objects ----------------------------------------
    #
    # A write that was decided on an older state must not be stored: it is a function of the object
    # as it stands, asked again on every newer one until it is stored or says no.

    def _again(self, what: str) -> Iterator[None]:
        return turns(what, clock=self._clock, jitter=self._jitter)

    def _edit(self, key: Key, edit: Callable[[Value | None], Value | None]) -> Value | None:
        """Store what `edit` makes of the object (see `edited`); None: it says no."""
        return edited(
            lambda fresh: self._backend.read(key, fresh=fresh),
            lambda entry: edit(None if entry is None else entry.value),
            lambda wanted, entry: self._backend.swap(key, wanted, entry),
            hears=self._backend.hears,
            turns=self._again(f"{key.kind.value} {key.number} of group {key.group}"),
        )

    def _change_record(
        self, group: str, edit: Callable[[SlotTargetsRecord], SlotTargetsRecord | None]
    ) -> SlotTargetsRecord | None:
        """What is stored with the slot targets once `edit` is done; None where it says no."""
        stored = self._edit(Key(group, Kind.TARGETS), lambda value: edit(record_of(group, value)))
        return None if stored is None else record_of(group, stored)

    def _change_slot(self, slot: Slot, edit: Callable[[Slot], Slot | None]) -> Slot | None:
        """The slot once `edit` is stored; None where it says no, or there is no such slot."""
        stored = self._edit(key_of(slot), lambda v: edit(v) if isinstance(v, Slot) else None)
        return stored if isinstance(stored, Slot) else None

    def _read_slot(self, slot: Slot) -> Slot | None:
        """The slot as it is now; None where there is no such slot."""
        entry = self._backend.read(key_of(slot), fresh=True)
        return entry.value if entry is not None and isinstance(entry.value, Slot) else None

    def _record(self, group: str, *, fresh: bool = False) -> SlotTargetsRecord:
        """What is stored with the slot targets."""
        entry = self._backend.read(Key(group, Kind.TARGETS), fresh=fresh)
        return record_of(group, None if entry is None else entry.value)

    def _make(self, group: str, number: int) -> None:
        """The slot's object is there before the slot opens."""
        key = Key(group, Kind.SLOT, number)
        if self._backend.read(key, fresh=True) is None:
            with contextlib.suppress(Moved):  # somebody made it in this moment
                self._backend.swap(key, Slot(group=group, number=number), None)

    # --- the slot targets
    # ---------------------------------------------------------------------------

    def targets(self, group: str) -> SlotTargets:
        """The group's slot targets; version 0 and nothing open where none was written yet."""
        return self._record(group).targets

    def write_targets(
        self, targets: SlotTargets, *, by: Change | None = None
    ) -> SlotTargets | None:
        """Store `targets` if its version is still the stored one: as stored (version + 1), or None.

        by: the change whose actor writes. Raises LostLease, in the slot targets' own transaction,
        where (actor, token) are not the running change's any more.
        """

        def edit(record: SlotTargetsRecord) -> SlotTargetsRecord | None:
            if by is not None and by.token < record.token:
                raise transitions.lost(by, self.change(targets.group))
            if record.targets.version != targets.version:
                return None
            for number in sorted(targets.open - record.opened):
                self._make(targets.group, number)
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
        """Store what `change` makes of the slot targets, asked again on every newer one; None: it
        says no.

        Raises LostLease as `write_targets` does, Unreachable where others write without an end.
        """
        for _ in self._again(f"the slot targets of group {group}"):
            wanted = change(self.targets(group))
            if wanted is None:
                return None
            stored = self.write_targets(wanted, by=by)
            if stored is not None:
                return stored
        return None

    def committed(self, group: str, *topics: str) -> frozenset[str]:
        """Return the topics that the group has committed offsets of, with these added [53].

        Writes only what is new: once per group, as a rule.
        """
        known = self._record(group, fresh=True).committed
        if not known.issuperset(topics):
            self._change_record(
                group, lambda record: replace(record, committed=record.committed.union(topics))
            )
        return known.union(topics)

    # --- slots ------------------------------------------------------------------------------

    def slots(self, group: str) -> tuple[Slot, ...]:
        """All slots that were ever opened, by number; unheld ones too."""
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
        """Take the slot if it is open, not leaving, not quarantined and (owner, token, counter)
        are still as seen (a free slot, or one whose lease the caller has watched expire).
        Enforces a Handover's revision (but not that of `void`, of whose revision the caller has
        seen no standby for a lease) and, where there is none, `waits_for_canary`, over the slots as
        stored at that moment: two standbys that both saw their revision hold nothing do not
        both get another revision's slot. Token + 1, phase joining, clean False, batches 0, no
        error, `lease`. member_id and the former owner's session stay in `seen`. None: lost.
        """
        self.settle()
        attempt = Attempt(
            seen=seen,
            worker=worker,
            revision=revision,
            spark_session=spark_session,
            lease=lease,
            void=void,
        )
        fresh = not self._backend.hears
        claim: Claim | Free | None = None
        was: Slot | None = None  # the slot before a write of ours whose end is not known
        for _ in self._again(f"slot {seen.number} of group {seen.group}"):
            entry = self._backend.read(key_of(seen), fresh=fresh)
            if entry is None:
                return None
            before = entry.value
            assert isinstance(before, Slot)
            if was is not None and attempt.stands(before):
                return self._confirmed(attempt, before, was, claim)
            claim = self._may(attempt, before, fresh=fresh)
            if claim is None:
                if fresh:
                    return None
                fresh = True
                continue
            try:
                held = self._backend.swap(key_of(seen), attempt.taken(before), entry)
            except Moved:
                fresh, was = True, before
                continue
            except Unreachable:
                self._doubts[seen.group, seen.number] = (attempt, before)
                raise
            assert isinstance(held, Slot)
            return self._confirmed(attempt, held, before, claim)
        return None

    def settle(self) -> None:
        """Give back takes whose end nobody could tell. Raises Unreachable where it is too early."""
        away: Unreachable | None = None
        for key in list(self._doubts):
            doubt = self._doubts.pop(key, None)  # another thread may settle as well
            if doubt is None:
                continue
            try:
                self._give_back(*doubt)
            except Unreachable as error:
                self._doubts[key] = doubt
                away = error
        if away is not None:
            raise away

    def _confirmed(
        self, attempt: Attempt, held: Slot, before: Slot, claim: Claim | Free | None
    ) -> Slot | None:
        """The slot, where the slot targets let its new owner in now that it has it."""
        self._doubts[held.group, held.number] = (attempt, before)
        record = self._record(held.group, fresh=True)
        stands = claim is FREE or record.canaries.get(attempt.revision) == claim
        if stands and attempt.is_admitted(record):
            self._doubts.pop((held.group, held.number), None)
            return held
        self.settle()
        return None

    def _give_back(self, attempt: Attempt, before: Slot) -> None:
        self._change_slot(
            attempt.seen,
            lambda stored: (
                transitions.given_back(stored, before) if attempt.stands(stored) else None
            ),
        )

    def _may(self, attempt: Attempt, stored: Slot, *, fresh: bool) -> Claim | Free | None:
        """Whether the slot targets let the new owner in, and its revision may have this slot:
        by what.
        """
        if not transitions.is_as_seen(stored, attempt.seen):
            return None
        record = self._record(attempt.seen.group, fresh=fresh)
        if not attempt.is_admitted(record):
            return None
        pin = record.targets.handover.get(stored.number)
        pinned = pin is not None and pin.revision == attempt.revision
        if pinned or stored.revision in {None, attempt.revision} or self._has_canary(attempt):
            return FREE
        return self._claim(attempt)

    def _has_canary(self, attempt: Attempt) -> bool:
        """Whether the revision has a good canary now: slots of which that was heard are read."""
        backend, group = self._backend, attempt.seen.group
        if not backend.hears:
            return False  # the claim reads all of them anyway
        for slot in backend.scan(group, fresh=False)[1].values():
            if has_good_canary([slot], attempt.revision):
                now = self._read_slot(slot)
                if now and has_good_canary([now], attempt.revision):
                    return True
        return False

    def _claim(self, attempt: Attempt) -> Claim | Free | None:
        """The claim by which this take is its revision's canary, unless it needs none."""
        seen, revision = attempt.seen, attempt.revision
        key = Key(seen.group, Kind.TARGETS)
        for _ in self._again(f"the slot targets of group {seen.group}"):
            entry = self._backend.read(key, fresh=True)
            record = record_of(seen.group, None if entry is None else entry.value)
            slots = self._all(attempt)
            tried = waits_for_canary(slots.values(), slots[seen.number], revision)
            if tried or not attempt.is_admitted(record):
                return None
            if has_good_canary(slots.values(), revision):
                return FREE
            other = record.canaries.get(revision)
            abandoned = other is not None and not self._is_void(attempt, other, slots)
            if other is not None and abandoned and not self._has_waited(attempt, other):
                return None
            mine = Claim(slot=seen.number, token=seen.token + 1, worker=attempt.worker)
            kept = {r: t for r, t in record.canaries.items() if not _is_over(t, slots)}
            with contextlib.suppress(Moved):
                self._backend.swap(key, replace(record, canaries={**kept, revision: mine}), entry)
                return None if abandoned and self._is_tried(attempt) else mine
        return None

    def _all(self, attempt: Attempt) -> Mapping[int, Slot]:
        """All slots as they are now, the wanted one among them."""
        _, found = self._backend.scan(attempt.seen.group, fresh=True)
        return {attempt.seen.number: attempt.seen, **found}

    def _is_tried(self, attempt: Attempt) -> bool:
        """Whether whoever had claimed before has taken its slot after all."""
        slots = self._all(attempt)
        return waits_for_canary(slots.values(), slots[attempt.seen.number], attempt.revision)

    def _is_void(self, attempt: Attempt, claim: Claim, slots: Mapping[int, Slot]) -> bool:
        slot = slots.get(claim.slot)  # somebody may have deleted it
        return claim.worker == attempt.worker or (slot is not None and slot.token >= claim.token)

    def _has_waited(self, attempt: Attempt, claim: Claim) -> bool:
        """Whether this claim was seen unused for so long that its claimant may be dead."""
        seen, now = (attempt.seen.group, attempt.revision, claim), self._clock.monotonic()
        if now - self._claims_seen.setdefault(seen, now) < CLAIM_GRACE:
            return False
        self._claims_seen.pop(seen, None)
        return True

    def renew(self, slot: Slot) -> Slot | None:
        """Write the owner's fields (phase, member_id, spark_session, batches, error), counter + 1.

        Only if (owner, token) still match; None = somebody else has it: stop at once.
        """
        try:
            return self._change_slot(slot, lambda stored: transitions.renewed(stored, slot))
        except FleetError:
            with contextlib.suppress(FleetError):
                stored = self._read_slot(slot)
                if stored is not None and transitions.renewed(stored, slot) is None:
                    return None
            raise

    def release(self, slot: Slot, *, clean: bool) -> bool:
        """Give the slot up if (owner, token) still match.

        Owner None, phase free (or closed where the slot's phase is CLOSED), member_id kept.
        """
        edited = self._change_slot(
            slot, lambda stored: transitions.released(stored, slot, clean=clean)
        )
        return edited is not None

    def end_owner(self, seen: Slot) -> bool:
        """Say that the process of this very owner has ended, if (owner, token) still match.

        For who has seen it end: its supervisor, or the next container of the same pod. The slot
        keeps owner, member and session for its new owner, and a renewal of that owner is refused.
        """
        edited = self._change_slot(seen, lambda stored: transitions.owner_ended(stored, seen))
        return edited is not None

    def clear(self, slot: Slot) -> bool:
        """After a successful leave: forget member_id, revision and a dead owner, phase free.

        Only if the token is as seen. Spark session and `clean` stay for the next new owner [3].
        """
        edited = self._change_slot(slot, lambda stored: transitions.cleared(stored, slot))
        return edited is not None

    # --- changes ----------------------------------------------------------------------------

    def begin_change(
        self, plan: Plan, *, actor: str, started_at: float, lease: float = 0.0
    ) -> Change | None:
        """Start a change: None where one is RUNNING for the group (see `change`); asked again
        with the same plan, actor and time, it is the one that runs.
        """

        def edit(last: Value | None) -> Value | None:
            after = 0 if last is not None else self._record(plan.group).token
            return transitions.begun(
                change_of(last), plan, actor=actor, started_at=started_at, lease=lease, after=after
            )

        return change_of(self._edit(Key(plan.group, Kind.CHANGE), edit))

    def change(self, group: str) -> Change | None:
        """The running change, or else the last one."""
        entry = self._backend.read(Key(group, Kind.CHANGE), fresh=False)
        return None if entry is None else change_of(entry.value)

    def adopt(self, seen: Change, *, actor: str, lease: float = 0.0) -> Change | None:
        """Take over a running change that is still as seen; None where it is not.

        The slot targets learn of the new token before anybody acts by it: from then on the former
        actor, who may only have slept, writes the slot targets no more. Before that its writes are
        seen by us.
        """
        stored = self._edit(
            Key(seen.group, Kind.CHANGE),
            lambda last: transitions.adopted(change_of(last), seen, actor=actor, lease=lease),
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
        """Write step, detail, receipts, state, sentence, ended_at; counter + 1 renews the lease.

        Raises LostLease where (actor, token) no longer match.
        """
        stored = self._edit(
            Key(change.group, Kind.CHANGE),
            lambda last: transitions.advanced(change_of(last), change),
        )
        assert isinstance(stored, Change)
        return stored

    def changes(self, group: str, *, limit: int = 20) -> tuple[Change, ...]:
        """Latest first."""
        last = self.change(group)
        if last is None:
            return ()
        ended = self._backend.ended(group, limit=limit)
        return (last, *(each for each in ended if each.token < last.token))[:limit]

    # --- what compares nothing before it writes -----------------------------------------------

    def report(self, report: WorkerReport) -> None:
        """Replace the worker's report; first give back what was taken without an answer."""
        with contextlib.suppress(Unreachable):
            self.settle()
        self._backend.merge(Space.REPORTS, report.group, {report.worker: report})

    def reports(self, group: str) -> tuple[WorkerReport, ...]:
        """All stored reports of the group's workers; old ones are told by their counter."""
        found = self._backend.entries(Space.REPORTS, group)
        return tuple(r for _, r in sorted(found.items()) if isinstance(r, WorkerReport))

    def forget_worker(self, worker: str) -> None:
        """Drop the report of a worker that was removed."""
        self._backend.merge(Space.REPORTS, None, {worker: None})

    def pause(self, pause: Pause) -> None:
        """Keep a person's hold; replaces an earlier one of the same scope."""
        self._backend.merge(Space.PAUSES, "", {pause.group or "": pause})

    def resume(self, group: str | None) -> bool:
        """True where a pause was lifted."""
        return self._backend.merge(Space.PAUSES, "", {group or "": None}) == 1

    def pauses(self) -> tuple[Pause, ...]:
        """All pauses, the one of all groups first."""
        found = self._backend.entries(Space.PAUSES, "")
        return tuple(p for _, p in sorted(found.items()) if isinstance(p, Pause))

    def note(self, group: str, key: str) -> dict[str, object] | None:
        """A small JSON memory of the manager (scaling agreement over time and the like)."""
        found = self._backend.entries(Space.NOTES, group).get(key)
        return dict(found) if isinstance(found, Mapping) else None

    def put_note(self, group: str, key: str, value: Mapping[str, object] | None) -> None:
        """Replace it; None removes it. Keys are letters, digits and dashes: not every store has a
        blank in its names.
        """
        if not _NOTE_KEY.fullmatch(key):
            raise ValueError(f"the note {key!r} needs a name of letters, digits and dashes")
        self._backend.merge(Space.NOTES, group, {key: value})

    def quarantine(self, mark: Quarantine) -> None:
        """Keep the mark of a stopped partition; replaces an earlier one of the same partition."""
        self._backend.merge(Space.MARKS, mark.group, {mark_key(mark.tp): mark})

    def quarantines(self, group: str) -> tuple[Quarantine, ...]:
        """The group's stopped partitions, in order."""
        found = self._backend.entries(Space.MARKS, group).values()
        marks = (mark for mark in found if isinstance(mark, Quarantine))
        return tuple(sorted(marks, key=lambda mark: (mark.tp.topic, mark.tp.partition)))

    def lift(self, group: str, tp: TopicPartition | None) -> int:
        """Remove marks (all of the group where tp is None); how many."""
        wanted = None if tp is None else {mark_key(tp): None}
        return self._backend.merge(Space.MARKS, group, wanted)
