"""Counts a Deployment's pods by template, and computes how to add or remove some of them.

Problem: the controller of a Deployment deletes pods that still own slots as soon as new pods are
ready. Choice: while pods of several templates exist and a manager acts, the Deployment is frozen.
Its `minReadySeconds` is so high that no new pod counts as available. The controller may then add
pods of the current template (up to replicas + maxSurge) but delete none. Pods are removed by
scaling their own ReplicaSet, which a Deployment in a roll does not scale up again. With one
template, only `replicas` changes. Cost: a manager that dies leaves it frozen (the next one, or
`fleet apply --abort`, unfreezes it).

The controller (Kubernetes 1.36; tests/kubernetes repeats it) deletes old pods down to replicas -
(new pods that are not available), so never while the old alone are at most `replicas`. It adds new
pods up to replicas + maxSurge in all. It spreads a change of `replicas` in a roll over all
ReplicaSets in proportion.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fleet.clock import Clock
from fleet.kubernetes.client.object_names import HASH_LABEL, REVISION_ANNOTATION
from fleet.kubernetes.deployment import pod_status

if TYPE_CHECKING:
    from fleet.kubernetes.leases.lease_store import LeaseStore


# Which pod templates are exactly what a manager rendered, by their hash.
#
# Problem: `kubectl set image` leaves our revision in the template's annotation, yet its pods run
# something else. Choice: the slot targets' Lease keeps {pod-template-hash: revision} of what a
# manager applied (`fleet.kubernetes.leases.lease_store` reads and writes it); any other template is
# a revision of its own. Cost: one more read where a hash is new.


_FRESH: Final = 3.0
"""Seconds for which what was read is believed of a hash that it does not name."""


class RegisteredTemplates:
    """Caches the registered templates of one fleet."""

    def __init__(self, registry: "LeaseStore", group: str, *, clock: Clock) -> None:
        self._registry = registry
        self._group = group
        self._clock = clock
        self._known: dict[str, str] = {}
        self._read_at = float("-inf")

    def known(self, hashes: Collection[str]) -> dict[str, str]:
        """Returns revisions by hash; reads again, at times, if a hash is unknown."""
        stale = self._clock.monotonic() - self._read_at >= _FRESH
        if stale and not set(hashes) <= self._known.keys():
            self._known = dict(self._registry.templates(self._group))
            self._read_at = self._clock.monotonic()
        return dict(self._known)

    def register(self, hash_: str, revision: str) -> None:
        """Stores the revision of a template."""
        if self._known.get(hash_) != revision:
            self._registry.register_template(self._group, hash_, revision)
            self._known[hash_] = revision


Object = dict[str, Any]

NEVER: Final = 2_147_483_646
"""minReadySeconds of a frozen Deployment: 68 years."""
NO_DEADLINE: Final = 2_147_483_647
"""progressDeadlineSeconds that must exceed it; this value is none at all to the controller."""
DEADLINE: Final = 600
REST_SURGE: Final = 1
_ORDER: Final = "deployment.kubernetes.io/revision"
DESIRED_ANNOTATION: Final = "deployment.kubernetes.io/desired-replicas"
"""On a ReplicaSet: what the Deployment's controller last took the Deployment's replicas to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedReplicaSet:
    """Describes one ReplicaSet of the Deployment."""

    name: str
    hash: str
    """pod-template-hash: what its pods are told by."""
    revision: str
    """What the template was rendered for; empty where it is not ours."""
    replicas: int
    order: int
    """The Deployment's own count of templates: the highest is the current one."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What the template gives its pods."""
    labelled: int = 0
    """Pods that have all of them, as its controller knows."""
    ready: int = 0
    """Pods that are ready, as its controller knows."""
    desired: int | None = None
    """The Deployment's replicas, as its controller last took them to be."""
    refused: str | None = None
    """The API server's words where it does not take pods that are wanted."""

    def is_short(self, pods: Sequence[Object]) -> bool:
        """Tells whether the cluster refuses the pods that it wants beside these."""
        return self.refused is not None and self.replicas > len(pods)

    def knows(self, pods: Sequence[Object]) -> bool:
        """Tells whether its controller has seen the marks and the Ready state of these pods."""
        whole = sum(self.labels.items() <= p["metadata"]["labels"].items() for p in pods)
        return (self.labelled, self.ready) == (whole, sum(map(pod_status.is_ready, pods)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCounts:
    """Describes a Deployment and its ReplicaSets at one moment."""

    replicas: int
    surge: int
    frozen: bool
    """Whether the controller is kept from deleting."""
    paused: bool
    sets: tuple[CountedReplicaSet, ...]
    settled: bool
    """Whether the controller has seen the Deployment as it is written, and its template has the
    current ReplicaSet."""
    observed: bool = True
    """Whether it has seen it, whatever it did."""

    @property
    def current(self) -> CountedReplicaSet | None:
        """Returns the ReplicaSet of the Deployment's template; None before it exists."""
        return max(self.sets, key=lambda each: each.order, default=None)

    @property
    def others(self) -> tuple[CountedReplicaSet, ...]:
        """Returns the ReplicaSets of other templates with pods."""
        current = self.current
        return tuple(s for s in self.sets if s is not current and s.replicas)

    @property
    def stuck(self) -> CountedReplicaSet | None:
        """Returns the ReplicaSet for which the controller starts no new template, if any.

        While the only one with pods says other `desired` replicas than there are, the Deployment
        counts as being scaled, and nothing else is done; what it says is written with another
        number of pods alone, and where their number is right already that never comes [49].
        """
        active = [each for each in self.sets if each.replicas]
        if len(active) != 1 or active[0].desired in (None, self.replicas):
            return None
        return active[0] if active[0].replicas == self.replicas else None

    @property
    def moves(self) -> bool:
        """Tells whether the controller still has to change its ReplicaSets.

        What is written on numbers that it is about to change is not exact: it may take a pod that
        nobody asked for [49].
        """
        current = self.current
        if self.paused or current is None:
            return False
        active = [each for each in self.sets if each.replicas]
        if any(each.desired not in (None, self.replicas) for each in active):
            return len(active) > 1 or active[0].replicas != self.replicas
        room = max(0, self.replicas + self.surge - self.total)
        return current.replicas != min(self.replicas, current.replicas + room)

    @property
    def total(self) -> int:
        """Counts the wanted pods of all templates."""
        return sum(each.replicas for each in self.sets)

    def refusal(self, pods: Sequence[Object]) -> str | None:
        """Returns why the cluster refuses wanted pods, if it does."""
        for each in self.sets:
            mine = [p for p in pods if pod_status.hash_of(p) == each.hash]
            living = [p for p in mine if not pod_status.is_gone(p)]
            if each.is_short(living):
                return f"{len(living)} of {each.replicas} pods were created: {each.refused}"
        return None

    def of(self, hash_: str) -> CountedReplicaSet | None:
        """Returns the ReplicaSet with that pod-template-hash."""
        return next((each for each in self.sets if each.hash == hash_), None)


def pod_counts_of(deployment: Object, replica_sets: tuple[Object, ...]) -> PodCounts:
    """Reads it from the API server's objects, without external ReplicaSets."""
    spec, meta = deployment["spec"], deployment["metadata"]
    rolling = spec.get("strategy", {}).get("rollingUpdate") or {}
    mine = [each for each in replica_sets if _owner(each) == meta["uid"]]
    seen = deployment.get("status", {}).get("observedGeneration", 0) >= meta["generation"]
    sets = tuple(sorted((set_of(each) for each in mine), key=lambda each: -each.order))
    newest = max((each.order for each in sets), default=0)
    told = int(meta.get("annotations", {}).get(_ORDER) or 0)
    of_it = {set_of(each).order for each in mine if _is_of(each, deployment)}
    return PodCounts(
        replicas=int(spec.get("replicas", 1)),
        surge=_number(rolling.get("maxSurge", 1), int(spec.get("replicas", 1))),
        frozen=int(spec.get("minReadySeconds") or 0) >= NEVER,
        paused=bool(spec.get("paused")),
        sets=sets,
        settled=seen and newest == told and newest in of_it,
        observed=seen,
    )


def _is_of(found: Object, deployment: Object) -> bool:
    """Whether a ReplicaSet is that of the Deployment's template: the same but for its hash."""
    ours, its = deployment["spec"]["template"], found["spec"]["template"]
    labels = dict((its.get("metadata") or {}).get("labels") or {})
    labels.pop(HASH_LABEL, None)
    return bool(
        its.get("spec") == ours.get("spec")
        and labels == ((ours.get("metadata") or {}).get("labels") or {})
        and _notes(its) == _notes(ours)
    )


def _notes(template: Object) -> Object:
    return (template.get("metadata") or {}).get("annotations") or {}


def ahead_of(shape: PodCounts, count: int) -> tuple[Object, Object]:
    """Fields to write first, and then with a new template, so that `count` pods of it come up, or
    as many as there are of others.

    Nothing is deleted for them: `replicas` is at least as many as there are of other templates.
    The first write is empty where nothing has to come before.
    """
    if not shape.total:
        return {}, at_rest(count)
    replicas = max(shape.replicas, shape.total)
    ahead = _aside(shape, replicas) if replicas != shape.replicas else {}
    return ahead, frozen_fields(replicas, max(1, shape.total + count - replicas))


def grow(shape: PodCounts, count: int) -> tuple[Object, Object]:
    """Fields to write first (empty: none), and then, that add `count` of the current template.

    In mid-roll fewer, and at least one, where `count` are more than there are pods: the controller
    has no more of a template than `replicas`, and where it shall have more than there are it makes
    some of every template.
    """
    current = shape.current
    have = current.replicas if current is not None else 0
    if not shape.others:
        return {}, at_rest(have + count)
    count = min(count, max(shape.replicas, shape.total) - have)
    replicas = max(shape.replicas, have + count, shape.total - have)
    cooldown = shape.frozen and replicas == shape.replicas
    ahead = {} if cooldown else _aside(shape, replicas)
    return ahead, frozen_fields(replicas, max(1, shape.total + count - replicas))


def freeze(shape: PodCounts) -> Object:
    """Returns the fields that freeze a Deployment in a roll."""
    current = shape.current
    have = current.replicas if current is not None else 0
    replicas = max(shape.replicas, have, shape.total - have)
    return frozen_fields(replicas, max(1, shape.total - replicas))


def may_shrink(shape: PodCounts, current: int, others: int) -> bool:
    """Whether so many pods of the current template, and of others, may go at once and none comes
    in their place: whatever is written before, the controller has `replicas` of the current one
    where there is room, and of the others no more than that.
    """
    have, rest = _both(shape)
    if not current and have >= rest:
        return True
    return current + others <= (rest if have > rest else have - 1)


def at_once(
    shape: PodCounts, going: Mapping[str, list[str]]
) -> tuple[dict[str, list[str]], list[str]]:
    """Of names by their template's hash those that may go now, others before the current one's,
    and those that have to wait for them. Where not even one set may, all go.
    """
    current = shape.current.hash if shape.current else ""
    chosen: dict[str, list[str]] = {}
    for each in sorted(going, key=lambda its: (its == current, its)):
        with_it = {**chosen, each: going[each]}
        if may_shrink(shape, *going_of_both(shape, with_it)):
            chosen = with_it
    chosen = chosen or dict(going)
    return chosen, sorted(n for each in going.keys() - chosen.keys() for n in going[each])


def going_of_both(shape: PodCounts, going: Mapping[str, list[str]]) -> tuple[int, int]:
    """Counts names of the current template and of others."""
    current = len(going.get(shape.current.hash, ())) if shape.current else 0
    return current, sum(map(len, going.values())) - current


def before_shrinking(shape: PodCounts, current: int, others: int) -> tuple[Object, Object]:
    """Returns the fields to write first (empty: none) and then, after which so many pods of the
    current template and of others are removed without replacement (`may_shrink`).

    `replicas` stays if possible, since it is what an unfrozen Deployment wants.
    """
    have, rest = _both(shape)
    left = shape.total - current - others
    least = max(have, rest)
    replicas = max(least, min(shape.replicas, shape.total - 1))
    fields = frozen_fields(replicas, 1)
    if least < left:
        replicas = max(least, min(replicas, left - 1))
        fields = frozen_fields(replicas, left - replicas)
    elif not current and have >= rest:
        replicas, fields = have, frozen_fields(have, 1)
    elif max(have, rest + 1) <= left:
        replicas, fields = left, _without_surge(left)
    return (_aside(shape, replicas) if replicas != shape.replicas else {}), fields


def _both(shape: PodCounts) -> tuple[int, int]:
    """Pods wanted of the current template, and of all others."""
    have = shape.current.replicas if shape.current else 0
    return have, shape.total - have


def unfreeze(shape: PodCounts) -> Object:
    """Returns the fields of an unfrozen Deployment with the pods of its template.

    Where other templates have pods still, the controller replaces those by itself from here on.
    """
    current = shape.current
    if current is None or shape.others:
        return at_rest(min(shape.replicas, shape.total))
    return at_rest(current.replicas)


def without_current(shape: PodCounts) -> Object:
    """Returns the fields to write before the current template is replaced, without new pods.

    Empty where nothing has to come before: `replicas` are no more than the other templates have.
    """
    left = sum(each.replicas for each in shape.others)
    return _aside(shape, left) if shape.replicas > left else {}


def freeze_for_others(shape: PodCounts) -> Object:
    """Returns the fields of a frozen Deployment with as many pods as other templates have.

    However many are wanted of the current one: its controller may not have taken back yet what was
    too many of it.
    """
    left = sum(each.replicas for each in shape.others)
    return frozen_fields(left, max(1, shape.total - left))


def frozen_fields(replicas: int, surge: int) -> Object:
    """Returns the fields of a frozen Deployment."""
    return {
        "replicas": replicas,
        "minReadySeconds": NEVER,
        "progressDeadlineSeconds": NO_DEADLINE,
        "strategy": _strategy(surge),
    }


def at_rest(replicas: int) -> Object:
    """Returns the fields of an unfrozen Deployment."""
    return {
        "replicas": replicas,
        "minReadySeconds": 0,
        "progressDeadlineSeconds": DEADLINE,
        "strategy": _strategy(REST_SURGE),
    }


def fields_of(deployment: Object) -> Object:
    """Returns the current values of these fields."""
    return {key: deployment["spec"].get(key) for key in at_rest(0)}


def with_fields(wanted: Object, fields: Mapping[str, object]) -> Object:
    """Returns a rendered Deployment with these numbers."""
    return {**wanted, "spec": {**wanted["spec"], **fields}}


def differs(deployment: Object, fields: Mapping[str, Any]) -> bool:
    """Tells whether the Deployment does not have these fields yet."""
    spec = deployment["spec"]
    return any(spec.get(key, 0) != value for key, value in fields.items())


def _aside(shape: PodCounts, replicas: int) -> Object:
    """A frozen Deployment of another `replicas`, of which nobody comes or goes.

    The controller spreads what replicas + maxSurge are more than there are, so that they must be
    exactly as many. No surge at all has to be paid with maxUnavailable 1, which deletes nothing
    while one of the new ones counts as unavailable: and held, they all do.
    """
    surge = shape.total - replicas
    exact = surge > 0 or not shape.frozen or not (shape.current and shape.current.replicas)
    return frozen_fields(replicas, max(1, surge)) if exact else _without_surge(replicas)


def _without_surge(replicas: int) -> Object:
    fields = frozen_fields(replicas, 0)
    fields["strategy"]["rollingUpdate"]["maxUnavailable"] = 1
    return fields


def _strategy(surge: int) -> Object:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 0}}


def set_of(found: Object) -> CountedReplicaSet:
    """Reads a ReplicaSet from the API server's object."""
    meta, spec = found["metadata"], found["spec"]
    template, status = spec["template"]["metadata"], found.get("status") or {}
    desired = str((meta.get("annotations") or {}).get(DESIRED_ANNOTATION))
    return CountedReplicaSet(
        name=meta["name"],
        hash=(meta.get("labels") or {}).get(HASH_LABEL, ""),
        revision=_notes(spec["template"]).get(REVISION_ANNOTATION, ""),
        replicas=int(spec.get("replicas", 1)),
        order=int((meta.get("annotations") or {}).get(_ORDER) or 0),
        labels=template.get("labels") or {},
        labelled=int(status.get("fullyLabeledReplicas") or 0),
        ready=int(status.get("readyReplicas") or 0),
        desired=int(desired) if desired.isdigit() else None,
        refused=_refusal(status),
    )


def _refusal(status: Object) -> str | None:
    """Quota, webhook, policy: a condition of the ReplicaSet is where the API says it."""
    for each in status.get("conditions") or []:
        if each["type"] == "ReplicaFailure" and each.get("status") != "False":
            return str(each.get("message") or each.get("reason"))
    return None


def _owner(found: Object) -> str:
    owners = found["metadata"].get("ownerReferences") or []
    return next((each["uid"] for each in owners if each.get("controller")), "")


def _number(value: object, of: int) -> int:
    """A count, or a percentage rounded up, as the controller reads maxSurge."""
    if isinstance(value, str) and value.endswith("%"):
        return -(-int(value[:-1]) * of // 100)
    return int(str(value))
