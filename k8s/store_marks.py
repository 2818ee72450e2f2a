"""What stands beside the slots on Kubernetes: reports, pauses, memories, stopped partitions.

Problem: dozens of workers write their word every few seconds, and an object takes 1 MiB.
Choice: ConfigMaps with one key per worker, partition or memory, each changed by a merge patch
that names its key alone, so that no writer meets another; errors are shortened, and where an
object grows full the reports that are oldest by their own word go. The last writer of a key
wins, as in the local store. Cost: every report stores the whole ConfigMap anew in etcd, some
40 KB at a hundred workers.
"""

import json
from collections.abc import Collection, Mapping
from typing import Final

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.model import TopicPartition
from fleet.slots import Pause, Quarantine, WorkerReport
from k8s import lease_objects as objects
from k8s.api import Conflict, Object
from k8s.calls import CONFIG_MAP, LEASE, PATIENCE, VERSIONS, Calls, TooLarge
from k8s.following import Following
from k8s.names import CLUSTER_LABEL, GROUP_LABEL, MANAGED_LABEL, MANAGER, Names, pauses
from k8s.shelf import Shelf, missing
from k8s.watching import View

MOST_REPORTS: Final = 256
"""Of a group; with errors of 2,000 characters each they still fit."""
REPORTS_AGE: Final = 0.5
"""Seconds that a worker's reading of all reports serves: only standbys before a free slot ask."""


class Marks:
    """The part of `fleet.slots.SlotStore` that compares nothing before it writes.

    worker: the raw revision of the worker that this store is for; None: a manager's.
    """

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
        self.cluster = cluster
        self._calls = calls
        self._clock = clock
        self._lease = lease
        self._own = worker
        self._view = view
        self._shelf = Shelf(calls, clock=clock, view=view)
        self._names: dict[str, Names] = {}
        self._made: dict[str, frozenset[int]] = {}
        """Slots whose Leases are known to be there, by group."""
        self._read: dict[str, tuple[float, tuple[WorkerReport, ...]]] = {}
        self._followed: dict[tuple[str, str], Following] = {}
        """By group and kind; a manager's, while it changes the group."""

    # --- reports ----------------------------------------------------------------------------

    def report(self, report: WorkerReport) -> None:
        """Replace the worker's report."""
        names = self.names(report.group)
        key = objects.key_of("", report.worker)
        self._read.pop(report.group, None)
        data = {key: objects.report_text(report, now=self._clock.now())}
        try:
            self._merge(names, names.crew, data)
        except TooLarge as error:
            self._make_room(names, keep=key)
            try:
                self._merge(names, names.crew, data)
            except TooLarge:
                raise Unreachable(f"{names.crew} is full: {error}") from error

    def reports(self, group: str) -> tuple[WorkerReport, ...]:
        """All stored reports of the group's workers, by name.

        A manager's reading drops what is too much for the object, the oldest first.
        """
        now = self._clock.monotonic()
        if self._own is not None:
            read_at, known = self._read.get(group, (0.0, ()))
            if group in self._read and now - read_at < REPORTS_AGE:
                return known
        names = self.names(group)
        followed = self._follow_up(group, CONFIG_MAP)
        if followed is None:
            found = self._shelf.get(CONFIG_MAP, names.crew)
        else:
            found = followed.get(names.crew)
        told = {} if found is None else objects.reports_from(found)
        if self._own is None and len(told) > MOST_REPORTS:
            self._make_room(names, keep="")
        reports = tuple(sorted((r for _, r in told.values()), key=lambda each: each.worker))
        self._read[group] = (now, reports)
        return reports

    def forget_worker(self, worker: str) -> None:
        """Drop the report of a worker that was removed, whatever its group."""
        key = objects.key_of("", worker)
        self._read.clear()
        for found in self._maps("crew"):
            if key in (found.get("data") or {}):
                name = found["metadata"]["name"]
                stored = self._calls.merge(CONFIG_MAP, name, {"data": {key: None}})
                if stored is not None:
                    self._shelf.note(stored)

    def keep_reports(self, group: str, workers: Collection[str]) -> int:
        """Drop the reports of all workers but these (those that have a pod); how many.

        With them goes how old the templates are of which there is no pod any more: a template
        that comes back is new again [22].
        """
        names = self.names(group)
        found = self._shelf.get(CONFIG_MAP, names.crew)
        if found is None:
            return 0
        kept = {objects.key_of("", worker) for worker in workers}
        gone = [key for key in objects.reports_from(found) if key not in kept]
        old = objects.unused_templates(found, workers)
        if gone or old:
            self._merge(names, names.crew, dict.fromkeys([*gone, *old]))
        return len(gone)

    def since(self, group: str, template_hash: str, now: float) -> float:
        """Wall time at which the first worker of a pod template came: `now` where that is ours.

        It tells who is newest [22]; a container that starts again must not become it thereby.
        """
        names = self.names(group)
        key = objects.since_key(template_hash)
        deadline = self._clock.monotonic() + PATIENCE
        while True:
            found = self._shelf.must_get(CONFIG_MAP, names.crew)
            told = (found.get("data") or {}).get(key)
            if told is not None:
                with objects.reading(found):
                    return float(told)
            version = found["metadata"]["resourceVersion"]
            patch = {"metadata": {"resourceVersion": version}, "data": {key: repr(now)}}
            try:
                self._calls.merge(CONFIG_MAP, names.crew, patch)
                return now
            except Conflict as error:  # another report, most likely
                if self._clock.monotonic() > deadline:
                    raise Unreachable(f"{names.crew} changes too often to be written") from error
                self._clock.sleep(0.02)

    def _make_room(self, names: Names, *, keep: str) -> None:
        """Drop the oldest reports until three quarters of what is allowed are left."""
        found = self._shelf.must_get(CONFIG_MAP, names.crew)
        told = objects.reports_from(found)
        ranked = sorted(told, key=lambda key: -told[key][0])
        room = min(MOST_REPORTS, len(ranked)) * 3 // 4
        self._merge(names, names.crew, dict.fromkeys(k for k in ranked[room:] if k != keep))

    # --- pauses -----------------------------------------------------------------------------

    def pause(self, pause: Pause) -> None:
        """Hold a group (or all); a second pause replaces the first."""
        name = pauses(self.cluster)
        data = {objects.pause_key(pause.group): objects.pause_text(pause)}
        if self._calls.merge(CONFIG_MAP, name, {"data": data}) is None:
            self._create(self._pauses_map(), data)

    def resume(self, group: str | None) -> bool:
        """True where a pause was lifted."""
        name, key = pauses(self.cluster), objects.pause_key(group)
        found = self._shelf.get(CONFIG_MAP, name)
        if found is None or key not in (found.get("data") or {}):
            return False
        self._calls.merge(CONFIG_MAP, name, {"data": {key: None}})
        return True

    def pauses(self) -> tuple[Pause, ...]:
        """All pauses, the one of all groups first."""
        found = self._shelf.get(CONFIG_MAP, pauses(self.cluster))
        return () if found is None else objects.pauses_from(found)

    def _pauses_map(self) -> Object:
        metadata = {
            "name": pauses(self.cluster),
            "labels": {MANAGED_LABEL: MANAGER},
            "annotations": {CLUSTER_LABEL: self.cluster},
        }
        return {"apiVersion": VERSIONS[CONFIG_MAP], "kind": CONFIG_MAP, "metadata": metadata}

    # --- memories ---------------------------------------------------------------------------

    def note(self, group: str, key: str) -> dict[str, object] | None:
        """A small JSON memory; None where there is none."""
        found = self._shelf.get(CONFIG_MAP, self.names(group).notes)
        told = ((found or {}).get("data") or {}).get(objects.key_of("note.", key))
        if found is None or told is None:
            return None
        with objects.reading(found):
            return dict(json.loads(told))

    def put_note(self, group: str, key: str, value: Mapping[str, object] | None) -> None:
        """Replace it; None removes it."""
        names = self.names(group)
        told = None if value is None else objects.text(dict(value))
        self._merge(names, names.notes, {objects.key_of("note.", key): told})

    # --- stopped partitions -----------------------------------------------------------------

    def quarantine(self, mark: Quarantine) -> None:
        """Store the mark of a stopped partition; a newer one replaces it [9]."""
        names = self.names(mark.group)
        try:
            self._merge(names, names.marks, {objects.mark_key(mark.tp): objects.mark_text(mark)})
        except TooLarge as error:
            raise Unreachable(
                f"{names.marks} is full ({error}); lift marks that nobody needs any more"
            ) from error

    def quarantines(self, group: str) -> tuple[Quarantine, ...]:
        """The group's stopped partitions, in order."""
        found = self._shelf.get(CONFIG_MAP, self.names(group).marks)
        return () if found is None else objects.marks_from(found, group)

    def lift(self, group: str, tp: TopicPartition | None) -> int:
        """Remove marks (all of the group where tp is None); how many."""
        names = self.names(group)
        found = self._shelf.get(CONFIG_MAP, names.marks)
        stored = [] if found is None else list(found.get("data") or {})
        gone = stored if tp is None else [k for k in stored if k == objects.mark_key(tp)]
        if gone:
            self._merge(names, names.marks, dict.fromkeys(gone))
        return len(gone)

    def names(self, group: str) -> Names:
        """How the group's objects are called."""
        if group not in self._names:
            self._names[group] = Names(self.cluster, group)
        return self._names[group]

    # --- a group that is being changed ------------------------------------------------------

    def follow(self, group: str) -> None:
        """Have watches tell how a group stands from now on, instead of asking (a manager)."""
        names = self.names(group)
        selectors = {
            LEASE: {"labelSelector": f"{GROUP_LABEL}={names.slug}"},
            CONFIG_MAP: {"fieldSelector": f"metadata.name={names.crew}"},
        }
        for kind, selector in selectors.items():
            if self._own is None and (group, kind) not in self._followed:
                self._followed[group, kind] = Following(
                    self._calls, kind, selector, silence=self._lease / 5, clock=self._clock
                )
        self._calls.on_answer = self._heard

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
        return following.objects(at_least=self._shelf.wrote(kind, ours))

    def _maps(self, component: str) -> list[Object]:
        """The ConfigMaps of all groups of this cluster, of one component."""
        ours = f"{MANAGED_LABEL}={MANAGER}"
        found, _ = self._calls.find(CONFIG_MAP, labelSelector=ours)
        return [
            each
            for each in found
            if each["metadata"]["name"].endswith(f"-{component}")
            and objects.annotation(each, CLUSTER_LABEL) == self.cluster
        ]

    def _merge(self, names: Names, name: str, data: Mapping[str, str | None]) -> None:
        """Set these keys (None removes); a manager makes the object where it is missing."""
        patch: Object = {
            "metadata": {"annotations": {objects.SCHEMA_ANNOTATION: str(objects.SCHEMA)}},
            "data": dict(data),
        }
        stored = self._calls.merge(CONFIG_MAP, name, patch)
        if stored is not None:
            self._shelf.note(stored)
        else:
            if self._own is not None:
                raise missing(CONFIG_MAP, name)
            self._create(objects.blank(CONFIG_MAP, name, names), data)

    def _create(self, made: Object, data: Mapping[str, str | None]) -> None:
        made["data"] = {k: v for k, v in data.items() if v is not None}
        try:
            self._calls.create(made)
        except Conflict:  # somebody made it in this moment
            self._calls.merge(CONFIG_MAP, made["metadata"]["name"], {"data": dict(data)})
