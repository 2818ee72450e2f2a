"""Taking a slot: one object changes hands, two must agree.

Problem: a worker that takes a slot must be let in by the gate, and standbys of a revision that
nobody has proved may get one slot of an older one, not two; yet a back end compares one object at
a time, and whoever writes may be stopped or killed between any two lines.

Choice. Who takes writes itself into the slot (compare and swap on what it saw), then reads the
gate once more: a gate that no longer lets it in gets the slot back before `take` returns, so that
nobody has acted as its holder; the take happens at that second reading. Where a canary decides, the
taker first claims it at the gate: one claim per revision, (slot, token). It is used once that
slot's token is reached, and void then; who finds it unused waits two seconds, replaces it and
looks at the slots once more, while a claimant that took its slot looks for its claim once more: of
two that cross each other one sees the other, whoever was slower, and steps back. No line at which
a taker may die leaves more than an unused claim, or a slot held by the dead.

Cost: a take is a read, a swap and a read; the first one of a new revision reads all slots and
swaps the gate too; a taker that died with a claim holds up its revision by two seconds.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from fleet.errors import Unreachable
from fleet.slots import Handover, Phase, Slot, transitions
from fleet.slots.backend import Key, Kind, Moved
from fleet.slots.canaries import is_good_canary, waits_for_canary
from fleet.slots.doubts import Doubts
from fleet.slots.gates import Claim, GateRecord
from fleet.slots.group_objects import Objects, key_of, record_of

CLAIM_PATIENCE: Final = 2.0
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
    session: str | None
    void: Handover | None

    def is_admitted(self, record: GateRecord) -> bool:
        """Whether the gate lets this worker into this slot."""
        return transitions.admits(
            record,
            self.seen.number,
            worker=self.worker,
            revision=self.revision,
            void=self.void,
        )

    def stands(self, stored: Slot) -> bool:
        """Whether this very take is what is stored."""
        return (stored.holder, stored.token) == (self.worker, self.seen.token + 1)


class SlotAcquisition:
    """`take` of `fleet.slots.store.Store`. Thread-safe."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._clock = objects.clock
        self._doubts = Doubts[Attempt]()
        self._claims_seen: dict[tuple[str, str, Claim], float] = {}

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
        """Take the slot if it is still as seen and the gate lets this revision in; else None."""
        self.settle()
        attempt = Attempt(
            seen=seen, worker=worker, revision=revision, session=spark_session, void=void
        )
        key = key_of(seen)
        fresh = not self._objects.backend.hears
        claim: Claim | Free | None = None
        was: Slot | None = None  # the slot before a write of ours whose end is not known
        for _ in self._objects.again(f"slot {seen.number} of group {seen.group}"):
            entry = self._objects.backend.read(key, fresh=fresh)
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
            taken = transitions.taken(
                before,
                worker=worker,
                revision=revision,
                spark_session=spark_session,
                lease=lease,
            )
            try:
                held = self._objects.backend.swap(key, taken, entry)
            except Moved:
                fresh, was = True, before
                continue
            except Unreachable:
                self._doubts.add(attempt, before)
                raise
            assert isinstance(held, Slot)
            return self._confirmed(attempt, held, before, claim)
        return None

    def settle(self) -> None:
        """Give back takes whose end nobody could tell. Raises Unreachable where it is too early."""
        away: Unreachable | None = None
        for attempt, before in self._doubts.pop_all():
            try:
                self._give_back(attempt, before)
            except Unreachable as error:
                self._doubts.add(attempt, before)
                away = error
        if away is not None:
            raise away

    def _confirmed(
        self, attempt: Attempt, held: Slot, before: Slot, claim: Claim | Free | None
    ) -> Slot | None:
        """The slot, where the gate lets its taker in now that it has it."""
        self._doubts.add(attempt, before)
        record = self._objects.record(held.group, fresh=True)
        stands = claim is FREE or record.canaries.get(attempt.revision) == claim
        if stands and attempt.is_admitted(record):
            self._doubts.drop(before)
            return held
        self.settle()
        return None

    def _give_back(self, attempt: Attempt, before: Slot) -> None:
        self._objects.change_slot(
            attempt.seen,
            lambda stored: (
                transitions.given_back(stored, before) if attempt.stands(stored) else None
            ),
        )

    def _may(self, attempt: Attempt, stored: Slot, *, fresh: bool) -> Claim | Free | None:
        """Whether the gate lets the taker in, and its revision may have this slot: by what."""
        if not transitions.is_as_seen(stored, attempt.seen):
            return None
        record = self._objects.record(attempt.seen.group, fresh=fresh)
        if not attempt.is_admitted(record):
            return None
        pin = record.gate.handover.get(stored.number)
        pinned = pin is not None and pin.revision == attempt.revision
        if pinned or stored.revision in {None, attempt.revision} or self._is_proven(attempt):
            return FREE
        return self._claim(attempt)

    def _is_proven(self, attempt: Attempt) -> bool:
        """Whether a slot of the revision works now: those of which that was heard are read."""
        backend, group = self._objects.backend, attempt.seen.group
        if not backend.hears:
            return False  # the claim reads all of them anyway
        for slot in backend.scan(group, fresh=False)[1].values():
            if slot.revision == attempt.revision and is_good_canary(slot):
                entry = backend.read(key_of(slot), fresh=True)
                now = None if entry is None else entry.value
                if (
                    isinstance(now, Slot)
                    and now.revision == attempt.revision
                    and is_good_canary(now)
                ):
                    return True
        return False

    def _claim(self, attempt: Attempt) -> Claim | Free | None:
        """The claim by which this take is its revision's canary, unless it needs none."""
        seen, revision = attempt.seen, attempt.revision
        key = Key(seen.group, Kind.GATE)
        for _ in self._objects.again(f"the gate of group {seen.group}"):
            entry = self._objects.backend.read(key, fresh=True)
            record = record_of(seen.group, None if entry is None else entry.value)
            slots = self._all(attempt)
            tried = waits_for_canary(slots.values(), slots[seen.number], revision)
            if tried or not attempt.is_admitted(record):
                return None
            if any(slot.revision == revision and is_good_canary(slot) for slot in slots.values()):
                return FREE
            other = record.canaries.get(revision)
            abandoned = other is not None and not self._is_void(attempt, other, slots)
            if other is not None and abandoned and not self._has_waited(attempt, other):
                return None
            mine = Claim(slot=seen.number, token=seen.token + 1, worker=attempt.worker)
            kept = {r: t for r, t in record.canaries.items() if not _is_over(t, slots)}
            with contextlib.suppress(Moved):
                self._objects.backend.swap(
                    key, replace(record, canaries={**kept, revision: mine}), entry
                )
                return None if abandoned and self._is_tried(attempt) else mine
        return None

    def _all(self, attempt: Attempt) -> Mapping[int, Slot]:
        """All slots as they are now, the wanted one among them."""
        _, found = self._objects.backend.scan(attempt.seen.group, fresh=True)
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
        if now - self._claims_seen.setdefault(seen, now) < CLAIM_PATIENCE:
            return False
        self._claims_seen.pop(seen, None)
        return True


def _is_over(claim: Claim, slots: Mapping[int, Slot]) -> bool:
    """Whether its take is done and past; its taker may look for it until then."""
    slot = slots.get(claim.slot)
    if slot is None or slot.token < claim.token:
        return False
    looked = slot.phase is not Phase.JOINING
    return slot.token > claim.token or slot.holder != claim.worker or looked
