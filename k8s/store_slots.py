"""Gate and slots on Kubernetes: one Lease each, written by compare-and-set.

Problem: the local store changes gate and slots in one transaction, the API server one object at
a time. Choice: what a write of a slot compares (holder, token, counter) stands in that slot's
own Lease, and what a write of the gate compares in the gate's; only taking a slot has to look at
both (`k8s.taking`). A worker reads what its watches brought, a manager reads the server. Cost: a
manager's reading of all slots is a list of the group's Leases.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from fleet.evidence import Writes
from fleet.slots import Change, Gate, Slot, WorkerReport, transitions
from fleet.slots.gates import changed_gate
from k8s import lease_objects as objects
from k8s.api import Conflict, Object
from k8s.calls import LEASE, Missing
from k8s.lease_objects import First, GateRecord
from k8s.names import GROUP_LABEL, Names
from k8s.store_changes import Changes


class Slots(Changes):
    """The part of `fleet.slots.SlotStore` that is about gate and slots, but for `take`."""

    # --- evidence ---------------------------------------------------------------------------

    @property
    def writes(self) -> Writes:
        """Of this process, of Leases."""
        return self._calls.writes

    def beat(self, group: str) -> None:
        """A write of a Lease that stands between the slots: the same rights, the same way.

        A worker's Role names the gate; the change that a manager looks at is there.
        """
        names = self.names(group)
        name = names.change if self._own is None else names.gate
        self._shelf.change(LEASE, name, lambda found: objects.beaten(found, now=self._clock.now()))

    # --- the gate ---------------------------------------------------------------------------

    def gate(self, group: str) -> Gate:
        """The group's gate; version 0 and nothing open where none was written yet.

        Missing (an Unreachable) where a worker finds no Lease for it: nothing follows from that.
        """
        return self._shown_gate(self._record(group))

    def write_gate(self, gate: Gate, *, by: Change | None = None) -> Gate | None:
        """Store `gate` if its version is still the stored one; None where it is not.

        LostLease where an actor with a later token than `by`'s has been at the gate (`adopt`).
        """
        names = self.names(gate.group)

        def edit(record: GateRecord) -> GateRecord | None:
            if by is not None and by.token < record.token:
                raise transitions.lost(by, self.change(gate.group))
            if record.gate.version != gate.version:
                return None
            stored = record.templates.gate_as_stored(replace(gate, version=gate.version + 1))
            token = record.token if by is None else by.token
            return replace(record, gate=stored, opened=record.opened | gate.open, token=token)

        if self._own is None:
            self._make_slots(names, gate.open)
        stored = self._change_record(gate.group, edit, make=self._own is None)
        return None if stored is None else self._shown_gate(stored)

    def change_gate(
        self, group: str, change: Callable[[Gate], Gate | None], *, by: Change | None = None
    ) -> Gate | None:
        """Store what `change` makes of the gate, asked again on every newer one."""
        return changed_gate(self, group, change, by=by, sleep=self._clock.sleep)

    def _change_record(
        self,
        group: str,
        edit: Callable[[GateRecord], GateRecord | None],
        *,
        make: bool = True,
    ) -> GateRecord | None:
        """What the gate's Lease says once `edit` is stored; None where `edit` says no.

        make: create the Lease where it is missing.
        """
        names = self.names(group)

        def edited(found: Object) -> Object | None:
            changed = edit(objects.record_from(found, group))
            return None if changed is None else objects.with_record(found, changed)

        stored = self._shelf.change(
            LEASE,
            names.gate,
            edited,
            make=(lambda: objects.blank(LEASE, names.gate, names)) if make else None,
        )
        return None if stored is None else objects.record_from(stored, group)

    def adopt(self, seen: Change, *, actor: str) -> Change | None:
        """Take over a running change that is still as seen; None where it is not.

        The gate learns of the new token before anybody acts by it: from then on the former actor,
        who may only have slept, writes the gate no more. Before that its writes are seen by us.
        """
        adopted = super().adopt(seen, actor=actor)
        if adopted is None:
            return None

        def fence(record: GateRecord) -> GateRecord | None:
            return None if record.token >= adopted.token else replace(record, token=adopted.token)

        with contextlib.suppress(Missing):  # other people's groups have no gate
            self._change_record(seen.group, fence, make=False)
        return adopted

    # --- templates and the first opening ----------------------------------------------------

    def templates(self, group: str) -> Mapping[str, str]:
        """pod-template hash → revision, of what the manager rendered."""
        return dict(self._record(group).templates.known)

    def register_template(self, group: str, template_hash: str, revision: str) -> None:
        """Say that pods of this template run exactly this published revision."""

        def edit(record: GateRecord) -> GateRecord | None:
            if record.templates.known.get(template_hash) == revision:
                return None
            return objects.with_template(record, template_hash, revision)

        self._change_record(group, edit)

    def retire(self, group: str, workers: Collection[str], *, there: Collection[str]) -> None:
        """Let these workers take no slot any more; those that are not `there` are forgotten.

        A drained pod of the revision that is wanted would else be the first to take the next slot,
        and be drained again when its removal comes.
        """

        def edit(record: GateRecord) -> GateRecord | None:
            going = frozenset(there) & (record.going | frozenset(workers))
            return None if going == record.going else replace(record, going=going)

        self._change_record(group, edit)

    def first(self, group: str) -> First | None:
        """What shall open by itself; None where the gate was written already, or nothing said."""
        record = self._record(group)
        return None if record.gate.version else record.first

    # --- slots ------------------------------------------------------------------------------

    def slots(self, group: str) -> tuple[Slot, ...]:
        """All slots that were ever opened, by number."""
        if self._own is None:
            record, found = self._listed(group)
        else:
            record, found = self._record(group), {}
        names = self.names(group)
        slots = []
        for number in sorted(record.opened | set(found)):
            lease = found.get(number) if self._own is None else self._lease_of(names, number)
            slot = Slot(group=group, number=number)
            if lease is not None:
                slot = objects.slot_from(lease, group, number)
            if number in record.opened or slot.token:
                slots.append(self._shown_slot(record, slot))
        return tuple(slots)

    def renew(self, slot: Slot) -> Slot | None:
        """Write the holder's fields with counter + 1; None: somebody else has the slot."""
        if slot.holder is None:
            return None
        return self._change_slot(slot, lambda stored: transitions.renewed(stored, slot))

    def release(self, slot: Slot, *, clean: bool) -> bool:
        """Give the slot up; False where it was not the caller's any more."""
        edited = self._change_slot(
            slot, lambda stored: transitions.released(stored, slot, clean=clean)
        )
        return edited is not None

    def clear(self, slot: Slot) -> bool:
        """After a leave: forget member, revision and a dead holder, if the token is as seen."""
        try:
            edited = self._change_slot(slot, lambda stored: transitions.cleared(stored, slot))
        except Missing:
            if self._own is None:
                return False
            raise
        return edited is not None

    def reports(self, group: str) -> tuple[WorkerReport, ...]:
        """All stored reports of the group's workers, by name."""
        reports = super().reports(group)
        if self._own is not None or not reports:
            return reports
        templates = self._record(group).templates
        return tuple(templates.report_for_manager(report) for report in reports)

    # --- parts ------------------------------------------------------------------------------

    def _record(self, group: str, *, fresh: bool = False) -> GateRecord:
        names = self.names(group)
        if self._own is not None:
            found: Object | None = self._shelf.must_get(LEASE, names.gate, fresh=fresh)
        else:
            followed = None if fresh else self._follow_up(group, LEASE)
            found = (
                self._shelf.get(LEASE, names.gate) if followed is None else followed.get(names.gate)
            )
        if found is None:
            return GateRecord(gate=Gate(group=group))
        return objects.record_from(found, group)

    def _shown_gate(self, record: GateRecord) -> Gate:
        if self._own is None:
            return record.gate
        return record.templates.gate_for_worker(record.gate, own=self._own)

    def _shown_slot(self, record: GateRecord, slot: Slot) -> Slot:
        return slot if self._own is not None else record.templates.slot_for_manager(slot)

    def _lease_of(self, names: Names, number: int, *, fresh: bool = False) -> Object | None:
        name = names.slot(number)
        if self._view is not None and self._view.follows(names.gate):
            self._view.follow(name)  # opened beyond what replicas.max was when we started
        return self._shelf.get(LEASE, name, fresh=fresh)

    def _listed(self, group: str, *, fresh: bool = False) -> tuple[GateRecord, dict[int, Object]]:
        """The gate and all slots of a group as they stood at one moment, by one list."""
        names = self.names(group)
        by_name = None if fresh else self._follow_up(group, LEASE)
        if by_name is None:
            items, _ = self._calls.find(LEASE, labelSelector=f"{GROUP_LABEL}={names.slug}")
            by_name = {item["metadata"]["name"]: item for item in items}
        prefix = f"{names.slug}-slot-"
        numbers = {
            int(name.removeprefix(prefix)): found
            for name, found in by_name.items()
            if name.startswith(prefix) and name.removeprefix(prefix).isdigit()
        }
        gate = by_name.get(names.gate)
        if gate is None:
            return GateRecord(gate=Gate(group=group)), numbers
        return objects.record_from(gate, group), numbers

    def _change_slot(self, slot: Slot, edit: Callable[[Slot], Slot | None]) -> Slot | None:
        def edit_lease(found: Object) -> Object | None:
            changed = edit(objects.slot_from(found, slot.group, slot.number))
            return None if changed is None else self._with_slot(found, changed)

        name = self.names(slot.group).slot(slot.number)
        stored = self._shelf.change(LEASE, name, edit_lease)
        if stored is None:
            return None
        changed = objects.slot_from(stored, slot.group, slot.number)
        return changed if self._own is not None else self._shown(changed)

    def _shown(self, slot: Slot) -> Slot:
        return self._shown_slot(self._record(slot.group), slot)

    def _with_slot(self, found: Object, slot: Slot) -> Object:
        return objects.with_slot(found, slot, now=self._clock.now(), lease=self._lease)

    def _make_slots(self, names: Names, numbers: frozenset[int]) -> None:
        """Create the Leases of slots that are missing: before they open."""
        if numbers - self._made.get(names.group, frozenset()):
            there = set(self._listed(names.group)[1])
            for number in sorted(numbers - there):
                with contextlib.suppress(Conflict):  # somebody made it in this moment
                    self._calls.create(objects.blank(LEASE, names.slot(number), names))
            self._made[names.group] = numbers | frozenset(there)
