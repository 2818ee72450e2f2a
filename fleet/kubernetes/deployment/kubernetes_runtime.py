"""The Kubernetes runtime: workers are pods of one Deployment per fleet.

Problem: a manager starts, sees and removes workers by name, on a cluster as on a laptop. Choice:
this is `fleet.act.runtime.Runtime` over the API server. The kubelet keeps processes alive, the
fleet's Deployment keeps their number and rolls (`fleet.kubernetes.deployment.rollout`), and a watch
tells how they stand. Nothing that matters is kept here: revisions are ConfigMaps, removals are
marks on pods, so that the next manager goes on where this one was killed. Cost: a revision's code
has to fit into a ConfigMap, or come with the image.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from fleet.act.runtime import RolloutStatus
from fleet.clock import Clock
from fleet.config.settings import settings_from, settings_if_readable, settings_to_start
from fleet.config.spec import FleetSpec, GroupSpec, KubernetesRuntimeSpec
from fleet.decide.adopted import Adopted
from fleet.decide.state_snapshot import NO_CONCERNS, Vetoes
from fleet.errors import FleetError, Refused, Unreachable
from fleet.kubernetes.client.api import Api, Denied, Object, again_on_conflict, timestamp
from fleet.kubernetes.client.informer import PodInformer
from fleet.kubernetes.client.object_names import ACCESS, CHILDREN, GROUP_LABEL, ObjectNames, pauses
from fleet.kubernetes.deployment.adoption import read_adopted, scale_adopted
from fleet.kubernetes.deployment.examining import autoscalers_of, examine
from fleet.kubernetes.deployment.pod_status import has_ended, hash_of, read_log, worker_of
from fleet.kubernetes.deployment.rollout import WorkerDeployment
from fleet.kubernetes.deployment.spark_servers import (
    delete_servers,
    delete_unused,
    ensure_spark,
    purge_spark,
    spark_concerns,
)
from fleet.kubernetes.leases.lease_objects import FIRST
from fleet.kubernetes.leases.lease_store import LeaseStore
from fleet.kubernetes.manifests import deployment_objects
from fleet.model import Finding, Plan
from fleet.slots import WorkerProcess
from fleet.system.code import packed_code
from fleet.system.log_files import LogPart
from fleet.worker.pod_environment import CODE

_KEPT_REVISIONS: Final = 12
"""More than the Deployment keeps ReplicaSets: `kubectl rollout undo` finds its settings."""
_REMOVAL_SECONDS: Final = 180.0
_SLACK_SECONDS: Final = 60.0
"""What `down` allows beyond a pod's own grace, for a busy node."""


class KubernetesRuntime:
    """`fleet.act.runtime.Runtime` in one namespace."""

    replaces_workers = True

    def __init__(self, spec: FleetSpec, *, api: Api, store: LeaseStore, clock: Clock) -> None:
        self.spec = spec
        self.api = api
        self.store = store
        self._clock = clock
        self._pods = PodInformer(api, GROUP_LABEL, clock=clock)
        self._rollouts: dict[str, WorkerDeployment] = {}
        self._taken_back: dict[str, tuple[str, ...]] = {}
        """External writes to a group's Deployment that were taken back, in sentences."""
        self._settings: dict[tuple[str, str], str] = {}
        self._packed: dict[tuple[str, str], bytes | None] = {}
        self._ensured = False

    def close(self) -> None:
        """Ends the watches; workers go on."""
        self._pods.close()
        self.store.close()
        self.api.close()

    def ensure(self) -> None:
        """Creates the shared Spark servers and removes marked pods."""
        if not self._ensured:
            ensure_spark(self.spec, self.api)
            pods = self.api.find("Pod", GROUP_LABEL)[0]
            delete_unused(self.spec, self.api, pods, now=self._clock.now())
            self._ensured = True
        for rollout in list(self._rollouts.values()):
            rollout.settle()

    # --- revisions --------------------------------------------------------------------------

    def keep_code(self, spec: GroupSpec, revision: str) -> str:
        """Packs the entrypoint's code for `publish`; returns its digest."""
        digest, packed = packed_code(spec)
        self._packed[spec.group, revision] = packed
        return digest

    def publish(self, group: str, revision: str, settings: str) -> None:
        """Stores a revision's settings and code, and creates all other objects of its workers."""
        known = settings_from(settings)
        names, namespace = self._names(group), self.api.namespace
        packed = self._packed.get((group, revision))
        if packed is None:  # published before: its code stays
            found = self.api.get("ConfigMap", names.settings(revision)) or {}
            kept = (found.get("binaryData") or {}).get(CODE)
            packed = base64.b64decode(kept) if kept else None
        slots = max(deployment_objects.most_slots(known.group), self._most_held(group))
        for each in deployment_objects.own_access(names, known.group, slots=slots):
            self.api.apply(each)
        for each in deployment_objects.leases(names, namespace, known.group):
            # The slot targets that a manager opens does not open by itself.
            each["metadata"]["annotations"].pop(FIRST, None)
            self.api.create(each)
        self.api.apply(deployment_objects.marks_map(names, namespace))
        self.api.apply(deployment_objects.budget(names, known.group))
        self.api.apply(deployment_objects.settings_map(known, code=packed, text=settings))
        self._settings[group, revision] = settings
        self._forget_old(group, revision)

    def _most_held(self, group: str) -> int:
        """Above each slot that is open or held: where `replicas.max` is lowered below that, its
        owner still has to renew, to tell that it has drained, and to release.
        """
        held = {slot.number for slot in self.store.slots(group) if slot.owner is not None}
        return max((number + 1 for number in held | self.store.targets(group).open), default=0)

    def published(self, group: str, revision: str) -> str | None:
        """Returns the settings of a revision; for an edited template, those that it began from."""
        plain = revision.partition("~")[0]
        if (group, plain) not in self._settings:
            found = self.api.get("ConfigMap", self._names(group).settings(plain)) if plain else None
            if found is None:
                return None
            self._settings[group, plain] = str(found["data"]["settings.json"])
        return self._settings[group, plain]

    def recognise(self, group: str, revision: str) -> None:
        """Recognises pods of templates that others applied, and restarted ones, as this revision.

        Where this login may not look or write that down, they stay unknown to it.
        """
        text = self.published(group, revision)
        settings = None if text is None else settings_if_readable(text)
        if settings is None:
            return
        try:
            self._rollout_of(group).recognise(settings)
        except FleetError as error:
            if isinstance(error, Unreachable) and not isinstance(error, Denied):
                raise

    def _forget_old(self, group: str, revision: str) -> None:
        """The oldest revisions that no ReplicaSet names are let go."""
        names = self._names(group)
        maps, _ = self.api.find("ConfigMap", names.of_group)
        _, state = self._rollout_of(group).look()
        used = {revision, *(each.revision for each in state.sets)} if state else {revision}
        kept = {names.settings(each) for each in used if each}
        old = [m for m in maps if "settings.json" in (m.get("data") or {})]
        old = [m for m in old if m["metadata"]["name"] not in kept]
        old.sort(key=lambda m: str(m["metadata"]["creationTimestamp"]))
        for each in old[: max(0, len(old) - _KEPT_REVISIONS)]:
            self.api.delete("ConfigMap", each["metadata"]["name"])

    # --- workers ----------------------------------------------------------------------------

    def start(self, group: str, revision: str, count: int) -> tuple[str, ...]:
        """Starts `count` pods; returns their names. Raises Refused without readable settings."""
        text = self.published(group, revision)
        if text is None:
            raise Refused(
                f"revision {revision} of group {group} is not published in namespace "
                f"{self.api.namespace}; run `fleet apply {group}`"
            )
        settings = settings_to_start(text, group=group, revision=revision)
        if settings.revision != revision:  # a template of kubectl's: it may still grow
            made = self._rollout_of(group).start_more(revision.partition("~")[2], count)
            if made:
                return made
            raise Refused(
                f"revision {revision} of group {group} is a template that Fleet did not create, so "
                "it cannot start it; run `kubectl rollout undo` to restore it"
            )
        self._forget_gone(group)
        return self._rollout_of(group).start(settings, count=count)

    def remove(self, names: Sequence[str], *, grace: float) -> None:
        """Marks pods as the first to go, and wants fewer pods.

        The template sets the grace period of a pod, so that `grace` is ignored.
        """
        del grace
        groups = {w.name: w.group for w in self.workers()}
        for group in sorted({groups[name] for name in names if name in groups}):
            mine = [name for name in names if groups.get(name) == group]
            there = [name for name, of in groups.items() if of == group]
            self.store.retire(group, mine, there=there)
            self._rollout_of(group).remove(mine)

    def restart(self, name: str) -> None:
        """Deletes the pod; its ReplicaSet creates another."""
        known = sorted(w.name for w in self.workers())
        if name not in known:
            raise Refused(f"no pod {name} exists; existing pods: {', '.join(known) or 'none'}")
        self.api.delete("Pod", name)

    def workers(self, group: str | None = None) -> tuple[WorkerProcess, ...]:
        """Returns all existing pods of these fleets, by name."""
        now = self._clock.now()
        found = []
        for each in self._managed():
            if group not in {None, each.group}:
                continue
            rollout = self._rollout_of(each.group)
            pods = rollout.pods()
            templates = rollout.templates({hash_of(pod) for pod in pods})
            found += [worker_of(p, group=each.group, templates=templates, now=now) for p in pods]
        return tuple(found)

    def refusal(self, group: str) -> str | None:
        """Returns the API server's refusal of pods (a quota, a LimitRange, a policy), if known."""
        rollout = self._rollout_of(group)
        try:
            _, state = rollout.look()
            return None if state is None else state.refusal(rollout.pods())
        except FleetError:
            return None

    def rollout(self, group: str, revision: str) -> RolloutStatus:
        """Returns how far the Deployment's controller has rolled out the revision.

        A template that somebody else has put in its place is replaced once. Raises FleetError if
        that happens again, or if the Deployment is paused.
        """
        rollout = self._rollout_of(group)
        _, state = rollout.look()
        if state is None or state.current is None:
            return RolloutStatus(complete=False)
        rollout.check_started(state)
        notes = self._taken_back.get(group, ())
        if state.is_observed and not self._runs(group, revision, state.current.hash):
            who = "; ".join(state.external) or "another writer changed its template"
            what = f"Deployment {self._names(group).deployment}: {who}"
            if notes:
                raise FleetError(f"{what}, again; stop that writer, then run `fleet apply {group}`")
            self._taken_back[group] = (f"{what}; Fleet took that back",)
            self.start(group, revision, 0)
            return RolloutStatus(complete=False)
        return RolloutStatus(complete=state.is_complete, stalled=state.stalled, notes=notes)

    def _runs(self, group: str, revision: str, hash_: str) -> bool:
        """Tells whether a template is the revision's, also after `kubectl rollout restart`."""
        rollout = self._rollout_of(group)
        if rollout.templates([hash_]).get(hash_) != revision:
            self.recognise(group, revision)
        return rollout.templates([hash_]).get(hash_) == revision

    def read_log(self, worker: str, place: str | None = None) -> LogPart:
        """Reads the log of the pod's container, and at first of its predecessor."""
        return read_log(self.api, worker, place)

    def finish_removals(self, group: str, *, failed: bool = False, given_up: bool = False) -> None:
        """Waits until the Deployment has rolled out and removed pods are gone.

        After a failure or an abort it waits for nothing: a template that no slot runs is given up,
        and the controller goes on by itself.
        """
        rollout = self._rollout_of(group)
        if failed or given_up:
            is_unused = partial(self._is_unused, group)
            again_on_conflict(self._clock, lambda: rollout.go_back(is_unused))
        else:
            rollout.finish(self.spec.fleet(group), limit=_REMOVAL_SECONDS)
        self._forget_gone(group)

    def _forget_gone(self, group: str) -> None:
        """Deletes the reports of deleted pods.

        The server lists the existing pods, since a late watch would miss the newest, and a standby
        reports only once that it is warm.
        """
        selector = self._names(group).selection()

        def there() -> list[str]:
            return [pod["metadata"]["name"] for pod in self.api.find("Pod", selector)[0]]

        self.store.keep_reports(group, there)

    def _is_unused(self, group: str, hash_: str) -> bool:
        """Tells whether no pod of a template owns a slot."""
        pods = {p["metadata"]["name"]: hash_of(p) for p in self._rollout_of(group).pods()}
        return all(pods.get(slot.owner or "") != hash_ for slot in self.store.slots(group))

    # --- adopted Deployments ----------------------------------------------------------------

    def adopted(self, group: str) -> Adopted | None:
        """Returns the adopted Deployment, if the file names one that exists."""
        name = self._adopted_name(group)
        return read_adopted(self.api, name) if name else None

    def scale_adopted(self, group: str, count: int) -> Adopted:
        """Scales it; returns when its pods are gone or ready."""
        name = self._adopted_name(group)
        if name is None:
            raise Refused(f"group {group} has no runtime.deployment to scale")
        return scale_adopted(self.api, name, count, clock=self._clock)

    def _adopted_name(self, group: str) -> str | None:
        fleet = self.spec.fleet(group)
        if fleet is None or fleet.worker is not None:
            return None
        runtime = fleet.runtime
        return runtime.deployment if isinstance(runtime, KubernetesRuntimeSpec) else None

    # --- objections to a plan ---------------------------------------------------------------

    def vetoes(self, plan: Plan) -> Vetoes:
        """Returns refusals because of autoscalers, and notes on shared Spark servers."""
        name = self._adopted_name(plan.group) or self._names(plan.group).deployment
        if plan.empty:
            return NO_CONCERNS
        spark = spark_concerns(self.spec, self.api)
        try:
            rivals = autoscalers_of(self.api, name)
            _, state = self._rollout_of(plan.group).look()
        except Unreachable:
            raise
        except FleetError as error:
            note = f"cannot tell whether an autoscaler also scales Deployment {name}: {error}"
            return replace(spark, notes=(*spark.notes, note))
        against = tuple(each.refusal(plan.group) for each in rivals)
        written = tuple(f"Deployment {name}: {each}" for each in state.external) if state else ()
        notes = (*spark.notes, *written)
        return replace(spark, notes=notes, refusals=(*against, *spark.refusals))

    def unmanage(self, group: str) -> None:
        """Gives up the ownership of all fields of the Deployment; its pods go on."""
        self._rollout_of(group).annotate_unmanaged(timestamp(self._clock.now()))

    def manage(self, group: str) -> None:
        """Removes the annotation; the next change owns the fields again."""
        self._rollout_of(group).annotate_unmanaged(None)

    def examine(self) -> Iterator[Finding]:
        """Yields the findings of `fleet doctor` for the cluster and these fleets."""
        rollouts = {each.group: self._rollout_of(each.group) for each in self._managed()}
        looks = {group: (each.look()[1], each.pods()) for group, each in rollouts.items()}
        yield from examine(self.spec, self.api, looks=looks)

    # --- the end ----------------------------------------------------------------------------

    def down(self, *, grace: float) -> None:
        """Stops all pods of these fleets, and Spark if no other fleet shares it."""
        fleets = self._managed()
        for each in fleets:
            self._rollout_of(each.group).stop()
        longest = grace + _SLACK_SECONDS + max((f.runtime.lease for f in fleets), default=0.0)
        mine = {self._names(each.group).slug for each in fleets}

        def ours(items: Sequence[Object]) -> list[Object]:
            labelled = ((p, p["metadata"].get("labels") or {}) for p in items)
            return [p for p, labels in labelled if labels.get(GROUP_LABEL) in mine]

        def left(items: Sequence[Object]) -> list[str]:
            return [p["metadata"]["name"] for p in ours(items) if not has_ended(p)]

        if not self._pods.wait(lambda items: not left(items), seconds=longest):
            raise FleetError(
                f"pods of namespace {self.api.namespace} do not stop: "
                f"{', '.join(left(self._pods.items()))}; run `kubectl describe pod` to see why"
            )
        pods = self._pods.items()
        for pod in filter(has_ended, ours(pods)):  # evicted: its ReplicaSet leaves it there
            self.api.delete("Pod", pod["metadata"]["name"])
        if all(map(has_ended, pods)):
            delete_servers(self.api)
        self._ensured = False

    def purge(self) -> tuple[str, ...]:
        """Deletes all objects of these fleets after `down`; a Secret of the user stays."""
        for each in self._managed():
            for kind in (*CHILDREN, *ACCESS):
                for found in self.api.find(kind, self._names(each.group).of_group)[0]:
                    self.api.delete(kind, found["metadata"]["name"])
        self.api.delete("ConfigMap", pauses(self.spec.cluster.name))
        left = purge_spark(self.spec, self.api)
        self._settings.clear()
        self.close()
        return left

    # --- parts ------------------------------------------------------------------------------

    def _names(self, group: str) -> ObjectNames:
        return ObjectNames(self.spec.cluster.name, group)

    def _managed(self) -> tuple[GroupSpec, ...]:
        ours = (f for f in self.spec.fleets if isinstance(f.runtime, KubernetesRuntimeSpec))
        return tuple(each for each in ours if each.worker is not None)

    def _rollout_of(self, group: str) -> WorkerDeployment:
        if group not in self._rollouts:
            names, clock = self._names(group), self._clock
            made = WorkerDeployment(self.api, names, pods=self._pods, store=self.store, clock=clock)
            self._rollouts[group] = made
        return self._rollouts[group]
