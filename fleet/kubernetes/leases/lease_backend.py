"""Slots, slot targets and change of a cluster's fleets as Leases and ConfigMaps: the back end of
the store.

Problem: pods on many machines have to agree on who holds which slot, and there is no file that
all of them see. Choice: the API server's compare-and-set on one Lease for each slot, for a group's
slot targets and for its change, in two views. A worker reads what its watch brought
(`fleet.kubernetes.client.informer`), so that looking costs nothing and a server that is away
stops nobody; it can be asked since when it knows, for nothing may be concluded from silence [13].
Its watch has all Leases of the group, or, while it owns a slot at rest, those that concern it. A
manager asks the server each time, or, while it changes a group, one watch of all its Leases
(`fleet.kubernetes.client.informer`). Workers speak raw revisions, managers published ones
(`fleet.kubernetes.leases.lease_objects`): what is read is turned into the one, what is written into
the other, here. Cost: a manager's reading of one slot reads the slot targets' Lease too.
"""

import contextlib
import copy
import json
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from typing import Final

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.kubernetes.client.api import (
    CONFIG_MAP,
    LEASE,
    LOOK,
    VERSIONS,
    Api,
    Conflict,
    Missing,
    Object,
    Silent,
    TooLarge,
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
from fleet.slots import (
    Change,
    ChangeState,
    Pause,
    Phase,
    Slot,
    StoppedPartition,
    WorkerReport,
)
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
from fleet.slots.evidence import WriteLog
from fleet.slots.sqlite import DecodeCache
from fleet.slots.store import edit_object, write_attempts

# Reading and compare-and-set of single objects, for the slot store.
#
# Problem: a write decided on an older version must not be stored, and one whose answer was lost
# must not be done twice or be taken for lost. Choice: a change is a function of the object as it
# stands; it is asked again on every newer version until it is stored or says no. What a view
# knows is good enough to begin with, since the server compares the version; a no is believed only
# of a version that was read from the server in this call. Cost: a refused change costs a read.


Edit = Callable[[Object], Object | None]
"""The object as it should be, made of a copy of what it is; None: leave it."""


class RetryOnConflict:
    """Reads and writes objects of one namespace; a worker's has a view of its group's Leases.

    group: what the names of that view's objects begin with.
    """

    def __init__(
        self, api: Api, *, clock: Clock, view: Informer | None = None, group: str = ""
    ) -> None:
        self.api = api
        self._clock = clock
        self._view = view
        self._group = group
        self.on_write: Callable[[Object], None] = lambda _: None
        """Receives every stored object that no view has."""

    def get(self, kind: str, name: str, *, fresh: bool = False) -> Object | None:
        """Returns the object from the view that has it, unless it must be fresh."""
        view = None if fresh else self.view_of(kind, name)
        return self.api.get(kind, name) if view is None else view.get(name)

    def view_of(self, kind: str, name: str) -> Informer | None:
        """Returns the view that has an object of this name, if there is one."""
        view = self._view
        shown = view is not None and kind == view.kind and name.startswith(self._group)
        return view if shown else None

    def note(self, stored: Object) -> Object:
        """Records an object that was written here."""
        view = self.view_of(stored["kind"], stored["metadata"]["name"])
        if view is None:
            self.on_write(stored)
        else:
            view.put(stored)
        return stored

    def store(self, wanted: Object) -> Object:
        """Creates an object that was never read, else swaps it. Raises Conflict."""
        if "resourceVersion" in wanted["metadata"]:
            return self.swap(wanted)
        return self.note(self.api.create_new(wanted))

    def swap(self, wanted: Object) -> Object:
        """Stores `wanted` if it is based on the latest version; returns it as stored.

        Raises Conflict where it is not, Missing where the object is gone, Silent where nobody
        knows whether it was stored.
        """
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        try:
            stored = self.api.replace(wanted)
        except Silent:
            stored = self.api.get(kind, name, grace=LOOK)
            if stored is not None and not same_state(stored, wanted):
                raise Conflict(f"{kind} {name} has changed meanwhile") from None
        if stored is None:
            raise missing(kind, name)
        return self.note(stored)

    def change(
        self, kind: str, name: str, edit: Edit, *, make: Callable[[], Object] | None = None
    ) -> Object | None:
        """Stores the result of `edit` and returns it; None if it declines.

        make: the object where there is none yet; without it that is Missing.
        """

        def read(fresh: bool) -> Object | None:
            found = self.get(kind, name, fresh=fresh)
            if found is None and fresh and make is None:
                raise missing(kind, name)
            return found

        def made_of(found: Object | None) -> Object | None:
            if found is not None:
                return edit(copy.deepcopy(found))
            return None if make is None else edit(make())

        reads_cache, again = (
            self._view is not None,
            write_attempts(f"{kind} {name}", clock=self._clock),
        )
        return edit_object(
            read,
            made_of,
            lambda wanted, _: self.store(wanted),
            reads_cache=reads_cache,
            write_attempts=again,
        )


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


class Reports:
    """Reads and writes the reports of groups' workers; thread-safe.

    leases: returns all Leases of a group, fresh or as a watch has them. worker: creates none.
    """

    def __init__(
        self,
        shelf: "RetryOnConflict",
        leases: Callable[[str, bool], Mapping[str, Object]],
        *,
        clock: Clock,
        lease: float,
        worker: bool,
    ) -> None:
        self._shelf = shelf
        self._leases = leases
        self._clock = clock
        self._lease = lease
        self._worker = worker
        self._own: dict[str, Object] = {}
        """By worker: its Lease, as last written here."""
        self._decoded: DecodeCache[Object, WorkerReport | None] = DecodeCache(is_)

    def read(self, names: ObjectNames) -> dict[str, WorkerReport]:
        """Returns the reports by worker."""
        found = self._places(names, self._leases(names.group, False))
        told = (self._decoded.of(name, each, objects.report_from) for name, each in found.items())
        return {report.worker: report for report in told if report is not None}

    def write(self, names: ObjectNames, report: WorkerReport) -> None:
        """Replaces a worker's report."""
        own, fresh = self._own.pop(report.worker, None), False
        for _ in write_attempts(f"the report of {report.worker}", clock=self._clock):
            found = own or self._find(names, report.worker, fresh=fresh)
            now = self._clock.now()
            wanted = objects.with_report(found, report, now=now, lease=self._lease)
            with contextlib.suppress(Conflict, Missing):
                self._own[report.worker] = self._shelf.store(wanted)
                return
            own, fresh = None, True

    def keep(self, names: ObjectNames, living: Callable[[], Collection[str]]) -> int:
        """Frees the Leases of workers without a pod; returns how many.

        living: called once the reports are read, so that no worker that reports is younger.
        """
        found = self._places(names, self._leases(names.group, True))
        kept = living()
        gone = [
            each for each in found.values() if (objects.holder_of(each) or "") not in {"", *kept}
        ]
        return sum(self._free(each) for each in gone)

    def forget(self, names: ObjectNames, worker: str) -> int:
        """Frees the Lease of a worker that was removed."""
        found = self._places(names, self._leases(names.group, True))
        return sum(self._free(each) for each in found.values() if objects.holder_of(each) == worker)

    def _free(self, found: Object) -> bool:
        with contextlib.suppress(Conflict):  # it reports, or another worker does there
            free = objects.with_report(found, None, now=self._clock.now(), lease=self._lease)
            self._shelf.store(free)
            return True
        return False

    def _find(self, names: ObjectNames, worker: str, *, fresh: bool) -> Object:
        """Returns the Lease for a worker's reports: its own, a free one, or the most silent."""
        found = self._places(names, self._leases(names.group, fresh))
        by_holder = {objects.holder_of(each): each for each in found.values()}
        if worker in by_holder:
            return by_holder[worker]
        free = [each for each in found.values() if objects.holder_of(each) is None]
        if free:  # workers that start together begin at different ones
            return free[zlib.crc32(worker.encode()) % len(free)]
        if not self._worker:
            return objects.blank(LEASE, names.report(len(found)), names)
        renewed = {name: objects.renewed_at(each) for name, each in found.items()}
        # A wrong clock may take a living worker's Lease: that worker then takes another.
        oldest = min(renewed, key=lambda name: renewed[name], default=None)
        if oldest is None or self._clock.now() - renewed[oldest] < SILENT:
            raise Missing(
                f"none of the {len(found)} Leases {names.report(0)} and following is free for the "
                f"report of {worker}; run `fleet apply`, which creates enough for replicas.max"
            )
        return found[oldest]

    def _places(self, names: ObjectNames, found: Mapping[str, Object]) -> dict[str, Object]:
        prefix = f"{names.slug}-report-"
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


class ConfigMaps:
    """Reads and writes the ConfigMaps of groups. worker: creates none."""

    def __init__(self, shelf: RetryOnConflict, *, cluster: str, clock: Clock, worker: bool) -> None:
        self._objects = shelf
        self._api = shelf.api
        self._cluster = cluster
        self._clock = clock
        self._worker = worker

    # --- reading ----------------------------------------------------------------------------

    def entries(self, space: Space, names: ObjectNames) -> Mapping[str, MapValue]:
        """Returns all entries except reports."""
        if space is Space.PAUSES:
            found = self._objects.get(CONFIG_MAP, pauses(self._cluster))
            return {each.group or "": each for each in objects.values_from(found, Pause)}
        if space is Space.STOPPED_PARTITIONS:
            found = self._objects.get(CONFIG_MAP, names.stopped_partitions)
            marks = objects.values_from(found, StoppedPartition)
            return {partition_key(mark.tp): mark for mark in marks}
        found = self._objects.get(CONFIG_MAP, names.manager_state)
        if found is None:
            return {}
        with objects.reading(found):
            return {
                key.removeprefix(_NOTE): dict(json.loads(value))
                for key, value in (found.get("data") or {}).items()
                if key.startswith(_NOTE)
            }

    # --- writing ----------------------------------------------------------------------------

    def merge(self, space: Space, names: ObjectNames | None, values: MapValues | None) -> int:
        """Replaces these keys, None removes one; returns how many were removed."""
        if values is None:  # only marks are lifted all at once
            assert space is Space.STOPPED_PARTITIONS
            assert names is not None
            return self._lift(names, None)
        if space is Space.PAUSES:
            return sum(self._pause(group, told) for group, told in values.items())
        assert names is not None
        if space is Space.MANAGER_STATE:
            data = {
                objects.key_of(_NOTE, key): None if told is None else objects.text(told)
                for key, told in values.items()
            }
            self._merge(names, names.manager_state, data)
            return 0
        return self._mark(names, values)

    def _mark(self, names: ObjectNames, values: MapValues) -> int:
        marks = [told for told in values.values() if isinstance(told, StoppedPartition)]
        try:
            if marks:
                data = {objects.partition_key(m.tp): objects.mark_text(m) for m in marks}
                self._merge(names, names.stopped_partitions, data)
        except TooLarge as error:
            raise Unreachable(
                f"ConfigMap {names.stopped_partitions} is full ({error}); roll the group to clear "
                "its stopped partitions"
            ) from error
        return self._lift(names, [key for key, told in values.items() if told is None])

    def _lift(self, names: ObjectNames, keys: Collection[str] | None) -> int:
        """Remove these marks, None: all; how many there were."""
        found = None if keys == [] else self._objects.get(CONFIG_MAP, names.stopped_partitions)
        there = objects.values_from(found, StoppedPartition)
        lifted = [mark.tp for mark in there if keys is None or partition_key(mark.tp) in keys]
        if lifted:
            self._merge(
                names, names.stopped_partitions, dict.fromkeys(map(objects.partition_key, lifted))
            )
        return len(lifted)

    def _pause(self, group: str, told: MapValue | None) -> int:
        name, key = pauses(self._cluster), objects.pause_key(group or None)
        if told is None:
            found = self._objects.get(CONFIG_MAP, name)
            if found is None or key not in (found.get("data") or {}):
                return 0
            self._api.merge(CONFIG_MAP, name, {"data": {key: None}})
            return 1
        assert isinstance(told, Pause)
        data: dict[str, str | None] = {key: objects.text(as_json(told))}
        if self._api.merge(CONFIG_MAP, name, {"data": data}) is None:
            self._create(self._pauses_map(), data)
        return 0

    def _pauses_map(self) -> Object:
        metadata = {
            "name": pauses(self._cluster),
            "labels": {MANAGED_LABEL: MANAGER},
            "annotations": {CLUSTER_LABEL: self._cluster},
        }
        return {"apiVersion": VERSIONS[CONFIG_MAP], "kind": CONFIG_MAP, "metadata": metadata}

    # --- changes that ended -------------------------------------------------------------------

    def archive(self, names: ObjectNames, ended: Change) -> None:
        """Stores a change under a key from its token, so that it is stored once."""
        found = self._objects.get(CONFIG_MAP, names.manager_state)
        stored = [k for k, _ in objects.archived((found or {}).get("data") or {})]
        key = objects.archived_key(ended)
        kept = sorted({key, *stored}, reverse=True)
        self._merge(
            names,
            names.manager_state,
            {**dict.fromkeys(kept[KEPT_CHANGES - 1 :]), key: objects.packed(as_json(ended))},
        )

    def ended_changes(self, names: ObjectNames, *, limit: int) -> tuple[Change, ...]:
        """Returns ended changes, latest first."""
        found = self._objects.get(CONFIG_MAP, names.manager_state)
        if found is None:
            return ()
        with objects.reading(found):
            stored = objects.archived(found.get("data") or {})[:limit]
            return tuple(from_json(Change, objects.unpacked(value)) for _, value in stored)

    # --- parts ------------------------------------------------------------------------------

    def _merge(
        self, names: ObjectNames, name: str, data: Mapping[str, str | None]
    ) -> Object | None:
        """Set these keys (None removes), as stored; a manager makes what is missing (None)."""
        patch: Object = {
            "metadata": {"annotations": {objects.SCHEMA_ANNOTATION: str(objects.SCHEMA)}},
            "data": dict(data),
        }
        stored = self._api.merge(CONFIG_MAP, name, patch)
        if stored is not None:
            return self._objects.note(stored)
        if self._worker:
            raise missing(CONFIG_MAP, name)
        self._create(objects.blank(CONFIG_MAP, name, names), data)
        return None

    def _create(self, made: Object, data: Mapping[str, str | None]) -> None:
        made["data"] = {k: v for k, v in data.items() if v is not None}
        if not self._api.create(made):  # it was made in this moment
            self._api.merge(CONFIG_MAP, made["metadata"]["name"], {"data": dict(data)})


@dataclass(frozen=True, slots=True)
class _Targets:
    """The slot targets as read: their Lease, that of the answers, and what both say."""

    stored: Object | None
    answers: Object | None
    lease: SlotTargetsLease


class LeaseBackend:
    """`fleet.slots.backend.Backend` in one namespace; thread-safe.

    worker: the raw revision of the worker that this is for; None: a manager's. lease: seconds,
    for those who read the Leases.
    """

    def __init__(
        self,
        api: Api,
        *,
        cluster: str,
        clock: Clock,
        lease: float,
        worker: str | None = None,
        view: Informer | None = None,
        group: str = "",
    ) -> None:
        self.cluster = cluster
        self.api = api
        self.view = view
        self.shelf = RetryOnConflict(api, clock=clock, view=view, group=group)
        self.shelf.on_write = self._wrote
        self.maps = ConfigMaps(self.shelf, cluster=cluster, clock=clock, worker=worker is not None)
        self.reports = Reports(
            self.shelf,
            lambda group, fresh: self._leases(group, fresh=fresh or not self._sees_all),
            clock=clock,
            lease=lease,
            worker=worker is not None,
        )
        self._clock = clock
        self._lease = lease
        self._own = worker
        self._names: dict[str, ObjectNames] = {}
        # Of a worker: its watches replace an object where it was written, and never change one.
        self._targets: DecodeCache[tuple[Object | None, Object | None], SlotTargetsLease] = (
            DecodeCache(lambda one, two: all(map(is_, one, two)))
        )
        self._slots: DecodeCache[Object, Slot] = DecodeCache(is_)
        self._followed: dict[str, Informer] = {}
        """By group; a manager's, while it changes the group."""

    @property
    def writes(self) -> WriteLog:
        """Returns this process's record of Lease writes."""
        return self.api.writes

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
        self.shelf.change(LEASE, name, lambda found: objects.beaten(found, now=self._clock.now()))

    def version(self) -> int:
        """Returns the version of the watched view; a manager has none."""
        return int(self._clock.monotonic() * 1e6) if self.view is None else self.view.version()

    def known_since(self) -> float | None:
        """Returns since when the view is current; for a manager, since when the server answers."""
        return self.api.answering_since() if self.view is None else self.view.known_since()

    def close(self) -> None:
        """Ends the watches."""
        if self.view is not None:
            self.view.close()
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
        if key.kind is Kind.TARGETS:
            by_name, names = self._leases(key.group, fresh=fresh), self.names(key.group)
            found, answers = by_name.get(names.targets), by_name.get(names.answers)
            lease = self._decoded_targets(by_name, key.group)
            if found is None and answers is None:
                return None
            return Entry(self._shown_targets(lease), _Targets(found, answers, lease))
        if key.kind is Kind.SLOT:
            name = self.names(key.group).slot(key.number)
            found = self._lease_named(key.group, name, fresh=fresh)
            if found is None and fresh and self._own is not None:
                raise missing(LEASE, self.names(key.group).slot(key.number))
            if found is None:
                return None
            slot = objects.slot_from(found, key.group, key.number)
            return Entry(self._shown(slot, self._templates_for(slot)), found)
        found = self._lease_named(key.group, self.names(key.group).change, fresh=fresh)
        change = None if found is None else objects.change_from(found)
        return None if found is None else Entry(change, found)

    def scan(
        self, group: str, *, fresh: bool
    ) -> tuple[SlotTargetsRecord | None, Mapping[int, Slot]]:
        """Returns the slot targets and all slots, by one list if no watch has them."""
        names = self.names(group)
        by_name = self._leases(group, fresh=fresh)
        targets = self._decoded_targets(by_name, group)
        prefix = f"{names.slug}-slot-"
        numbers = {
            int(name.removeprefix(prefix)): found
            for name, found in by_name.items()
            if name.startswith(prefix) and name.removeprefix(prefix).isdigit()
        }
        slots = {n: self._slot(each, group, n) for n, each in numbers.items()}
        if self.view is not None:
            for n in targets.record.opened - slots.keys():
                slots[n] = self._hidden(group, n)
        return self._shown_targets(targets), {n: self._shown(s, targets) for n, s in slots.items()}

    def targets_lease(self, group: str) -> SlotTargetsLease:
        """Reads the slot targets, their pins as stored."""
        return self._decoded_targets(self._leases(group, fresh=False), group)

    def _decoded_targets(self, by_name: Mapping[str, Object], group: str) -> SlotTargetsLease:
        """Returns the slot targets with what workers answered to them."""
        names = self.names(group)
        found, answers = by_name.get(names.targets), by_name.get(names.answers)
        if found is None and self._own is not None:
            raise missing(LEASE, names.targets)

        def decode(stored: tuple[Object | None, Object | None]) -> SlotTargetsLease:
            empty = SlotTargetsLease.empty(group)
            lease = empty if stored[0] is None else objects.targets_from(stored[0], group)
            return objects.with_answers_of(lease, stored[1])

        both = (found, answers)
        return decode(both) if self._own is None else self._targets.of(group, both, decode)

    def _slot(self, found: Object, group: str, number: int) -> Slot:
        if self._own is None:
            return objects.slot_from(found, group, number)
        decode = partial(objects.slot_from, group=group, number=number)
        return self._slots.of((group, number), found, decode)

    def _hidden(self, group: str, number: int) -> Slot:
        """Returns a slot that the watch does not have: somebody owns it, and nothing follows."""
        assert self.view is not None
        found = self.view.hidden(self.names(group).slot(number))
        slot = Slot(group=group, number=number)
        if found is not None:
            slot = self._slot(found, group, number)
        return replace(slot, owner=slot.owner or "another worker", phase=Phase.ACTIVE)

    @property
    def _sees_all(self) -> bool:
        return self.view is None or self.view.is_whole

    def attend(self, group: str, slot: int | None) -> bool:
        """Narrows the watch to what a slot's owner needs, if those Leases have their label; None:
        watches all again.
        """
        if self.view is None:
            return False
        names = self.names(group)
        owners = (OWNERS, f"slot-{slot}")
        narrow = slot is not None and all(
            objects.is_watched_by_owners(self.view.get(name))
            for name in (names.targets, names.answers)
        )
        # An owner hears of nothing but its own renewals at rest: one of them may be late.
        silence = self._lease if narrow else self._lease / 2
        self.view.narrow(WATCHED_LABEL, owners if narrow else (), silence=silence)
        return narrow

    def _lease_named(self, group: str, name: str, *, fresh: bool) -> Object | None:
        """Returns a Lease from a watch of the group if one has it, else from the server."""
        followed = None if fresh else self._follow_up(group)
        return self.shelf.get(LEASE, name, fresh=fresh) if followed is None else followed.get(name)

    def _leases(self, group: str, *, fresh: bool) -> Mapping[str, Object]:
        """Returns all Leases of a group by name."""
        names = self.names(group)
        view = self.shelf.view_of(LEASE, names.targets)
        if view is not None and not fresh:
            return view.objects()
        by_name = None if fresh else self._follow_up(group)
        if by_name is not None:
            return by_name
        items, _ = self.api.find(LEASE, labelSelector=names.of_group)
        return {item["metadata"]["name"]: item for item in items}

    # --- raw and published revisions ----------------------------------------------------------

    def _templates_for(self, slot: Slot) -> SlotTargetsLease:
        if self._own is not None or slot.revision is None:
            return SlotTargetsLease.empty(slot.group)
        return self.targets_lease(slot.group)

    def _shown(self, slot: Slot, targets: SlotTargetsLease) -> Slot:
        return slot if self._own is not None else targets.templates.slot_for_manager(slot)

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
        found = None if seen is None else seen.version
        assert found is None or isinstance(found, dict)
        if isinstance(value, Slot):
            return self._swap_slot(value, seen, found)
        return self._swap_change(value, seen, found)

    def _swap_targets(
        self, group: str, record: SlotTargetsRecord, seen: Entry | None
    ) -> SlotTargetsRecord:
        """Writes the Lease of the answers, or of the slot targets: each change concerns one."""
        names = self.names(group)
        was = _Targets(None, None, SlotTargetsLease.empty(group)) if seen is None else seen.version
        before = record if seen is None else seen.value
        assert isinstance(was, _Targets)
        assert isinstance(before, SlotTargetsRecord)
        stored, answers, lease = was.stored, was.answers, was.lease
        workers = (record.canaries, record.committed) != (before.canaries, before.committed)
        if workers or self._own is not None:
            base = answers or objects.blank(LEASE, names.answers, names)
            answer = None
            if record.targets != before.targets:
                number = lease.answered + 1
                answer = answer_between(before.targets, record.targets, number=number)
            seen_by_manager = 0 if stored is None else objects.targets_from(stored, group).answered
            answers = self._store(
                objects.with_record_of_workers(base, record, answer=answer, seen=seen_by_manager),
                answers,
            )
        elif stored is None and not record.targets.version:
            return record  # of other people's groups there is no slot targets that anybody writes
        else:
            base = stored or objects.blank(LEASE, names.targets, names)
            targets = lease.templates.targets_as_stored(record.targets)
            wanted = replace(lease, record=replace(record, targets=targets))
            stored = self._store(objects.with_targets(base, wanted), stored)
        both = {names.targets: stored, names.answers: answers}
        found = {name: each for name, each in both.items() if each is not None}
        return self._shown_targets(self._decoded_targets(found, group))

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
        if isinstance(last, Change) and is_new_change(last, change):
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
        """As stored. Raises Conflict, which is a ConcurrentWrite, where somebody else wrote
        first.
        """
        if found is None and self._own is not None:
            raise missing(LEASE, wanted["metadata"]["name"])
        return self.shelf.store(wanted)

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
        return {worker: templates.report_for_manager(told) for worker, told in reports.items()}

    def merge(self, space: Space, group: str | None, values: MapValues | None) -> int:
        """Replaces these keys; None removes one."""
        if space is not Space.WORKER_REPORTS:
            return self.maps.merge(space, None if group is None else self.names(group), values)
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

    # --- a group that is being changed ------------------------------------------------------

    def _watch_while_running(self, change: Change) -> None:
        if change.state is ChangeState.RUNNING:
            self.follow(change.group)
        else:
            self.unfollow(change.group)

    def follow(self, group: str) -> None:
        """Watches a group from now on, instead of reading it (for a manager)."""
        if self._own is None and group not in self._followed:
            selector = {"labelSelector": self.names(group).of_group}
            self._followed[group] = following = Informer(
                self.api, LEASE, selector, silence=self._lease / 2, clock=self._clock
            )
            following.start()

    def unfollow(self, group: str) -> None:
        """Ends the watch of a group."""
        following = self._followed.pop(group, None)
        if following is not None:
            following.close()

    def _wrote(self, stored: Object) -> None:
        for group, following in list(self._followed.items()):
            ours = stored["metadata"]["name"].startswith(f"{self.names(group).slug}-")
            if ours and stored["kind"] == following.kind:
                following.put(stored)

    def _follow_up(self, group: str) -> dict[str, Object] | None:
        """Returns what a watch has of a group, with all that was written here; None: no watch."""
        following = self._followed.get(group)
        return None if following is None else following.current_objects()
