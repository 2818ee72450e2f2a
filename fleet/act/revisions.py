"""The name of what fleet.yaml wants, and what its workers start from.

Problem: workers outlive the manager that started them, and the next manager may be of another
release, which knows more settings and so makes another name of the same settings; a roll for a name
alone would be work for nothing. Choice: where workers hold slots under a revision whose published
settings mean the same, that is the revision. What is no part of a revision (address, login, time,
lease, module path, how many slots there may be) is kept current in the published settings, key by
key, so that what another release wrote beside it stays. Cost: where the name is not published, one
look at each revision that holds a slot.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fleet.act.runtime import Runtime
from fleet.clock import Clock
from fleet.config.settings import WorkerSettings, revision_of, same_worker, settings_if_readable
from fleet.config.spec import ClusterSpec, GroupSpec
from fleet.errors import CodeElsewhere, Refused
from fleet.system.code import code_digest


@dataclass(frozen=True, kw_only=True)
class Revisions:
    """Of one cluster's fleets, in one runtime."""

    cluster: ClusterSpec
    bootstrap: str
    """Resolved address of the cluster."""
    runtime: Runtime
    clock: Clock

    def wanted(self, spec: GroupSpec) -> str:
        """The revision that fleet.yaml wants, by the name that workers of it have already.

        Where its code is not here, what is published of the same settings is what is wanted;
        raises CodeElsewhere where nothing is.
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
        for revision, kept in self._published(spec.group, self._held(spec.group)):
            if same_worker(kept, spec, digest):
                return revision
        return made

    def _published_elsewhere(self, spec: GroupSpec) -> str | None:
        """The newest revision of workers whose settings, but for the code, mean the same."""
        workers = {worker.revision for worker in self.runtime.workers(spec.group)}
        same = [
            (kept.published_at or 0.0, revision)
            for revision, kept in self._published(spec.group, self._held(spec.group) | workers)
            if same_worker(kept, spec, kept.code_digest)
        ]
        return max(same)[1] if same else None

    def _published(
        self, group: str, revisions: Iterable[str]
    ) -> Iterator[tuple[str, WorkerSettings]]:
        """What is kept of these revisions, in order of their names, each by its own.

        What this release cannot read is not what its fleet.yaml wants.
        """
        for revision in sorted({each.partition("~")[0] for each in revisions}):
            text = self.runtime.published(group, revision)
            kept = None if text is None else settings_if_readable(text)
            if kept is not None:
                yield revision, kept

    def publish(self, spec: GroupSpec, revision: str) -> None:
        """Keep what a revision is, before any worker of it starts.

        Raises Refused where the code is not what it was when the revision was named.
        """
        text = self.runtime.published(spec.group, revision)
        kept = None if text is None else settings_if_readable(text)
        if text is not None and kept is not None:
            self._refresh(spec, revision, text, kept)
            return
        digest = self.runtime.keep_code(spec, revision)
        if revision_of(spec, digest) != revision:
            raise Refused(
                f"the code of group {spec.group} changed while it was planned; plan again"
            )
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
        """Bring up to date what is published of a revision whose group needs no change; whether it
        was not: a worker that ends is started again from that, however long ago it was written.
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
        """A revision that is wanted again (A, B, A) is the newest again."""
        fresh = self._current(spec, text, kept)
        if self._held(spec.group) - {revision}:
            fresh["published_at"] = self.clock.now()
        if fresh != json.loads(text):
            self.runtime.publish(spec.group, revision, json.dumps(fresh, indent=1))

    def _current(self, spec: GroupSpec, text: str, kept: WorkerSettings) -> dict[str, Any]:
        """How the cluster is reached names no revision, nor does a lease or where modules lie, so
        that who starts from now on has the address, the login, the lease and the folders of now.

        kept: what `text` says.
        """
        known = json.loads(text)
        declared, group = spec.model_dump(mode="json"), known["group"]
        return {
            **known,
            "bootstrap_servers": self.bootstrap,
            "cluster": self._reached(known["cluster"], kept.cluster),
            "group": {
                **group,
                "replicas": declared["replicas"],
                "rollout": {**group.get("rollout", {}), **declared["rollout"]},
                "worker": {**group["worker"], "python_path": declared["worker"]["python_path"]},
                "runtime": {**group["runtime"], "lease": declared["runtime"]["lease"]},
            },
        }

    def _reached(self, known: dict[str, Any], read: ClusterSpec) -> dict[str, Any]:
        """The published cluster; written anew where it is reached in another way than it `read`.

        Then what another release wrote of the login goes with it: it was said of that one.
        """
        if read == self.cluster:
            return known
        return {**known, **self.cluster.model_dump(mode="json")}

    def _held(self, group: str) -> set[str]:
        """Revisions of slots; `<revision>~<hash>` is a template that somebody made of one [22]."""
        return {slot.revision for slot in self.runtime.store.slots(group) if slot.revision}
