"""Stores slots, slot targets and changes of a cluster's fleets as Leases and ConfigMaps.

Problem: pods on many machines have to agree on who owns which slot, without a file that all see.
Choice: the API server compares and sets one Lease for each slot, for a group's slot targets and for
its change. A worker reads what its watch brought (`fleet.kubernetes.client.informer`). So a read
costs no request, and a server that is away stops no worker. `known_since` says how old the
knowledge is, since silence proves nothing [13]. The watch has all Leases of the group or, while the
worker owns a slot at rest, those that concern it. A manager asks the server each time or, while it
changes a group, a watch. Workers store raw revisions and managers published ones; this module
translates (`PublishedTemplates`). Cost: to read one slot, a manager reads the slot targets too.
"""

import contextlib
import json
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import is_
from typing import Final

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.kubernetes.client.api import (
    CONFIG_MAP,
    LEASE,
    LOOK,
    Api,
    Conflict,
    Missing,
    Object,
    Silent,
    TooLarge,
    new_object,
)
from fleet.kubernetes.client.informer import Informer
from fleet.kubernetes.client.object_names import (
    CLUSTER_LABEL,
    GROUP_ANNOTATION,
    MANAGED_LABEL,
    MANAGER,
    OWNERS,
    WATCHED_LABEL,
    ObjectNames,
    pauses,
)
from fleet.kubernetes.leases import lease_objects as objects
from fleet.kubernetes.leases.answers import answer_between
from fleet.kubernetes.leases.lease_objects import SlotTargetsLease, same_state
from fleet.slots import Change, ChangeState, Pause, Phase, Slot, StoppedPartition, WorkerReport
from fleet.slots.backend import (
    Entry,
    Key,
    Kind,
    MapValue,
    MapValues,
    SlotTargetsRecord,
    Space,
    Value,
    is_new_change,
    partition_key,
)
from fleet.slots.codec import as_json, from_json
from fleet.slots.sqlite import DecodeCache
from fleet.slots.store import edit_object, write_attempts

Edit = Callable[[Object], Object | None]
"""Makes the Lease as it should be of the Lease as it is, which stays as it is; None: leave it."""
Both = tuple[Object | None, Object | None]
"""The Lease of the slot targets, and that of what workers answer to them."""


def missing(kind: str, name: str) -> Missing:
    """Returns the error for a missing object, which proves nothing else."""
    return Missing(
        f"{kind} {name} does not exist; the operator of its ConsumerFleet creates it, or "
        "`fleet apply`"
    )


# Where the workers of a group report: one Lease for each of them.
#
# Problem: a worker may create nothing, and a Role names objects, but pods have names of chance.
# Choice: a group has more numbered Leases than workers. A worker takes a free one, or one whose
# worker has been silent for minutes, by compare-and-set, and is its holder until it is silent
# itself. A report is the renewal of that Lease, so standbys need no other. Cost: a worker beyond
# that number cannot report, and no manager counts it.


SILENT: Final = 180.0
"""Seconds without a renewal after which a report's Lease may go to another worker."""


@dataclass(slots=True, kw_only=True)
class Reports:
    """Reads and writes the reports of groups' workers; thread-safe."""

    store: Callable[[Object], Object]
    """Writes a Lease."""
    leases: Callable[[str, bool], Mapping[str, Object]]
    """Returns all Leases of a group, fresh or as a watch has them."""
    clock: Clock
    lease: float
    is_worker: bool
    """Whether it creates no Lease."""
    _own: dict[str, Object] = field(default_factory=dict)
    """By worker: its Lease, as last written here."""
    _decoded: DecodeCache[Object, WorkerReport | None] = field(
        default_factory=lambda: DecodeCache(is_)
    )

    def read(self, names: ObjectNames) -> dict[str, WorkerReport]:
        """Returns the reports by worker."""
        found = self._found(names, fresh=False)
        told = (self._decoded.of(name, each, objects.report_from) for name, each in found.items())
        return {report.worker: report for report in told if report is not None}

    def write(self, names: ObjectNames, report: WorkerReport) -> None:
        """Replaces a worker's report."""
        own, fresh = self._own.pop(report.worker, None), False
        for _ in write_attempts(f"the report of {report.worker}", clock=self.clock):
            found = own or self._find(names, report.worker, fresh=fresh)
            now = self.clock.now()
            wanted = objects.with_report(found, report, now=now, lease=self.lease)
            with contextlib.suppress(Conflict, Missing):
                self._own[report.worker] = self.store(wanted)
                return
            own, fresh = None, True

    def keep(self, names: ObjectNames, living: Callable[[], Collection[str]]) -> int:
        """Frees the Leases of workers without a pod; returns how many.

        living: called once the reports are read, so that no worker that reports is younger.
        """
        found = self._found(names, fresh=True).values()
        kept = {None, *living()}
        return sum(self._free(each) for each in found if objects.holder_of(each) not in kept)

    def forget(self, names: ObjectNames, worker: str) -> int:
        """Frees the Lease of a worker that was removed."""
        found = self._found(names, fresh=True).values()
        return sum(self._free(each) for each in found if objects.holder_of(each) == worker)

    def _free(self, found: Object) -> bool:
        with contextlib.suppress(Conflict):  # it reports, or another worker does there
            free = objects.with_report(found, None, now=self.clock.now(), lease=self.lease)
            self.store(free)
            return True
        return False

    def _find(self, names: ObjectNames, worker: str, *, fresh: bool) -> Object:
        """Returns the Lease for a worker's reports: its own, a free one, or the most silent."""
        found = self._found(names, fresh=fresh)
        by_holder = {objects.holder_of(each): each for each in found.values()}
        if worker in by_holder:
            return by_holder[worker]
        free = [each for each in found.values() if objects.holder_of(each) is None]
        if free:  # workers that start together begin at different ones
            return free[zlib.crc32(worker.encode()) % len(free)]
        if not self.is_worker:
            return objects.blank(LEASE, names.report(len(found)), names)
        renewed = {name: objects.renewed_at(each) for name, each in found.items()}
        # A wrong clock may take a living worker's Lease: that worker then takes another.
        oldest = min(renewed, key=lambda name: renewed[name], default=None)
        if oldest is None or self.clock.now() - renewed[oldest] < SILENT:
            raise Missing(
                f"none of the {len(found)} Leases {names.report(0)} and following is free for the "
                f"report of {worker}; run `fleet apply`, which creates enough for replicas.max"
            )
        return found[oldest]

    def _found(self, names: ObjectNames, *, fresh: bool) -> dict[str, Object]:
        """Returns the Leases for reports by name."""
        found, prefix = self.leases(names.group, fresh), f"{names.slug}-report-"
        return {name: each for name, each in sorted(found.items()) if name.startswith(prefix)}


# What stands beside the slots on Kubernetes: pauses, memories, stopped partitions, and the changes
# that ended.
#
# ConfigMaps have one key per partition or memory, each changed by a merge patch that names its key
# alone, so that no writer meets another. The last writer of a key wins, as in the local store. The
# last twenty changes are kept, not two hundred as locally.


KEPT_CHANGES: Final = 20
"""Changes kept per group, the running or last one included."""
_NOTE: Final = "note."


@dataclass(frozen=True, slots=True)
class ConfigMaps:
    """Reads and writes the ConfigMaps of groups."""

    api: Api
    cluster: str
    is_worker: bool
    """Whether it creates none."""

    def entries(self, space: Space, names: ObjectNames) -> Mapping[str, MapValue]:
        """Returns all entries of a space except reports."""
        found = self._read(space, names)
        if space is Space.PAUSES:
            return {each.group or "": each for each in objects.values_from(found, Pause)}
        if space is Space.STOPPED_PARTITIONS:
            marks = objects.values_from(found, StoppedPartition)
            return {partition_key(mark.tp): mark for mark in marks}
        with objects.reading(found):
            return {
                key.removeprefix(_NOTE): dict(json.loads(value))
                for key, value in found["data"].items()
                if key.startswith(_NOTE)
            }

    def merge(self, space: Space, names: ObjectNames, values: MapValues | None) -> int:
        """Replaces these keys, None removes one; returns how many were removed.

        values None: removes all stopped partitions.
        """
        data = {_key(space, key): _text(told) for key, told in (values or {}).items()}
        lifted = [key for key, value in data.items() if value is None]
        if lifted or values is None:
            stored = self._read(space, names)["data"]
            lifted = [key for key in stored if values is None or key in lifted]
            data = {k: v for k, v in data.items() if v is not None} | dict.fromkeys(lifted)
        try:
            if data:
                self._merge(space, names, data)
        except TooLarge as error:
            if space is not Space.STOPPED_PARTITIONS:
                raise
            raise Unreachable(
                f"ConfigMap {names.stopped_partitions} is full ({error}); roll the group to clear "
                "its stopped partitions"
            ) from error
        return len(lifted)

    def archive(self, names: ObjectNames, ended: Change) -> None:
        """Stores a change under a key that grows with its token, so that it is stored once."""
        stored = objects.archived(self._read(Space.MANAGER_STATE, names)["data"])
        key = f"change.{ended.token:010d}"
        kept = sorted({key, *(k for k, _ in stored)}, reverse=True)
        data = {**dict.fromkeys(kept[KEPT_CHANGES - 1 :]), key: objects.packed(as_json(ended))}
        self._merge(Space.MANAGER_STATE, names, data)

    def ended_changes(self, names: ObjectNames, *, limit: int) -> tuple[Change, ...]:
        """Returns ended changes, latest first."""
        found = self._read(Space.MANAGER_STATE, names)
        with objects.reading(found):
            stored = objects.archived(found["data"])[:limit]
            return tuple(from_json(Change, objects.unpacked(value)) for _, value in stored)

    def _read(self, space: Space, names: ObjectNames) -> Object:
        """Returns a space's ConfigMap with its data; an empty one if none exists."""
        empty = self._empty(space, names)
        found = self.api.get(CONFIG_MAP, empty["metadata"]["name"]) or empty
        return {**found, "data": found.get("data") or {}}

    def _merge(self, space: Space, names: ObjectNames, data: Mapping[str, str | None]) -> None:
        """Sets these keys, None removes one; a manager creates a missing ConfigMap."""
        made = self._empty(space, names)
        name = made["metadata"]["name"]
        schema = {objects.SCHEMA_ANNOTATION: str(objects.SCHEMA)}
        patch: Object = {"metadata": {"annotations": schema}, "data": dict(data)}
        if self.api.merge(CONFIG_MAP, name, patch) is not None:
            return
        if self.is_worker and space is not Space.PAUSES:
            raise missing(CONFIG_MAP, name)
        made["data"] = {k: v for k, v in data.items() if v is not None}
        if not self.api.create(made):  # it was made in this moment
            self.api.merge(CONFIG_MAP, name, patch)

    def _empty(self, space: Space, names: ObjectNames) -> Object:
        if space is Space.STOPPED_PARTITIONS:
            return objects.blank(CONFIG_MAP, names.stopped_partitions, names)
        if space is Space.MANAGER_STATE:
            return objects.blank(CONFIG_MAP, names.manager_state, names)
        metadata = {
            "name": pauses(self.cluster),
            "labels": {MANAGED_LABEL: MANAGER},
            "annotations": {CLUSTER_LABEL: self.cluster},
        }
        return new_object(CONFIG_MAP, metadata)


def _key(space: Space, key: str) -> str:
    """Returns the key of an entry in its ConfigMap."""
    if space is Space.PAUSES:
        return objects.key_of("g.", key) if key else "all"
    if space is Space.STOPPED_PARTITIONS:
        return objects.key_of("p.", key.replace(" ", "."))
    return objects.key_of(_NOTE, key)


def _text(told: MapValue | None) -> str | None:
    if told is None:
        return None
    if isinstance(told, StoppedPartition):
        return objects.mark_text(told)
    return objects.text(as_json(told) if isinstance(told, Pause) else told)


class LeaseBackend:
    """`fleet.slots.backend.Backend` in one namespace; thread-safe.

    worker: the raw revision of the worker that this is for; None: a manager's. lease: seconds,
    for those who read the Leases.
    """

    def __init__(
        self, api: Api, *, cluster: str, clock: Clock, lease: float, worker: str | None = None
    ) -> None:
        self.cluster = cluster
        self.api = api
        self.writes = api.writes
        self.view: Informer | None = None
        """A worker's watch of its group."""
        self.maps = ConfigMaps(api, cluster, is_worker=worker is not None)
        self.reports = Reports(
            store=self.store,
            # A narrowed view has no reports.
            leases=lambda group, fresh: self._leases(
                group, fresh=fresh or not (self.view is None or self.view.is_whole)
            ),
            clock=clock,
            lease=lease,
            is_worker=worker is not None,
        )
        self._clock = clock
        self._lease = lease
        self._own = worker
        self._names: dict[str, ObjectNames] = {}
        # Of a worker: its watches replace an object where it was written, and never change one.
        self._targets: DecodeCache[Both, SlotTargetsLease] = DecodeCache(
            lambda one, two: all(map(is_, one, two))
        )
        self._slots: DecodeCache[Object, Slot] = DecodeCache(is_)
        self._followed: dict[str, Informer] = {}
        """By group: a worker's own, and those that a manager changes."""

    @property
    def reads_cache(self) -> bool:
        """Tells whether watches report changes; a manager's do only during a change."""
        return self.view is not None

    def beat(self, group: str) -> None:
        """Writes a Lease between the slots, to test rights and connection.

        A worker's Role names the answers; the change that a manager looks at is there.
        """
        names = self.names(group)
        name = names.change if self._own is None else names.answers
        now = objects.stamp(self._clock.now())
        self.edit_lease(group, name, lambda found: objects.annotate(found, {objects.BEAT: now}))

    def version(self) -> int:
        """Returns the version of the watched view; a manager has none."""
        return int(self._clock.monotonic() * 1e6) if self.view is None else self.view.version()

    def known_since(self) -> float | None:
        """Returns since when the view is current; for a manager, since when the server answers."""
        return self.api.answering_since() if self.view is None else self.view.known_since()

    def close(self) -> None:
        """Ends the watches."""
        for group in list(self._followed):
            self.unfollow(group)

    def names(self, group: str) -> ObjectNames:
        """Returns the names of the group's objects."""
        if group not in self._names:
            self._names[group] = ObjectNames(self.cluster, group)
        return self._names[group]

    # --- reading ----------------------------------------------------------------------------

    def read(self, key: Key, *, fresh: bool) -> Entry | None:
        """Reads an object. Raises Missing for a worker if there is none, which proves nothing."""
        names = self.names(key.group)
        if key.kind is Kind.TARGETS:
            both = self._both(self._leases(key.group, fresh=fresh), key.group)
            targets = self._decoded_targets(both, key.group)
            return None if both == (None, None) else Entry(self._shown_targets(targets), both)
        if key.kind is Kind.SLOT:
            found = self._lease_named(key.group, names.slot(key.number), fresh=fresh)
            if found is None and fresh and self._own is not None:
                raise missing(LEASE, names.slot(key.number))
            if found is None:
                return None
            slot = objects.slot_from(found, key.group, key.number)
            return Entry(self._shown(slot), found)
        found = self._lease_named(key.group, names.change, fresh=fresh)
        return None if found is None else Entry(objects.change_from(found), found)

    def scan(
        self, group: str, *, fresh: bool
    ) -> tuple[SlotTargetsRecord | None, Mapping[int, Slot]]:
        """Returns the slot targets and all slots, by one list if no watch has them."""
        names = self.names(group)
        by_name = self._leases(group, fresh=fresh)
        targets = self._decoded_targets(self._both(by_name, group), group)
        prefix = f"{names.slug}-slot-"
        slots = {}
        for name, found in by_name.items():
            number = name.removeprefix(prefix)
            if name.startswith(prefix) and number.isdigit():
                slots[int(number)] = self._slot(found, group, int(number))
        if self.view is not None:
            for n in targets.record.opened - slots.keys():
                slots[n] = self._hidden(group, n)
        return self._shown_targets(targets), {n: self._shown(s, targets) for n, s in slots.items()}

    def targets_lease(self, group: str) -> SlotTargetsLease:
        """Reads the slot targets, their pins as stored."""
        both = self._both(self._leases(group, fresh=False), group)
        return self._decoded_targets(both, group)

    def _both(self, by_name: Mapping[str, Object], group: str) -> Both:
        names = self.names(group)
        return by_name.get(names.targets), by_name.get(names.answers)

    def _decoded_targets(self, both: Both, group: str) -> SlotTargetsLease:
        """Returns the slot targets with what workers answered to them."""

        def decode(stored: Both) -> SlotTargetsLease:
            empty = SlotTargetsLease.empty(group)
            lease = empty if stored[0] is None else objects.targets_from(stored[0], group)
            return objects.with_answers_of(lease, stored[1])

        if self._own is None:
            return decode(both)
        if both[0] is None:
            raise missing(LEASE, self.names(group).targets)
        return self._targets.of(group, both, decode)

    def _slot(self, found: Object, group: str, number: int) -> Slot:
        if self._own is None:
            return objects.slot_from(found, group, number)
        decode = partial(objects.slot_from, group=group, number=number)
        return self._slots.of((group, number), found, decode)

    def _hidden(self, group: str, number: int) -> Slot:
        """Returns a slot that the watch does not have: somebody owns it, and nothing follows."""
        assert self.view is not None
        found = self.view.hidden(self.names(group).slot(number))
        unseen = Slot(group=group, number=number)
        slot = unseen if found is None else self._slot(found, group, number)
        return replace(slot, owner=slot.owner or "another worker", phase=Phase.ACTIVE)

    def attend(self, group: str, slot: int | None) -> bool:
        """Narrows the watch to what a slot's owner needs, if labels allow it; None: watches all."""
        if self.view is None:
            return False
        names = self.names(group)
        owners = (OWNERS, f"slot-{slot}")
        shared = filter(None, map(self.view.get, (names.targets, names.answers)))
        labels = [each["metadata"].get("labels") or {} for each in shared]
        watched = [each.get(WATCHED_LABEL) for each in labels] == [OWNERS, OWNERS]
        narrow = slot is not None and watched
        # An owner hears of nothing but its own renewals at rest: one of them may be late.
        silence = self._lease if narrow else self._lease / 2
        self.view.narrow(WATCHED_LABEL, owners if narrow else (), silence=silence)
        return narrow

    def _lease_named(self, group: str, name: str, *, fresh: bool) -> Object | None:
        """Returns a Lease from a watch of the group if one has it, else from the server."""
        known = None if fresh else self._known(group)
        return self.api.get(LEASE, name) if known is None else known.get(name)

    def _leases(self, group: str, *, fresh: bool) -> Mapping[str, Object]:
        """Returns all Leases of a group by name."""
        known = None if fresh else self._known(group)
        if known is not None:
            return known
        items, _ = self.api.find(LEASE, labelSelector=self.names(group).of_group)
        return {item["metadata"]["name"]: item for item in items}

    def _known(self, group: str) -> Mapping[str, Object] | None:
        """Returns what a watch has of a group; None: ask the server.

        A worker goes on with what was last known, a manager wants all that was written here.
        """
        following = self._followed.get(group)
        if following is None:
            return None
        return following.current_objects() if self._own is None else following.objects()

    # --- raw and published revisions ----------------------------------------------------------

    def _shown(self, slot: Slot, targets: SlotTargetsLease | None = None) -> Slot:
        if self._own is not None or slot.revision is None:
            return slot
        return (targets or self.targets_lease(slot.group)).templates.for_manager(slot)

    def _shown_targets(self, lease: SlotTargetsLease) -> SlotTargetsRecord:
        if self._own is None:
            return lease.record
        targets = lease.templates.targets_for_worker(lease.record.targets, own=self._own)
        return replace(lease.record, targets=targets)

    # --- writing ----------------------------------------------------------------------------

    def swap(self, key: Key, value: Value, seen: Entry | None) -> Value:
        """Stores `value` unless it changed; only a manager creates a group's objects."""
        if isinstance(value, SlotTargetsRecord):
            return self._swap_targets(key.group, value, seen)
        if isinstance(value, Slot):
            return self._swap_slot(value, seen)
        return self._swap_change(value, seen)

    def _swap_targets(
        self, group: str, record: SlotTargetsRecord, seen: Entry | None
    ) -> SlotTargetsRecord:
        """Writes the Lease of the answers, or of the slot targets: each change concerns one."""
        names = self.names(group)
        both: object = (None, None) if seen is None else seen.version
        before = record if seen is None else seen.value
        assert isinstance(both, tuple)
        assert isinstance(before, SlotTargetsRecord)
        stored, answers = both
        lease = self._decoded_targets((stored, answers), group)
        workers = (record.canaries, record.committed) != (before.canaries, before.committed)
        if workers or self._own is not None:
            base = answers or objects.blank(LEASE, names.answers, names)
            answer = None
            if record.targets != before.targets:
                number = lease.answered + 1
                answer = answer_between(before.targets, record.targets, number=number)
            seen_by_manager = 0 if stored is None else objects.targets_from(stored, group).answered
            answers = self.store(
                objects.with_record_of_workers(base, record, answer=answer, seen=seen_by_manager)
            )
        elif stored is None and not record.targets.version:
            return record  # nothing writes the slot targets of an external group
        else:
            base = stored or objects.blank(LEASE, names.targets, names)
            targets = lease.templates.targets_as_stored(record.targets)
            wanted = replace(lease, record=replace(record, targets=targets))
            stored = self.store(objects.with_targets(base, wanted))
        return self._shown_targets(self._decoded_targets((stored, answers), group))

    def _swap_slot(self, slot: Slot, seen: Entry | None) -> Slot:
        names, now = self.names(slot.group), self._clock.now()
        if seen is None:
            wanted = objects.blank(LEASE, names.slot(slot.number), names)
        else:
            assert isinstance(seen.version, dict)
            assert isinstance(seen.value, Slot)
            if slot.revision == seen.value.revision:  # as it is stored, raw
                before = objects.slot_from(seen.version, slot.group, slot.number)
                slot = replace(slot, revision=before.revision)
            wanted = objects.with_slot(seen.version, slot, now=now, lease=self._lease)
        return self._shown(objects.slot_from(self.store(wanted), slot.group, slot.number))

    def _swap_change(self, change: Change, seen: Entry | None) -> Change:
        names, now = self.names(change.group), self._clock.now()
        base: object = objects.blank(LEASE, names.change, names)
        if seen is not None:
            base = seen.version
            if isinstance(seen.value, Change) and is_new_change(seen.value, change):
                self.maps.archive(names, seen.value)
        assert isinstance(base, dict)
        self.store(objects.with_change(base, change, now=now, lease=self._lease))
        if change.state is ChangeState.RUNNING:
            self.follow(change.group)
        else:
            self.unfollow(change.group)
        return change

    def edit_lease(
        self, group: str, name: str, edit: Edit, *, new: Object | None = None
    ) -> Object | None:
        """Stores the result of `edit`, again for every newer Lease; None if it declines.

        new: the Lease if none exists; without it that is Missing.
        """

        def read(fresh: bool) -> Object | None:
            found = self._lease_named(group, name, fresh=fresh) or new
            if found is None and fresh:
                raise missing(LEASE, name)
            return found

        return edit_object(
            read,
            lambda found: None if found is None else edit(found),
            lambda wanted, _: self.store(wanted),
            reads_cache=self.reads_cache,
            write_attempts=write_attempts(f"Lease {name}", clock=self._clock),
        )

    def store(self, wanted: Object) -> Object:
        """Stores a Lease if it is based on the latest version; returns it as stored.

        A write whose answer was lost may have been done: the Lease is read. Raises Conflict if
        another writer was first, Missing if the Lease is gone, Silent if nothing is known of it.
        """
        name = wanted["metadata"]["name"]
        is_new = "resourceVersion" not in wanted["metadata"]
        if is_new and self._own is not None:
            raise missing(LEASE, name)
        try:
            stored = self.api.create_new(wanted) if is_new else self.api.replace(wanted)
        except Silent:
            if is_new:
                raise
            stored = self.api.get(LEASE, name, grace=LOOK)
            if stored is not None and not same_state(stored, wanted):
                raise Conflict(f"Lease {name} has changed meanwhile") from None
        if stored is None:
            raise missing(LEASE, name)
        for group, following in list(self._followed.items()):
            if name.startswith(f"{self.names(group).slug}-"):
                following.put(stored)
        return stored

    def ended_changes(self, group: str, *, limit: int) -> tuple[Change, ...]:
        """Returns ended changes, latest first."""
        return self.maps.ended_changes(self.names(group), limit=limit)

    # --- maps -------------------------------------------------------------------------------

    def entries(self, space: Space, group: str) -> Mapping[str, MapValue]:
        """Reads a map of small values; a manager's reports have published revisions."""
        names = self.names(group)
        if space is not Space.WORKER_REPORTS:
            return self.maps.entries(space, names)
        reports = self.reports.read(names)
        if self._own is not None or not reports:
            return reports
        templates = self.targets_lease(group).templates
        return {worker: templates.for_manager(told) for worker, told in reports.items()}

    def merge(self, space: Space, group: str | None, values: MapValues | None) -> int:
        """Replaces these keys; None removes one."""
        if space is not Space.WORKER_REPORTS:
            assert group is not None
            return self.maps.merge(space, self.names(group), values)
        for told in (values or {}).values():
            if isinstance(told, WorkerReport):
                self.reports.write(self.names(told.group), told)
        gone = [worker for worker, told in (values or {}).items() if told is None]
        return sum(self.reports.forget(self.names(g), w) for w in gone for g in self._groups(group))

    def _groups(self, group: str | None) -> Collection[str]:
        """Returns the group, or else all groups of this cluster that have Leases."""
        if group is not None:
            return [group]
        found, _ = self.api.find(LEASE, labelSelector=f"{MANAGED_LABEL}={MANAGER}")
        ours = [each for each in found if objects.annotation(each, CLUSTER_LABEL) == self.cluster]
        groups = (objects.annotation(each, GROUP_ANNOTATION) for each in ours)
        return {each for each in groups if each is not None}

    # --- watches ------------------------------------------------------------------------------

    def follow(self, group: str) -> None:
        """Watches a group from now on: a worker its own, a manager one that it changes."""
        if group not in self._followed:
            selector = {"labelSelector": self.names(group).of_group}
            following = Informer(
                self.api, LEASE, selector, silence=self._lease / 2, clock=self._clock
            )
            self._followed[group] = following
            self.view = None if self._own is None else following
            following.start()

    def unfollow(self, group: str) -> None:
        """Ends the watch of a group."""
        following = self._followed.pop(group, None)
        if following is not None:
            following.close()
