"""Slots, gate and change of a cluster's fleets as Leases and ConfigMaps: the back end of the store.

Problem: pods on many machines have to agree on who holds which slot, and there is no file that
all of them see. Choice: the API server's compare-and-set on one Lease for each slot, for a group's
gate and for its change, in two views. A worker reads what its watches brought
(`fleet.kubernetes.client.lease_informer`), so that looking costs nothing and a server that is away
stops nobody; it can be asked since when it knows, for nothing may be concluded from silence [13]. A
manager asks the server each time, or, while it changes a group, one watch of all its Leases
(`fleet.kubernetes.client.group_informer`). Workers speak raw revisions, managers published ones
(`fleet.kubernetes.leases.pod_revisions`): what is read is turned into the one, what is written into
the other, here. Cost: a manager's reading of one slot reads the gate's Lease too.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import is_

from fleet.clock import Clock
from fleet.kubernetes.client.api import Object
from fleet.kubernetes.client.calls import CONFIG_MAP, LEASE, Calls
from fleet.kubernetes.client.group_informer import GroupInformer
from fleet.kubernetes.client.lease_informer import LeaseInformer
from fleet.kubernetes.client.object_names import GROUP_LABEL, ObjectNames
from fleet.kubernetes.leases import lease_objects as objects
from fleet.kubernetes.leases.config_maps import ConfigMaps
from fleet.kubernetes.leases.lease_objects import GateLease
from fleet.kubernetes.leases.retry_on_conflict import RetryOnConflict, missing
from fleet.slots import Change, ChangeState, Slot
from fleet.slots.backend import Entry, Key, Kind, Remark, Remarks, Space, Value, is_next
from fleet.slots.decoded import LastDecoded
from fleet.slots.evidence import Writes
from fleet.slots.gates import GateRecord


class LeaseBackend:
    """`fleet.slots.backend.Backend` in one namespace; thread-safe.

    worker: the raw revision of the worker that this is for; None: a manager's. lease: seconds,
    for those who read the Leases.
    """

    def __init__(
        self,
        calls: Calls,
        *,
        cluster: str,
        clock: Clock,
        lease: float,
        worker: str | None = None,
        view: LeaseInformer | None = None,
    ) -> None:
        self.cluster = cluster
        self.calls = calls
        self.view = view
        self.shelf = RetryOnConflict(calls, clock=clock, view=view)
        self.maps = ConfigMaps(self.shelf, cluster=cluster, clock=clock, worker=worker is not None)
        self._clock = clock
        self._lease = lease
        self._own = worker
        self._names: dict[str, ObjectNames] = {}
        # Of a worker: its watches replace an object where it was written, and never change one.
        self._gates: LastDecoded[Object, GateLease] = LastDecoded(is_)
        self._slots: LastDecoded[Object, Slot] = LastDecoded(is_)
        self._followed: dict[tuple[str, str], GroupInformer] = {}
        """By group and kind; a manager's, while it changes the group."""

    @property
    def writes(self) -> Writes:
        """Of this process, of Leases."""
        return self.calls.writes

    @property
    def hears(self) -> bool:
        """A worker's watches tell it; a manager's only while it changes a group."""
        return self.view is not None

    def beat(self, group: str) -> None:
        """A write of a Lease that stands between the slots: the same rights, the same way.

        A worker's Role names the gate; the change that a manager looks at is there.
        """
        names = self.names(group)
        name = names.change if self._own is None else names.gate
        self.shelf.change(LEASE, name, lambda found: objects.beaten(found, now=self._clock.now()))

    def version(self) -> int:
        """Of what the watches brought; a manager's view cannot tell."""
        return int(self._clock.monotonic() * 1e6) if self.view is None else self.view.version()

    def known_since(self) -> float | None:
        """A manager reads the server itself: since when that has answered."""
        return self.calls.answering_since() if self.view is None else self.view.known_since()

    def close(self) -> None:
        """End the watches."""
        if self.view is not None:
            self.view.close()
        for group, _ in list(self._followed):
            self.unfollow(group)

    def names(self, group: str) -> ObjectNames:
        """How the group's objects are called."""
        if group not in self._names:
            self._names[group] = ObjectNames(self.cluster, group)
        return self._names[group]

    # --- reading ----------------------------------------------------------------------------

    def read(self, key: Key, *, fresh: bool) -> Entry | None:
        """The object. Missing where a worker finds none at the server: that proves nothing."""
        if key.kind is Kind.GATE:
            found = self._gate_object(key.group, fresh=fresh)
            if found is None:
                return None
            return Entry(self._shown_gate(objects.gate_from(found, key.group)), found)
        if key.kind is Kind.SLOT:
            found = self._lease_of(key.group, key.number, fresh=fresh)
            if found is None and fresh and self._own is not None:
                raise missing(LEASE, self.names(key.group).slot(key.number))
            if found is None:
                return None
            slot = objects.slot_from(found, key.group, key.number)
            return Entry(self._shown(slot, self._templates_for(slot)), found)
        found = self._lease_named(key.group, self.names(key.group).change, fresh=fresh)
        change = None if found is None else objects.change_from(found)
        return None if found is None else Entry(change, found)

    def scan(self, group: str, *, fresh: bool) -> tuple[GateRecord | None, Mapping[int, Slot]]:
        """The gate and all slots: a manager's by one list, a worker's as its watches tell."""
        if self._own is None:
            gate, found = self._listed(group, fresh=fresh)
        else:
            gate = self.gate_lease(group, fresh=fresh)
            numbers = sorted(gate.record.opened)
            leases = {n: self._lease_of(group, n, fresh=fresh) for n in numbers}
            found = {n: lease for n, lease in leases.items() if lease is not None}
        slots = {n: self._slot(each, group, n) for n, each in found.items()}
        return self._shown_gate(gate), {n: self._shown(s, gate) for n, s in slots.items()}

    def gate_lease(self, group: str, *, fresh: bool = False) -> GateLease:
        """All that the gate's Lease says, as stored."""
        found = self._gate_object(group, fresh=fresh)
        if found is None:
            return GateLease.empty(group)
        if self._own is None:
            return objects.gate_from(found, group)
        return self._gates.of(group, found, lambda stored: objects.gate_from(stored, group))

    def _slot(self, found: Object, group: str, number: int) -> Slot:
        if self._own is None:
            return objects.slot_from(found, group, number)
        decode = partial(objects.slot_from, group=group, number=number)
        return self._slots.of((group, number), found, decode)

    def _gate_object(self, group: str, *, fresh: bool) -> Object | None:
        name = self.names(group).gate
        if self._own is not None:
            return self.shelf.must_get(LEASE, name, fresh=fresh)
        return self._lease_named(group, name, fresh=fresh)

    def _lease_named(self, group: str, name: str, *, fresh: bool) -> Object | None:
        """A Lease: as a watch of the group tells, where one does; else the server."""
        followed = None if fresh else self._follow_up(group, LEASE)
        return self.shelf.get(LEASE, name) if followed is None else followed.get(name)

    def _lease_of(self, group: str, number: int, *, fresh: bool) -> Object | None:
        names = self.names(group)
        name = names.slot(number)
        if self.view is not None and self.view.follows(names.gate):
            self.view.get(names.gate)  # with the first of which the slots that it names are needed
            self.view.follow(name)  # opened since we started
        return self.shelf.get(LEASE, name, fresh=fresh)

    def _listed(self, group: str, *, fresh: bool) -> tuple[GateLease, dict[int, Object]]:
        names = self.names(group)
        by_name = None if fresh else self._follow_up(group, LEASE)
        if by_name is None:
            items, _ = self.calls.find(LEASE, labelSelector=f"{GROUP_LABEL}={names.slug}")
            by_name = {item["metadata"]["name"]: item for item in items}
        prefix = f"{names.slug}-slot-"
        numbers = {
            int(name.removeprefix(prefix)): found
            for name, found in by_name.items()
            if name.startswith(prefix) and name.removeprefix(prefix).isdigit()
        }
        gate = by_name.get(names.gate)
        return (GateLease.empty(group) if gate is None else objects.gate_from(gate, group)), numbers

    # --- raw and published revisions ----------------------------------------------------------

    def _templates_for(self, slot: Slot) -> GateLease:
        if self._own is not None or slot.revision is None:
            return GateLease.empty(slot.group)
        return self.gate_lease(slot.group)

    def _shown(self, slot: Slot, gate: GateLease) -> Slot:
        return slot if self._own is not None else gate.templates.slot_for_manager(slot)

    def _shown_gate(self, lease: GateLease) -> GateRecord:
        if self._own is None:
            return lease.record
        gate = lease.templates.gate_for_worker(lease.record.gate, own=self._own)
        return replace(lease.record, gate=gate)

    # --- writing ----------------------------------------------------------------------------

    def swap(self, key: Key, value: Value, seen: Entry | None) -> Value:
        """Store `value` if nobody wrote since; the objects of a group are a manager's to make."""
        found = None if seen is None else seen.version
        assert found is None or isinstance(found, dict)
        if isinstance(value, GateRecord):
            return self._swap_gate(key.group, value, found)
        if isinstance(value, Slot):
            return self._swap_slot(value, seen, found)
        return self._swap_change(value, seen, found)

    def _swap_gate(self, group: str, record: GateRecord, found: Object | None) -> GateRecord:
        if found is None and not record.gate.version:
            return record  # of other people's groups there is no gate that anybody writes
        names = self.names(group)
        base = found or objects.blank(LEASE, names.gate, names)
        lease = objects.gate_from(base, group)
        gate = lease.templates.gate_as_stored(record.gate)
        wanted = objects.with_gate(base, replace(lease, record=replace(record, gate=gate)))
        return self._shown_gate(objects.gate_from(self._store(wanted, found), group))

    def _swap_slot(self, slot: Slot, seen: Entry | None, found: Object | None) -> Slot:
        names = self.names(slot.group)
        if found is None:
            wanted = objects.blank(LEASE, names.slot(slot.number), names)
        else:
            wanted = self._with_slot(found, slot, seen)
        stored = objects.slot_from(self._store(wanted, found), slot.group, slot.number)
        return self._shown(stored, self._templates_for(stored))

    def _swap_change(self, change: Change, seen: Entry | None, found: Object | None) -> Change:
        names = self.names(change.group)
        last = None if seen is None else seen.value
        if isinstance(last, Change) and is_next(last, change):
            self.maps.archive(names, last)
        base = found or objects.blank(LEASE, names.change, names)
        now = self._clock.now()
        self._store(objects.with_change(base, change, now=now, lease=self._lease), found)
        self._watch_while_running(change)
        return change

    def _with_slot(self, base: Object, slot: Slot, seen: Entry | None) -> Object:
        before = objects.slot_from(base, slot.group, slot.number)
        assert seen is not None
        assert isinstance(seen.value, Slot)
        if slot.revision == seen.value.revision:  # as it is stored, raw
            slot = replace(slot, revision=before.revision)
        return objects.with_slot(base, slot, now=self._clock.now(), lease=self._lease)

    def _store(self, wanted: Object, found: Object | None) -> Object:
        """As stored. Raises Conflict, which is a Moved, where somebody else wrote first."""
        if found is not None:
            return self.shelf.swap(wanted)
        if self._own is not None:
            raise missing(LEASE, wanted["metadata"]["name"])
        return self.shelf.note(self.calls.create(wanted))

    def ended(self, group: str, *, limit: int) -> tuple[Change, ...]:
        """Latest first."""
        return self.maps.ended(self.names(group), limit=limit)

    # --- maps -------------------------------------------------------------------------------

    def entries(self, space: Space, group: str) -> Mapping[str, Remark]:
        """A map of small values; reports for a manager with published revisions."""
        names = self.names(group)
        if space is not Space.REPORTS:
            return self.maps.entries(space, names)
        followed = self._follow_up(group, CONFIG_MAP)
        reports = self.maps.reports(names, followed)
        if self._own is not None or not reports:
            return reports
        templates = self.gate_lease(group).templates
        return {worker: templates.report_for_manager(told) for worker, told in reports.items()}

    def merge(self, space: Space, group: str | None, values: Remarks | None) -> int:
        """Replace these keys, None removes."""
        return self.maps.merge(space, None if group is None else self.names(group), values)

    # --- a group that is being changed ------------------------------------------------------

    def _watch_while_running(self, change: Change) -> None:
        if change.state is ChangeState.RUNNING:
            self.follow(change.group)
        else:
            self.unfollow(change.group)

    def follow(self, group: str) -> None:
        """Have watches tell how a group stands from now on, instead of asking (a manager)."""
        names = self.names(group)
        selectors = {
            LEASE: {"labelSelector": f"{GROUP_LABEL}={names.slug}"},
            CONFIG_MAP: {"fieldSelector": f"metadata.name={names.crew}"},
        }
        for kind, selector in selectors.items():
            if self._own is None and (group, kind) not in self._followed:
                self._followed[group, kind] = GroupInformer(
                    self.calls, kind, selector, silence=self._lease / 5, clock=self._clock
                )
        if self._own is None:
            self.calls.on_answer = self._heard

    def unfollow(self, group: str) -> None:
        """End that."""
        for kind in (LEASE, CONFIG_MAP):
            following = self._followed.pop((group, kind), None)
            if following is not None:
                following.close()

    def _heard(self) -> None:
        for following in list(self._followed.values()):
            following.heard()

    def _follow_up(self, group: str, kind: str) -> dict[str, Object] | None:
        """What is followed of a group, as new as what was written here; None: ask the server."""
        following = self._followed.get((group, kind))
        if following is None:
            return None
        names = self.names(group)
        ours = f"{names.slug}-" if kind == LEASE else names.crew
        return following.objects(at_least=self.shelf.wrote(kind, ours))
