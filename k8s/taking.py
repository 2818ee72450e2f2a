"""Taking a slot: one Lease changes hands, two must agree.

Problem: the local store looks at gate and slots and writes the taker in one transaction; the API
server compares one object at a time. A taker may be overtaken by a gate that shuts, and two
standbys of a revision that nobody has proved may reach for two different slots of an older one,
of which they may get one (rule 22).

Choice. Who takes writes itself into the slot's Lease (compare-and-set on what it saw), then reads
the gate once more: a gate that no longer lets it in gets the slot back as it was before `take`
returns, so that nobody has acted as its holder. The take happens at that second reading.
Where a trial decides, the taker first claims it in the gate's Lease, by compare-and-set: one
claim per revision, (slot, token). It is used once that slot's token is reached, and void then; who
finds it unused waits two seconds, raises the version of the claimed slot's Lease (so that the
claimant's own compare-and-set fails, however late it comes) and replaces the claim. No line at
which a taker may die leaves more than that: an unused claim, or a slot held by the dead.

Cost: 2 requests for a take, about N + 5 for the first slot of a new revision without a manager
(it reads all N slots as they stand); a taker that died with a claim holds up its revision by two
seconds; the gate's Lease says between readings that a slot is held which is then given back.
"""

from dataclasses import dataclass, replace
from typing import Final

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.slots import Gate, Phase, Slot, on_trial, proven, transitions
from fleet.slots.doubts import Doubts
from fleet.slots.gates import Trial
from k8s import lease_objects as objects
from k8s.api import Conflict, Object
from k8s.calls import LEASE, PATIENCE, Calls
from k8s.lease_objects import GateRecord
from k8s.names import Names
from k8s.store_slots import Slots
from k8s.watching import View

CLAIM_PATIENCE: Final = 2.0
"""Seconds after which an unused claim is fenced off and replaced, on its finder's own clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    seen: Slot
    worker: str
    revision: str
    session: str | None
    names: Names

    def admitted(self, gate: Gate, going: frozenset[str]) -> bool:
        """Whether the gate lets this revision into this slot, and the worker has not to go."""
        admitted = transitions.admits(gate, self.seen.number, self.revision)
        return admitted and self.worker not in going

    def is_ours(self, stored: Slot) -> bool:
        """Whether this very take is what is stored."""
        return (stored.holder, stored.token) == (self.worker, self.seen.token + 1)

    def taken(self, stored: Slot) -> Slot:
        """The slot in the taker's hands."""
        return transitions.taken(
            stored, worker=self.worker, revision=self.revision, spark_session=self.session
        )


class Taking(Slots):
    """`take` of `fleet.slots.SlotStore`."""

    def __init__(
        self,
        calls: Calls,
        *,
        cluster: str,
        clock: Clock,
        lease: float,
        worker: str | None = None,
        view: View | None = None,
    ) -> None:
        super().__init__(calls, cluster=cluster, clock=clock, lease=lease, worker=worker, view=view)
        self._doubts = Doubts[_Wish]()
        self._claims_seen: dict[tuple[str, str, Trial], float] = {}

    def take(
        self, seen: Slot, *, worker: str, revision: str, spark_session: str | None
    ) -> Slot | None:
        """Take the slot if it is still as seen and the gate lets this revision in; else None."""
        self.settle()
        if worker in self._record(seen.group).going:
            return None
        names = self.names(seen.group)
        wish = _Wish(
            seen=seen, worker=worker, revision=revision, session=spark_session, names=names
        )
        deadline = self._clock.monotonic() + PATIENCE
        fresh = self._view is None
        was: Slot | None = None  # the slot before a write of ours whose end is not known
        while self._clock.monotonic() < deadline:
            found = self._lease_of(names, seen.number, fresh=fresh)
            if found is None:  # where a view follows it, the watch tells once it is there
                return None
            before = objects.slot_from(found, seen.group, seen.number)
            if was is not None and wish.is_ours(before):
                return self._confirmed(wish, before, was)
            if not transitions.is_as_seen(before, seen) or not self._may(wish, before):
                if fresh:
                    return None
                fresh = True
                continue
            try:
                stored = self._shelf.swap(self._with_slot(found, wish.taken(before)))
            except Conflict:
                fresh, was = True, before
                continue
            except Unreachable:
                self._doubts.add((wish.seen.group, wish.seen.number), wish, before)
                raise
            return self._confirmed(wish, objects.slot_from(stored, seen.group, seen.number), before)
        return None

    def settle(self) -> None:
        """Give back takes whose answer was lost. Raises Unreachable where it is too early."""
        away: Unreachable | None = None
        for wish, before in self._doubts.pop_all():
            try:
                self._give_back(wish, before)
            except Unreachable as error:
                self._doubts.add((wish.seen.group, wish.seen.number), wish, before)
                away = error
        if away is not None:
            raise away

    # --- the gate ---------------------------------------------------------------------------

    def _confirmed(self, wish: _Wish, held: Slot, before: Slot) -> Slot | None:
        """The slot, where the gate lets its taker in now that it has it."""
        try:
            record = self._record(wish.seen.group, fresh=True)
        except Unreachable:
            self._doubts.add((wish.seen.group, wish.seen.number), wish, before)
            raise
        if wish.admitted(self._shown_gate(record), record.going):
            return self._shown_slot(record, held)
        self._give_back(wish, before)
        return None

    def _give_back(self, wish: _Wish, before: Slot) -> None:
        def edit(stored: Slot) -> Slot | None:
            return transitions.given_back(stored, before) if wish.is_ours(stored) else None

        self._change_slot(wish.seen, edit)

    # --- the trial --------------------------------------------------------------------------

    def _may(self, wish: _Wish, stored: Slot) -> bool:
        """Whether the gate lets the taker in, and its revision may have this slot [22]."""
        record = self._record(wish.seen.group)
        gate = self._shown_gate(record)
        if not wish.admitted(gate, record.going):
            return False
        shown = self._shown_slot(record, stored)
        if wish.seen.number in gate.handover or shown.revision in {None, wish.revision}:
            return True
        return self._is_proven(wish, record) or self._claim(wish)

    def _is_proven(self, wish: _Wish, record: GateRecord) -> bool:
        """Whether a slot of the revision is active now: the last known ones are asked."""
        if self._view is None:
            return False  # the claim reads all of them anyway
        for slot in self.slots(wish.seen.group):
            if slot.revision == wish.revision and slot.holder and slot.phase is Phase.ACTIVE:
                found = self._lease_of(wish.names, slot.number, fresh=True)
                if found is not None and _is_active(
                    self._shown_slot(record, objects.slot_from(found, slot.group, slot.number)),
                    wish.revision,
                ):
                    return True
        return False

    def _claim(self, wish: _Wish) -> bool:
        """Whether this take is the revision's trial, or needs none."""
        name = wish.names.gate
        deadline = self._clock.monotonic() + PATIENCE
        while self._clock.monotonic() < deadline:
            found = self._shelf.must_get(LEASE, name, fresh=True)
            record = objects.record_from(found, wish.seen.group)
            if not wish.admitted(self._shown_gate(record), record.going):
                return False
            slots = self._fresh_slots(wish, record)
            if on_trial(slots.values(), slots[wish.seen.number], wish.revision):
                return False
            if any(_is_active(slot, wish.revision) for slot in slots.values()):
                return True
            claim = record.trials.get(wish.revision)
            if claim is not None and not self._is_over(wish, claim, slots):
                return False
            mine = Trial(slot=wish.seen.number, token=wish.seen.token + 1, worker=wish.worker)
            kept = {r: t for r, t in record.trials.items() if not _is_used(t, slots)}
            claimed = replace(record, trials={**kept, wish.revision: mine})
            try:
                self._shelf.swap(objects.with_record(found, claimed))
            except Conflict:
                continue
            return True
        return False

    def _is_over(self, wish: _Wish, claim: Trial, slots: dict[int, Slot]) -> bool:
        """Whether a claim stands in nobody's way any more; an abandoned one is fenced off."""
        if _is_used(claim, slots) or claim.worker == wish.worker:
            return True
        key = (wish.seen.group, wish.revision, claim)
        now = self._clock.monotonic()
        if now - self._claims_seen.setdefault(key, now) < CLAIM_PATIENCE:
            return False

        def fence(found: Object) -> Object | None:
            stored = objects.slot_from(found, wish.seen.group, claim.slot)
            return None if stored.token >= claim.token else objects.fenced(found)

        fenced = self._shelf.change(LEASE, wish.names.slot(claim.slot), fence) is not None
        if fenced:
            self._claims_seen.pop(key, None)
        return fenced

    def _fresh_slots(self, wish: _Wish, record: GateRecord) -> dict[int, Slot]:
        """All slots that were ever opened, and the wanted one, as the server has them now."""
        group = wish.seen.group
        if self._own is None:
            _, found = self._listed(group, fresh=True)
        else:
            numbers = record.opened | {wish.seen.number}
            leases = {n: self._lease_of(wish.names, n, fresh=True) for n in sorted(numbers)}
            found = {n: lease for n, lease in leases.items() if lease is not None}
        slots = {n: objects.slot_from(lease, group, n) for n, lease in found.items()}
        slots.setdefault(wish.seen.number, wish.seen)
        return {n: self._shown_slot(record, slot) for n, slot in slots.items()}


def _is_active(slot: Slot, revision: str) -> bool:
    return slot.revision == revision and proven(slot)


def _is_used(claim: Trial, slots: dict[int, Slot]) -> bool:
    slot = slots.get(claim.slot)
    return slot is not None and slot.token >= claim.token
