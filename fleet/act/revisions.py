"""Finds the revision that fleet.yaml wants, publishes what its workers start from, and checks it.

Problem: workers outlive their manager. The next release may know more settings and so compute
another revision for the same settings, and a roll for that would be useless. Choice: if slots run a
revision whose published settings mean the same, it is the wanted one. Settings outside a revision
(address, login, time, lease, module path, number of slots) are updated key by key, so that keys of
another release stay. Cost: an unpublished revision needs a read of each revision that owns a slot.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from fleet.act.runtime import Runtime
from fleet.clock import Clock
from fleet.config.settings import WorkerSettings, is_same_worker, revision_of, settings_if_readable
from fleet.config.spec import ClusterSpec, GroupSpec, KubernetesRuntimeSpec
from fleet.decide.state_snapshot import NO_CONCERNS, Vetoes
from fleet.errors import CodeElsewhere, FleetError, Refused
from fleet.model import Plan, StepKind
from fleet.system.code import code_digest, examine_entrypoint, lies_beside


@dataclass(frozen=True, kw_only=True)
class Revisions:
    """Manages the revisions of one cluster's fleets in one runtime."""

    cluster: ClusterSpec
    bootstrap: str
    """Resolved address of the cluster."""
    runtime: Runtime
    clock: Clock

    def wanted(self, spec: GroupSpec) -> str:
        """Returns the revision that fleet.yaml wants, by the name of its running workers.

        If its code is not here, it is the published one with the same settings; raises
        CodeElsewhere if there is none.
        """
        try:
            digest = code_digest(spec)
        except CodeElsewhere:
            published = self._published_elsewhere(spec)
            if published is None:
                raise
            return published
        made = revision_of(spec, digest)
        if self.runtime.published(spec.group, made) is not None:
            return made
        for revision, kept in self._published(spec.group, self._in_use(spec.group)):
            if is_same_worker(kept, spec, digest):
                return revision
        return made

    def _published_elsewhere(self, spec: GroupSpec) -> str | None:
        """Returns the newest revision of workers whose settings, without the code, are the same."""
        workers = {worker.revision for worker in self.runtime.workers(spec.group)}
        same = [
            (kept.published_at or 0.0, revision)
            for revision, kept in self._published(spec.group, self._in_use(spec.group) | workers)
            if is_same_worker(kept, spec, kept.code_digest)
        ]
        return max(same)[1] if same else None

    def _published(
        self, group: str, revisions: Iterable[str]
    ) -> Iterator[tuple[str, WorkerSettings]]:
        """Yields the published settings of these revisions that this release can read."""
        for revision in sorted({each.partition("~")[0] for each in revisions}):
            text = self.runtime.published(group, revision)
            kept = None if text is None else settings_if_readable(text)
            if kept is not None:
                yield revision, kept

    def publish(self, spec: GroupSpec, revision: str) -> None:
        """Publishes a revision before any worker of it starts.

        Raises Refused if the code has changed since planning.
        """
        text = self.runtime.published(spec.group, revision)
        kept = None if text is None else settings_if_readable(text)
        if text is not None and kept is not None:
            self._refresh(spec, revision, text, kept)
            return
        digest = self.runtime.keep_code(spec, revision)
        if revision_of(spec, digest) != revision:
            raise Refused(f"the code of group {spec.group} changed during planning; plan again")
        made = WorkerSettings(
            cluster=self.cluster,
            bootstrap_servers=self.bootstrap,
            group=spec,
            revision=revision,
            code_digest=digest,
            published_at=self.clock.now(),
        )
        self.runtime.publish(spec.group, revision, made.model_dump_json(indent=1))

    def keep_current(self, spec: GroupSpec, revision: str) -> bool:
        """Updates the published settings of a revision, from which workers restart; tells whether
        they were out of date.
        """
        text = self.runtime.published(spec.group, revision)
        kept = None if text is None else settings_if_readable(text)
        if text is None or kept is None:
            return False
        fresh = self._current(spec, text, kept)
        if fresh == json.loads(text):
            return False
        self.runtime.publish(spec.group, revision, json.dumps(fresh, indent=1))
        return True

    def _refresh(self, spec: GroupSpec, revision: str, text: str, kept: WorkerSettings) -> None:
        """Makes a revision that is wanted again (A, B, A) the newest."""
        fresh = self._current(spec, text, kept)
        if self._in_use(spec.group) - {revision}:
            fresh["published_at"] = self.clock.now()
        if fresh != json.loads(text):
            self.runtime.publish(spec.group, revision, json.dumps(fresh, indent=1))

    def _current(self, spec: GroupSpec, text: str, kept: WorkerSettings) -> dict[str, Any]:
        """Returns the settings with the current address, login, lease and folders, which are not
        part of a revision, for workers that start from now on.

        kept: the parsed `text`.
        """
        known = json.loads(text)
        declared, group = spec.model_dump(mode="json"), known["group"]
        return {
            **known,
            "bootstrap_servers": self.bootstrap,
            "cluster": self._with_cluster(known["cluster"], kept.cluster),
            "group": {
                **group,
                "replicas": declared["replicas"],
                "rollout": {**group.get("rollout", {}), **declared["rollout"]},
                "worker": {**group["worker"], "python_path": declared["worker"]["python_path"]},
                "runtime": {**group["runtime"], "lease": declared["runtime"]["lease"]},
            },
        }

    def _with_cluster(self, known: dict[str, Any], read: ClusterSpec) -> dict[str, Any]:
        """Returns the published cluster, replaced if its address or login changed.

        Keys of another release about the old login go with it.
        """
        if read == self.cluster:
            return known
        return {**known, **self.cluster.model_dump(mode="json")}

    def _in_use(self, group: str) -> set[str]:
        """Returns the revisions of slots; `<revision>~<hash>` is an edited template [22]."""
        return {slot.revision for slot in self.runtime.store.slots(group) if slot.revision}


# Problem: a worker that cannot start is noticed only after its warm-up timeout, in a pod even
# later. Choice: a plan states all that can be checked here without running code. Cost: the content
# of an image is unknown here, so that a pod's code gets only a note.


_STARTS: Final = frozenset(StepKind) - {StepKind.LEAVE}


def find_obstacles(
    spec: GroupSpec, plan: Plan, *, environ: Mapping[str, str], here: Path
) -> Vetoes:
    """Returns obstacles to a plan that starts workers; here: the folder of fleet.yaml.

    Raises ConfigError if the entrypoint's source is here but lacks the function.
    """
    worker = spec.worker
    if worker is None or not any(step.kind in _STARTS for step in plan.steps):
        return NO_CONCERNS
    examine_entrypoint(spec)
    if isinstance(spec.runtime, KubernetesRuntimeSpec):
        found = lies_beside(spec, here)
        if found is None:
            return NO_CONCERNS
        note = (
            f"the code of {worker.entrypoint} comes from the image, but {found} is here; if the "
            "image lacks it, write python_path: [.] under worker"
        )
        return Vetoes(notes=(note,))
    if worker.command or worker.spark.startswith("sc://"):
        return NO_CONCERNS
    problem = _java_problem(environ.get("JAVA_HOME"), environ.get("PATH"))
    return NO_CONCERNS if problem is None else Vetoes(refusals=(problem,))


@cache
def _java_problem(java_home: str | None, path: str | None) -> str | None:
    """Returns why Java does not work here; runs Java once per process to read its version."""
    from fleet.broker.jars import find_java  # noqa: PLC0415 - an exporter needs no broker

    named = {"JAVA_HOME": java_home, "PATH": path}
    try:
        find_java({name: value for name, value in named.items() if value is not None})
    except FleetError as error:
        return f"workers cannot start here: {error}"
    return None
