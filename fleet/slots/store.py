"""The store of slots, gates and changes: its rules, over any place that can compare and swap.

Problem: the same promises have to hold in a file, on an API server and in memory. Choice: what may
be written is a pure function (`fleet.slots.transitions`), a back end only compares and swaps one
object at a time, and here is what calls them, once. A change's actor is fenced at the gate by its
token: whoever adopts a change writes its own there before it acts. Cost: what touches two objects
takes several requests, in an order that leaves no harm wherever it ends (`fleet.slots.acquire`).
"""

import contextlib
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar, Final

from fleet.clock import Clock
from fleet.errors import FleetError, Unreachable
from fleet.model import Plan, TopicPartition
from fleet.slots import (
    Change,
    FirstOpening,
    Gate,
    Handover,
    Pause,
    Quarantine,
    Slot,
    WorkerReport,
    transitions,
)
from fleet.slots.acquire import SlotAcquisition
from fleet.slots.backend import Backend, Key, Kind, Space, Value, mark_key
from fleet.slots.evidence import Writes
from fleet.slots.gates import GateRecord
from fleet.slots.group_objects import Objects, change_of

_NOTE_KEY: Final = re.compile(r"[A-Za-z0-9-]{1,100}")


class Store:
    """Where slots, gates and changes live, over a back end. Every method is one transaction.

    Thread-safe. Methods raise Unreachable where the back end does not answer in bounded time, or
    others write without an end.
    """

    unmanaged: ClassVar[bool] = False
    """Whether workers are rolled out by others than a manager [22]."""

    def __init__(
        self, backend: Backend, *, clock: Clock, jitter: Callable[[], float] = random.random
    ) -> None:
        self._backend = backend
        self._objects = Objects(backend, clock=clock, jitter=jitter)
        self._taking = SlotAcquisition(self._objects)

    @property
    def writes(self) -> Writes:
        """What became of this process' own writes: whoever watches leases asks [38]."""
        return self._backend.writes

    def beat(self, group: str) -> None:
        """Write something that changes nothing, by the way that a holder's renewal goes.

        Where this is stored, every living holder's renewal would have been [38].
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
        """What shall open by itself; None where the gate was written already, or nothing said."""
        del group
        return None

    def since(self, group: str, template_hash: str, now: float) -> float:
        """Wall time at which the first worker of a pod template came: `now` where that is us."""
        del group, template_hash
        return now

    # --- the gate ---------------------------------------------------------------------------

    def gate(self, group: str) -> Gate:
        """The group's gate; version 0 and nothing open where none was written yet."""
        return self._objects.record(group).gate

    def write_gate(self, gate: Gate, *, by: Change | None = None) -> Gate | None:
        """Store `gate` if its version is still the stored one: as stored (version + 1), or None.

        by: the change whose actor writes. Raises LostLease, in the gate's own transaction, where
        (actor, token) are not the running change's any more.
        """

        def edit(record: GateRecord) -> GateRecord | None:
            if by is not None and by.token < record.token:
                raise transitions.lost(by, self.change(gate.group))
            if record.gate.version != gate.version:
                return None
            for number in sorted(gate.open - record.opened):
                self._objects.make(gate.group, number)
            return replace(
                record,
                gate=replace(gate, version=gate.version + 1),
                opened=record.opened | gate.open,
                token=record.token if by is None else by.token,
            )

        stored = self._objects.change_record(gate.group, edit)
        return None if stored is None else stored.gate

    def change_gate(
        self, group: str, change: Callable[[Gate], Gate | None], *, by: Change | None = None
    ) -> Gate | None:
        """Store what `change` makes of the gate, asked again on every newer one; None: it says no.

        Raises LostLease as `write_gate` does, Unreachable where others write without an end.
        """
        for _ in self._objects.again(f"the gate of group {group}"):
            wanted = change(self.gate(group))
            if wanted is None:
                return None
            stored = self.write_gate(wanted, by=by)
            if stored is not None:
                return stored
        return None

    def committed(self, group: str, *topics: str) -> frozenset[str]:
        """Return the topics that the group has committed offsets of, with these added [53].

        Writes only what is new: once per group, as a rule.
        """
        known = self._objects.record(group, fresh=True).committed
        if not known.issuperset(topics):
            self._objects.change_record(
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
        """Take the slot if it is open, not leaving, not quarantined and (holder, token, counter)
        are still as seen (a free slot, or one whose lease the caller has watched expire).
        Enforces a Handover's revision (but not that of `void`, of whose revision the caller has
        seen no standby for a lease) and, where there is none, `waits_for_canary`, over the slots as
        stored at that moment: two standbys that both saw their revision hold nothing do not
        both get another revision's slot. Token + 1, phase joining, clean False, batches 0, no
        error, `lease`. member_id and the former holder's session stay in `seen`. None: lost.
        """
        return self._taking.take(
            seen,
            worker=worker,
            revision=revision,
            spark_session=spark_session,
            lease=lease,
            void=void,
        )

    def settle(self) -> None:
        """Give back takes whose end nobody could tell. Raises Unreachable where it is too early."""
        self._taking.settle()

    def renew(self, slot: Slot) -> Slot | None:
        """Write the holder's fields (phase, member_id, spark_session, batches, error), counter + 1.

        Only if (holder, token) still match; None = somebody else has it: stop at once.
        """
        try:
            return self._objects.change_slot(slot, lambda stored: transitions.renewed(stored, slot))
        except FleetError:
            with contextlib.suppress(FleetError):
                stored = self._objects.read_slot(slot)
                if stored is not None and transitions.renewed(stored, slot) is None:
                    return None
            raise

    def release(self, slot: Slot, *, clean: bool) -> bool:
        """Give the slot up if (holder, token) still match.

        Holder None, phase free (or closed where the slot's phase is CLOSED), member_id kept.
        """
        edited = self._objects.change_slot(
            slot, lambda stored: transitions.released(stored, slot, clean=clean)
        )
        return edited is not None

    def end_holder(self, seen: Slot) -> bool:
        """Say that the process of this very holder has ended, if (holder, token) still match.

        For who has seen it end: its supervisor, or the next container of the same pod. The slot
        keeps holder, member and session for its taker, and a renewal of that holder is refused.
        """
        edited = self._objects.change_slot(
            seen, lambda stored: transitions.holder_ended(stored, seen)
        )
        return edited is not None

    def clear(self, slot: Slot) -> bool:
        """After a successful leave: forget member_id, revision and a dead holder, phase free.

        Only if the token is as seen. Spark session and `clean` stay for the next taker [3].
        """
        edited = self._objects.change_slot(slot, lambda stored: transitions.cleared(stored, slot))
        return edited is not None

    # --- changes ----------------------------------------------------------------------------

    def begin_change(
        self, plan: Plan, *, actor: str, started_at: float, lease: float = 0.0
    ) -> Change | None:
        """Start a change: None where one is RUNNING for the group (see `change`); asked again
        with the same plan, actor and time, it is the one that runs.
        """

        def edit(last: Value | None) -> Value | None:
            after = 0 if last is not None else self._objects.record(plan.group).token
            return transitions.begun(
                change_of(last), plan, actor=actor, started_at=started_at, lease=lease, after=after
            )

        return change_of(self._objects.edit(Key(plan.group, Kind.CHANGE), edit))

    def change(self, group: str) -> Change | None:
        """The running change, or else the last one."""
        entry = self._backend.read(Key(group, Kind.CHANGE), fresh=False)
        return None if entry is None else change_of(entry.value)

    def adopt(self, seen: Change, *, actor: str, lease: float = 0.0) -> Change | None:
        """Take over a running change that is still as seen; None where it is not.

        The gate learns of the new token before anybody acts by it: from then on the former actor,
        who may only have slept, writes the gate no more. Before that its writes are seen by us.
        """
        stored = self._objects.edit(
            Key(seen.group, Kind.CHANGE),
            lambda last: transitions.adopted(change_of(last), seen, actor=actor, lease=lease),
        )
        change = change_of(stored)
        if change is None:
            return None
        token = change.token
        self._objects.change_record(
            seen.group, lambda r: None if r.token >= token else replace(r, token=token)
        )
        return change

    def advance(self, change: Change) -> Change:
        """Write step, detail, receipts, state, sentence, ended_at; counter + 1 renews the lease.

        Raises LostLease where (actor, token) no longer match.
        """
        stored = self._objects.edit(
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
