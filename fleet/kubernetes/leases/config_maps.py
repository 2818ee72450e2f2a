"""What stands beside the slots on Kubernetes: reports, pauses, memories, stopped partitions, and
the changes that ended.

Problem: dozens of workers write their word every few seconds, and an object takes 1 MiB.
Choice: ConfigMaps with one key per worker, partition or memory, each changed by a merge patch
that names its key alone, so that no writer meets another; errors are shortened. Whoever writes a
report drops those that are a day old, now and then, and makes room where the server takes no more
(`fleet.kubernetes.leases.crew_room`); who reads writes nothing. The last writer of a key wins, as
in the local store. Cost: every report stores the whole ConfigMap anew in etcd, some 40 KB at a
hundred workers; the last twenty changes are kept, not two hundred as locally.
"""

import contextlib
import json
from collections.abc import Callable, Collection, Mapping
from typing import Final

from fleet.clock import Clock
from fleet.errors import FleetError, Unreachable
from fleet.kubernetes.client.api import Conflict, Object
from fleet.kubernetes.client.calls import CONFIG_MAP, VERSIONS, TooLarge
from fleet.kubernetes.client.object_names import (
    CLUSTER_LABEL,
    MANAGED_LABEL,
    MANAGER,
    ObjectNames,
    pauses,
)
from fleet.kubernetes.leases import lease_objects as objects
from fleet.kubernetes.leases.crew_room import made_room, silent_for
from fleet.kubernetes.leases.retry_on_conflict import RetryOnConflict, missing
from fleet.slots import Change, Pause, Quarantine, WorkerReport
from fleet.slots.backend import Remark, Remarks, Space, mark_key
from fleet.slots.group_objects import turns

KEPT_CHANGES: Final = 20
"""Changes kept per group, the running or last one included."""
REPORTS_AGE: Final = 0.5
"""Seconds that a worker's reading of all reports serves: only standbys before a free slot ask."""
_DAY: Final = 86400.0
_SWEEP: Final = 3600.0
"""Seconds between two looks of a worker for reports that are a day old."""
_NOTE: Final = "note."


class ConfigMaps:
    """The ConfigMaps of a cluster's groups. worker: for one of its workers, which makes none."""

    def __init__(self, shelf: RetryOnConflict, *, cluster: str, clock: Clock, worker: bool) -> None:
        self._objects = shelf
        self._calls = shelf.calls
        self._cluster = cluster
        self._clock = clock
        self._worker = worker
        self._read: dict[str, tuple[float, dict[str, WorkerReport]]] = {}
        self._swept: dict[str, float] = {}

    # --- reading ----------------------------------------------------------------------------

    def entries(self, space: Space, names: ObjectNames) -> Mapping[str, Remark]:
        """All but reports."""
        if space is Space.PAUSES:
            found = self._objects.get(CONFIG_MAP, pauses(self._cluster))
            told = () if found is None else objects.pauses_from(found)
            return {each.group or "": each for each in told}
        if space is Space.MARKS:
            found = self._objects.get(CONFIG_MAP, names.marks)
            marks = () if found is None else objects.marks_from(found, names.group)
            return {mark_key(mark.tp): mark for mark in marks}
        found = self._objects.get(CONFIG_MAP, names.notes)
        if found is None:
            return {}
        with objects.reading(found):
            return {
                key.removeprefix(_NOTE): dict(json.loads(value))
                for key, value in (found.get("data") or {}).items()
                if key.startswith(_NOTE)
            }

    def reports(
        self, names: ObjectNames, followed: Mapping[str, Object] | None
    ) -> dict[str, WorkerReport]:
        """By worker.

        followed: what a watch tells of the group's ConfigMaps.
        """
        now = self._clock.monotonic()
        if self._worker:
            read_at, known = self._read.get(names.group, (0.0, {}))
            if names.group in self._read and now - read_at < REPORTS_AGE:
                return known
        if followed is None:
            found = self._objects.get(CONFIG_MAP, names.crew)
        else:
            found = followed.get(names.crew)
        told = {} if found is None else objects.reports_from(found)
        reports = {report.worker: report for _, report in told.values()}
        self._read[names.group] = (now, reports)
        return reports

    # --- writing ----------------------------------------------------------------------------

    def merge(self, space: Space, names: ObjectNames | None, values: Remarks | None) -> int:
        """Replace these keys, None removes; how many there were, of those that are removed."""
        if values is None:  # only marks are lifted all at once
            assert space is Space.MARKS
            assert names is not None
            return self._lift(names, None)
        if space is Space.PAUSES:
            return sum(self._pause(group, told) for group, told in values.items())
        if names is None:
            return sum(self._forget(worker) for worker in values)
        if space is Space.REPORTS:
            for worker, told in values.items():
                assert isinstance(told, WorkerReport)
                self._report(names, worker, told)
            return 0
        if space is Space.NOTES:
            data = {
                objects.key_of(_NOTE, key): None if told is None else objects.text(told)
                for key, told in values.items()
            }
            self._merge(names, names.notes, data)
            return 0
        return self._mark(names, values)

    def _report(self, names: ObjectNames, worker: str, report: WorkerReport) -> None:
        key = objects.key_of("", worker)
        self._read.pop(names.group, None)
        data = {key: objects.report_text(report, now=self._clock.now())}
        try:
            stored = self._merge(names, names.crew, data)
        except TooLarge as error:
            self._make_room(names, keep=key)
            try:
                stored = self._merge(names, names.crew, data)
            except TooLarge:
                raise Unreachable(f"{names.crew} is full: {error}") from error
        if stored is not None:
            self._sweep(names, stored, keep=key)

    def _sweep(self, names: ObjectNames, stored: Object, *, keep: str) -> None:
        """Drop reports that are a day old: where nobody manages, no change ever does it."""
        now = self._clock.monotonic()
        if names.group in self._swept and now - self._swept[names.group] < _SWEEP:
            return
        with contextlib.suppress(FleetError):  # our report is stored; the next one tries again
            gone = silent_for(_DAY, stored, keep=keep, now=self._clock.now())
            if gone:
                self._write_as_seen(stored, dict.fromkeys(gone))
            self._swept[names.group] = now

    def _forget(self, worker: str) -> int:
        """Of a worker that was removed, whatever its group."""
        key, gone = objects.key_of("", worker), 0
        self._read.clear()
        for found in self._crews():
            if key in (found.get("data") or {}):
                name = found["metadata"]["name"]
                stored = self._calls.merge(CONFIG_MAP, name, {"data": {key: None}})
                if stored is not None:
                    self._objects.note(stored)
                    gone += 1
        return gone

    def _mark(self, names: ObjectNames, values: Remarks) -> int:
        marks = [told for told in values.values() if isinstance(told, Quarantine)]
        try:
            if marks:
                data = {objects.mark_key(m.tp): objects.mark_text(m) for m in marks}
                self._merge(names, names.marks, data)
        except TooLarge as error:
            raise Unreachable(
                f"{names.marks} is full ({error}); lift marks that nobody needs any more"
            ) from error
        return self._lift(names, [key for key, told in values.items() if told is None])

    def _lift(self, names: ObjectNames, keys: Collection[str] | None) -> int:
        """Remove these marks, None: all; how many there were."""
        found = None if keys == [] else self._objects.get(CONFIG_MAP, names.marks)
        there = () if found is None else objects.marks_from(found, names.group)
        lifted = [mark.tp for mark in there if keys is None or mark_key(mark.tp) in keys]
        if lifted:
            self._merge(names, names.marks, dict.fromkeys(map(objects.mark_key, lifted)))
        return len(lifted)

    def _pause(self, group: str, told: Remark | None) -> int:
        name, key = pauses(self._cluster), objects.pause_key(group or None)
        if told is None:
            found = self._objects.get(CONFIG_MAP, name)
            if found is None or key not in (found.get("data") or {}):
                return 0
            self._calls.merge(CONFIG_MAP, name, {"data": {key: None}})
            return 1
        assert isinstance(told, Pause)
        data: dict[str, str | None] = {key: objects.pause_text(told)}
        if self._calls.merge(CONFIG_MAP, name, {"data": data}) is None:
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
        """Keep it under a key made of its token, so that a copy made twice is one."""
        found = self._objects.get(CONFIG_MAP, names.notes)
        stored = [k for k, _ in objects.archived((found or {}).get("data") or {})]
        key = objects.archived_key(ended)
        kept = sorted({key, *stored}, reverse=True)
        self._merge(
            names,
            names.notes,
            {**dict.fromkeys(kept[KEPT_CHANGES - 1 :]), key: objects.archived_text(ended)},
        )

    def ended(self, names: ObjectNames, *, limit: int) -> tuple[Change, ...]:
        """Latest first."""
        found = self._objects.get(CONFIG_MAP, names.notes)
        if found is None:
            return ()
        with objects.reading(found):
            stored = objects.archived(found.get("data") or {})[:limit]
            return tuple(objects.archived_change(value) for _, value in stored)

    # --- workers that are gone, and when templates came ---------------------------------------

    def keep_reports(self, names: ObjectNames, living: Callable[[], Collection[str]]) -> int:
        """Drop the reports of all workers but these (those that have a pod); how many.

        living: asked once the reports are read, so that nobody who reports is younger.
        With them goes how old the templates are of which there is no pod any more: a template
        that comes back is new again [22].
        """
        found = self._objects.get(CONFIG_MAP, names.crew)
        if found is None:
            return 0
        workers = living()
        kept = {objects.key_of("", worker) for worker in workers}
        gone = [key for key in objects.reports_from(found) if key not in kept]
        old = objects.unused_templates(found, workers)
        if gone or old:
            self._merge(names, names.crew, dict.fromkeys([*gone, *old]))
        return len(gone)

    def since(self, names: ObjectNames, template_hash: str, now: float) -> float:
        """Wall time at which the first worker of a pod template came: `now` where that is ours.

        It tells who is newest [22]; a container that starts again must not become it thereby.
        """
        key = objects.since_key(template_hash)
        for _ in turns(names.crew, clock=self._clock):
            found = self._objects.must_get(CONFIG_MAP, names.crew)
            told = (found.get("data") or {}).get(key)
            if told is not None:
                with objects.reading(found):
                    return float(told)
            with contextlib.suppress(Conflict):  # another report, most likely
                self._write_as_seen(found, {key: repr(now)})
                return now
        return now

    # --- parts ------------------------------------------------------------------------------

    def _make_room(self, names: ObjectNames, *, keep: str) -> None:
        """Drop or shorten what others said; never what came since it was looked at."""
        for _ in turns(names.crew, clock=self._clock):
            found = self._objects.must_get(CONFIG_MAP, names.crew)
            data = made_room(found, keep=keep, now=self._clock.now())
            with contextlib.suppress(Conflict):  # another report, most likely
                self._write_as_seen(found, data)
                return

    def _crews(self) -> list[Object]:
        """The ConfigMaps of reports of all groups of this cluster."""
        ours = f"{MANAGED_LABEL}={MANAGER}"
        found, _ = self._calls.find(CONFIG_MAP, labelSelector=ours)
        return [
            each
            for each in found
            if each["metadata"]["name"].endswith("-crew")
            and objects.annotation(each, CLUSTER_LABEL) == self._cluster
        ]

    def _write_as_seen(self, found: Object, data: Mapping[str, str | None]) -> None:
        """Set these keys (None removes) if nobody wrote since; else Conflict."""
        metadata = found["metadata"]
        seen = {"resourceVersion": metadata["resourceVersion"]}
        self._calls.merge(CONFIG_MAP, metadata["name"], {"metadata": seen, "data": dict(data)})

    def _merge(
        self, names: ObjectNames, name: str, data: Mapping[str, str | None]
    ) -> Object | None:
        """Set these keys (None removes), as stored; a manager makes what is missing (None)."""
        patch: Object = {
            "metadata": {"annotations": {objects.SCHEMA_ANNOTATION: str(objects.SCHEMA)}},
            "data": dict(data),
        }
        stored = self._calls.merge(CONFIG_MAP, name, patch)
        if stored is not None:
            return self._objects.note(stored)
        if self._worker:
            raise missing(CONFIG_MAP, name)
        self._create(objects.blank(CONFIG_MAP, name, names), data)
        return None

    def _create(self, made: Object, data: Mapping[str, str | None]) -> None:
        made["data"] = {k: v for k, v in data.items() if v is not None}
        try:
            self._calls.create(made)
        except Conflict:  # somebody made it in this moment
            self._calls.merge(CONFIG_MAP, made["metadata"]["name"], {"data": dict(data)})
