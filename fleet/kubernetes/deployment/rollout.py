"""One fleet's Deployment: more pods of a revision, fewer pods, another template, and back.

Problem: a manager thinks of workers by name, and a Deployment of one template and a number. Choice:
the Deployment's controller rolls. The manager applies a template, sets `replicas`, and watches; a
roll adds `maxSurge` pods and never takes a pod that no new one replaces. Which pod goes is the
pod-deletion-cost: workers write it for themselves (an owner costs more than a standby), and the
manager marks those that it removes as the cheapest. Cost: a controller may delete another standby
than the marked one. An owner that it deletes hands its slot over.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleet.clock import Clock
from fleet.config.settings import WorkerSettings
from fleet.config.spec import GroupSpec
from fleet.errors import FleetError, NoRoom
from fleet.kubernetes.client.api import Api, Object, again_on_conflict, timestamp
from fleet.kubernetes.client.informer import PodInformer
from fleet.kubernetes.client.object_names import (
    COST_ANNOTATION,
    DRAINED_ANNOTATION,
    HASH_LABEL,
    REVISION_ANNOTATION,
    UNMANAGED_ANNOTATION,
    ObjectNames,
)
from fleet.kubernetes.deployment.external_writes import external_writes
from fleet.kubernetes.deployment.pod_status import (
    condition_of,
    hash_of,
    is_gone,
    is_leaving,
    is_marked,
    refusal_of,
)
from fleet.kubernetes.leases.lease_store import LeaseStore
from fleet.kubernetes.manifests import deployment_objects
from fleet.kubernetes.manifests.deployment_objects import strategy

_ORDER: Final = "deployment.kubernetes.io/revision"
FIRST_TO_GO: Final = "-1000"
"""pod-deletion-cost of a pod that the manager removes."""
_SEEN_SECONDS: Final = 180.0
"""For a controller to see a write: milliseconds, or half a minute after an API server was away."""
_MADE_SECONDS: Final = 30.0
"""For the next pod to exist, not to run, if nothing says why it does not."""
_REFUSED_SECONDS: Final = 5.0
"""The same if it is refused: a webhook that restarts is waited for."""
_LEAVING_SECONDS: Final = 180.0
"""The same while pods are on their way out, whose places become free: the longest grace."""
_POLL: Final = 0.1
_FRESH: Final = 3.0
"""Seconds for which the templates that were read are believed of a hash that they do not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateState:
    """Describes one ReplicaSet of the Deployment."""

    name: str
    hash: str
    """pod-template-hash."""
    revision: str
    """The revision that the template was rendered for; empty for an external template."""
    replicas: int
    order: int
    """The Deployment's count of templates; the highest is the current one."""
    refused: str | None = None
    """The API server's message if it refuses wanted pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentState:
    """Describes a Deployment and its ReplicaSets at one moment."""

    replicas: int
    strategy: Mapping[str, Any]
    paused: bool
    sets: tuple[TemplateState, ...]
    """The newest template first."""
    is_observed: bool
    """Whether the controller has seen the Deployment as written, and its template has the current
    ReplicaSet."""
    is_complete: bool
    """Whether `kubectl rollout status` calls it rolled out."""
    stalled: str | None
    """The controller's message once no progress was made within `progressDeadlineSeconds`."""
    external: tuple[str, ...]
    """What others changed of the fields that Fleet applied, in sentences."""

    @property
    def surge(self) -> int:
        """Returns how many pods more than `replicas` a roll may have."""
        value = (self.strategy.get("rollingUpdate") or {}).get("maxSurge", 1)
        if isinstance(value, str) and value.endswith("%"):
            return -(-int(value[:-1]) * self.replicas // 100)
        return int(value)

    @property
    def current(self) -> TemplateState | None:
        """Returns the ReplicaSet of the Deployment's template; None before it exists."""
        return self.sets[0] if self.sets else None

    @property
    def others(self) -> tuple[TemplateState, ...]:
        """Returns the ReplicaSets of other templates with pods: the Deployment rolls."""
        return tuple(each for each in self.sets[1:] if each.replicas)

    @property
    def total(self) -> int:
        """Counts the wanted pods of all templates."""
        return sum(each.replicas for each in self.sets)

    def refusal(self, pods: Sequence[Object]) -> str | None:
        """Returns why the cluster refuses wanted pods, if it does."""
        for each in self.sets:
            living = len(_living(pods, each.hash))
            if each.refused is not None and each.replicas > living:
                return f"{living} of {each.replicas} pods were created: {each.refused}"
        return None


def deployment_state(deployment: Object, replica_sets: Sequence[Object]) -> DeploymentState:
    """Reads the state from the API server's objects, without external ReplicaSets."""
    spec, meta = deployment["spec"], deployment["metadata"]
    status = deployment.get("status") or {}
    mine = [each for each in replica_sets if _owner(each) == meta["uid"]]
    sets = sorted(map(_template_state, mine), key=lambda each: -each.order)
    newest = next((s for s in mine if sets and s["metadata"]["name"] == sets[0].name), None)
    replicas = int(spec.get("replicas", 1))
    seen = int(status.get("observedGeneration") or 0) >= int(meta["generation"])
    counts = {
        int(status.get(key) or 0) for key in ("replicas", "updatedReplicas", "availableReplicas")
    }
    return DeploymentState(
        replicas=replicas,
        strategy=spec.get("strategy") or {},
        paused=bool(spec.get("paused")),
        sets=tuple(sets),
        is_observed=seen and newest is not None and _is_of(newest, deployment),
        is_complete=seen and counts == {replicas},
        stalled=_stalled(deployment) if seen else None,
        external=external_writes(deployment),
    )


def _template_state(found: Object) -> TemplateState:
    meta, spec = found["metadata"], found["spec"]
    return TemplateState(
        name=meta["name"],
        hash=(meta.get("labels") or {}).get(HASH_LABEL, ""),
        revision=_notes(spec["template"]).get(REVISION_ANNOTATION, ""),
        replicas=int(spec.get("replicas", 1)),
        order=int((meta.get("annotations") or {}).get(_ORDER) or 0),
        refused=refusal_of(found),
    )


def _stalled(deployment: Object) -> str | None:
    found = condition_of(deployment, "Progressing")
    exceeded = (found.get("status"), found.get("reason")) == ("False", "ProgressDeadlineExceeded")
    return str(found.get("message") or found["reason"]).rstrip(".") if exceeded else None


def _is_of(replica_set: Object, deployment: Object) -> bool:
    """Tells whether a ReplicaSet has the Deployment's template, apart from its hash."""
    ours, its = deployment["spec"]["template"], replica_set["spec"]["template"]
    given = (its.get("metadata") or {}).get("labels") or {}
    labels = {key: value for key, value in given.items() if key != HASH_LABEL}
    return bool(
        its.get("spec") == ours.get("spec")
        and labels == ((ours.get("metadata") or {}).get("labels") or {})
        and _notes(its) == _notes(ours)
    )


def _notes(template: Object) -> Object:
    return (template.get("metadata") or {}).get("annotations") or {}


def _owner(found: Object) -> str:
    owners = found["metadata"].get("ownerReferences") or []
    return next((each["uid"] for each in owners if each.get("controller")), "")


def _living(pods: Sequence[Object], hash_: str) -> list[Object]:
    return [p for p in pods if hash_of(p) == hash_ and not is_gone(p)]


class WorkerDeployment:
    """Reads and writes the Deployment of one fleet. Not for several threads."""

    def __init__(
        self, api: Api, names: ObjectNames, *, pods: PodInformer, store: LeaseStore, clock: Clock
    ) -> None:
        self._api = api
        self._names = names
        self._pods = pods
        self._clock = clock
        self._store = store
        self._templates: dict[str, str] = {}
        """The registered templates (`PublishedTemplates`), as last read."""
        self._templates_at = float("-inf")

    # --- reading ----------------------------------------------------------------------------

    def pods(self) -> list[Object]:
        """Returns the fleet's last known pods."""
        wanted = self._names.selector().items()
        return [p for p in self._pods.items() if wanted <= p["metadata"]["labels"].items()]

    def look(self) -> tuple[Object | None, DeploymentState | None]:
        """Reads the Deployment and its state; None, None if it does not exist."""
        found = self._api.get("Deployment", self._names.deployment)
        if found is None:
            return None, None
        sets, _ = self._api.find("ReplicaSet", self._names.selection())
        return found, deployment_state(found, sets)

    def _seen(self) -> tuple[Object, DeploymentState]:
        """Waits until the controller has seen the last write; returns the same.

        Raises FleetError if the Deployment is paused, or if the controller does not run.
        """
        deadline = self._clock.monotonic() + _SEEN_SECONDS
        while True:
            found, state = self.look()
            if found is not None and state is not None:
                if state.is_observed:
                    return found, state
                self.check_started(state)
            if self._clock.monotonic() > deadline:
                raise FleetError(
                    f"the controller of Deployment {self._names.deployment} did nothing for "
                    f"{_SEEN_SECONDS:.0f} s; check that kube-controller-manager runs"
                )
            self._clock.sleep(0.05)

    def check_started(self, state: DeploymentState) -> None:
        """Raises FleetError if the Deployment is paused, since its controller does not roll."""
        if state.paused:
            raise FleetError(
                f"Deployment {self._names.deployment} is paused, so that no new template starts; "
                f"run kubectl rollout resume deployment/{self._names.deployment}"
            )

    def templates(self, hashes: Collection[str]) -> dict[str, str]:
        """Returns revisions by hash; reads again, at times, if a hash is unknown."""
        stale = self._clock.monotonic() - self._templates_at >= _FRESH
        if stale and not set(hashes) <= self._templates.keys():
            self._templates = dict(self._store.templates(self._names.group))
            self._templates_at = self._clock.monotonic()
        return dict(self._templates)

    def _register(self, hash_: str, revision: str) -> None:
        if self._templates.get(hash_) != revision:
            self._store.register_template(self._names.group, hash_, revision)
            self._templates[hash_] = revision

    # --- more -------------------------------------------------------------------------------

    def start(self, settings: WorkerSettings, *, count: int) -> tuple[str, ...]:
        """Starts `count` more pods of a revision; returns their names.

        Another template is rolled out by this. Raises NoRoom with the cluster's message if fewer
        pods are created.
        """
        before = self.pods()
        asked: dict[str, int] = {}
        again_on_conflict(self._clock, lambda: self._want(settings, count, before, asked))
        ((hash_, wanted),) = asked.items()
        return self._await_pods(before, hash_, wanted)

    def start_more(self, hash_: str, count: int) -> tuple[str, ...]:
        """Starts more pods of the Deployment's own template; () if it is another."""
        before = self.pods()
        wanted = len(_living(before, hash_)) + count

        def once() -> bool:
            if self.look()[0] is None:
                return False
            found, state = self._seen()
            if state.current is None or state.current.hash != hash_:
                return False
            self._have(found, state, wanted)
            return True

        made = again_on_conflict(self._clock, once)
        return self._await_pods(before, hash_, wanted) if made else ()

    def _want(
        self, settings: WorkerSettings, count: int, before: Sequence[Object], asked: dict[str, int]
    ) -> None:
        """Wants `count` pods more than `before` of the settings' template, which it registers.

        asked: the wanted pods by the template's hash, computed once.
        """
        found, state = self.look()
        wanted = deployment_objects.deployment(settings, replicas=count)
        if found is None or state is None:
            self._api.apply(wanted)
        elif not self._is_template(settings.revision, state, found, wanted):
            self.check_started(state)
            spec = wanted["spec"]
            surge = max(count, int(spec["strategy"]["rollingUpdate"]["maxSurge"]))
            fields: Object = {"strategy": strategy(surge)}
            if state.total:
                fields["replicas"] = state.replicas
            self._api.apply({**wanted, "spec": {**spec, **fields}})
        found, state = self._seen()
        assert state.current is not None
        hash_ = state.current.hash
        if not asked:
            # A manager that was killed before it registered them has told nobody of its pods.
            unsaid = state.others and not self._is_registered(state, settings.revision)
            asked[hash_] = count + (0 if unsaid else len(_living(before, hash_)))
        self._register(hash_, settings.revision)
        self._have(found, state, asked.get(hash_, count))

    def recognise(self, settings: WorkerSettings) -> None:
        """Registers the Deployment's template if these settings render it."""
        found, state = self.look()
        if found is None or state is None or state.current is None or not state.is_observed:
            return
        revision, current = settings.revision, state.current
        if current.revision != revision or self._is_registered(state, revision):
            return
        wanted = deployment_objects.deployment(settings, replicas=state.replicas)
        if self._is_template(revision, state, found, wanted):
            self._register(current.hash, revision)

    def _is_registered(self, state: DeploymentState, revision: str) -> bool:
        known = self.templates([each.hash for each in state.sets])
        return state.current is not None and known.get(state.current.hash) == revision

    def _is_template(
        self, revision: str, state: DeploymentState, found: Object, wanted: Object
    ) -> bool:
        """Tells whether the Deployment's template is the wanted one, whatever registered it."""
        if state.is_observed and self._is_registered(state, revision):
            return True
        same = {**wanted, "spec": {**wanted["spec"], "replicas": state.replicas}}
        tried = self._api.apply(same, trial=True)
        return bool(tried["spec"]["template"] == found["spec"]["template"])

    def _have(self, found: Object, state: DeploymentState, wanted: int) -> None:
        """Wants at least so many pods of the current template.

        In a roll the controller adds them beside the others, if `maxSurge` lets it.
        """
        replicas = max(state.replicas, wanted)
        fields: Object = {"replicas": replicas}
        surge = wanted + sum(each.replicas for each in state.others) - replicas
        if state.others and surge > state.surge:
            fields["strategy"] = strategy(surge)
        self._write(found, fields)

    def _await_pods(self, before: Sequence[Object], hash_: str, wanted: int) -> tuple[str, ...]:
        """Waits for pods of a template; returns the names of the oldest that were not `before`.

        A roll may have replaced another pod meanwhile: of those nobody asked for.
        """
        why = self._missing(hash_, wanted)
        there = {_name(p) for p in before}
        living = _living(self.pods(), hash_)
        living.sort(key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        new = [_name(p) for p in living if _name(p) not in there]
        made = tuple(new[: max(0, wanted - (len(living) - len(new)))])
        if why is None:
            return made
        again_on_conflict(self._clock, lambda: self._want_no_more(hash_))
        raise NoRoom(
            f"{len(living)} of {wanted} pods of Deployment {self._names.deployment} were created: "
            f"{why}",
            started=made,
        )

    def _missing(self, hash_: str, wanted: int) -> str | None:
        """Waits for so many pods; returns None, or why there are no more."""
        seen: object = None
        since = refused_since = self._clock.monotonic()
        while True:
            if self._pods.wait(lambda p: len(_living(p, hash_)) >= wanted, seconds=1.0):
                return None
            now, pods = self._clock.monotonic(), self.pods()
            leaving = [_name(p) for p in pods if "deletionTimestamp" in p["metadata"]]
            if (mark := (len(_living(pods, hash_)), leaving)) != seen:
                seen, since, refused_since = mark, now, now
            _, state = self.look()
            sets = () if state is None else state.sets
            refused = next((each.refused for each in sets if each.hash == hash_), None)
            if refused is None:
                refused_since = now
            elif not leaving and now - refused_since >= _REFUSED_SECONDS:
                return refused
            if now - since >= (_LEAVING_SECONDS if leaving else _MADE_SECONDS):
                return refused or f"no more within {now - since:.0f} s, without a reason"

    def _want_no_more(self, hash_: str) -> None:
        """Wants no more pods than exist of the only template; a roll goes on with what it has."""
        found, state = self._seen()
        if not state.others and state.current is not None and state.current.hash == hash_:
            self._write(found, {"replicas": len(_living(self.pods(), hash_))})

    def _write(self, found: Object, fields: Object) -> None:
        """Writes fields that differ. Raises Conflict if the Deployment changed since `found`."""
        if any(found["spec"].get(key) != value for key, value in fields.items()):
            self._api.merge("Deployment", self._names.deployment, {"spec": fields}, seen=found)

    # --- less -------------------------------------------------------------------------------

    def remove(self, names: Collection[str]) -> None:
        """Marks pods as the first to go, and wants fewer; the controller removes them."""
        at = timestamp(self._clock.now())
        notes = {DRAINED_ANNOTATION: at, COST_ANNOTATION: FIRST_TO_GO}
        for name in sorted({_name(p) for p in self.pods() if not is_leaving(p)} & set(names)):
            patch = {"metadata": {"annotations": notes}}
            self._pods.written(self._api.merge("Pod", name, patch))
        self.settle()

    def settle(self) -> tuple[str, ...]:
        """Wants as many pods as are not marked; returns the marked ones that still exist.

        In a roll the controller replaces the marked ones of other templates by itself. If all pods
        of the current template are marked, the Deployment goes back to the one before.
        """
        marked = [p for p in self.pods() if is_marked(p) and not is_gone(p)]
        if marked:
            again_on_conflict(self._clock, self._settle_once)
        return tuple(sorted(map(_name, marked)))

    def _settle_once(self) -> None:
        found, state = self.look()
        if found is None or state is None or state.current is None or not state.is_observed:
            return
        living = _living(self.pods(), state.current.hash)
        staying = [p for p in living if not is_marked(p)]
        if not state.others:
            refused = state.current.refused is not None
            if refused or len(living) >= state.replicas:  # else one is being created
                self._write(found, {"replicas": len(staying)})
            return
        others = [pod for each in state.others for pod in _living(self.pods(), each.hash)]
        if others and all(map(is_marked, others)):
            # Nothing waits for those: they need not be replaced before they go.
            self._write(found, {"strategy": strategy(state.surge, unavailable="100%")})
        elif living and not staying:
            self._go_back(found, state)

    def go_back(self, is_unused: Callable[[str], bool]) -> None:
        """Restores the template before the current one, if the current one's hash is unused."""
        found, state = self.look()
        if found is None or state is None or state.current is None:
            return
        if state.others and is_unused(state.current.hash):
            self._go_back(found, state)

    def _go_back(self, found: Object, state: DeploymentState) -> None:
        """Applies the template that most other pods run: the controller rolls back."""
        back = max(state.others, key=lambda each: (each.replicas, each.order))
        sets, _ = self._api.find("ReplicaSet", self._names.selection())
        old = next((each for each in sets if _name(each) == back.name), None)
        if old is None:
            raise FleetError(f"ReplicaSet {back.name} does not exist any more; plan again")
        kept = {k: v for k, v in found["spec"].items() if k not in {"template", "selector"}}
        self._api.apply(
            deployment_objects.deployment_again(self._names, self._api.namespace, old, fields=kept)
        )

    # --- the end of a change ----------------------------------------------------------------

    def finish(self, group: GroupSpec | None, *, limit: float) -> None:
        """Waits until only the current template has pods and no marked pod exists.

        group: whose strategy is restored. limit: seconds without progress beyond the bake. Raises
        FleetError with the pods that still exist.
        """
        if group is not None and group.worker is not None:
            limit += deployment_objects.min_ready(group)
        seen: object = None
        since = self._clock.monotonic()
        while True:
            marked = self.settle()
            _, state = self.look()
            if state is None or (not marked and not state.others):
                break
            mark = (marked, state.sets, len(self.pods()))
            if mark != seen:
                seen, since = mark, self._clock.monotonic()
            if self._clock.monotonic() - since > limit:
                left = marked or tuple(each.name for each in state.others)
                raise FleetError(
                    f"Deployment {self._names.deployment} did not finish within {limit:.0f} s: "
                    f"{', '.join(left)} still exists; run `kubectl describe deployment "
                    f"{self._names.deployment}` to see why"
                )
            self._clock.sleep(3 * _POLL)
        if group is not None:
            again_on_conflict(self._clock, lambda: self._restore_strategy(group))

    def _restore_strategy(self, group: GroupSpec) -> None:
        found = self._api.get("Deployment", self._names.deployment)
        if found is not None:
            self._write(found, {"strategy": strategy(group.rollout.max_parallel)})

    def annotate_unmanaged(self, since: str | None) -> None:
        """Gives up the ownership of all fields, with a time stamp; None removes the annotation."""
        metadata = {"annotations": {UNMANAGED_ANNOTATION: since}}
        self._api.merge("Deployment", self._names.deployment, {"metadata": metadata})
        if since is not None:  # an empty entry makes the server forget each field's manager
            patch: Object = {"metadata": {"managedFields": [{}]}}
            self._api.merge("Deployment", self._names.deployment, patch)

    def stop(self) -> None:
        """Removes the pods of all templates."""
        self._api.merge("Deployment", self._names.deployment, {"spec": {"replicas": 0}})


def _name(found: Object) -> str:
    return str(found["metadata"]["name"])
