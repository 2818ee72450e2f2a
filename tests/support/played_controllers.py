"""What kube-controller-manager does with a Deployment, played by seed on an API server in memory.

The arithmetic, its order and its caches are those of Kubernetes 1.36 (pkg/controller/deployment and
pkg/controller/replicaset, read, not copied): both controllers act on what their informers last
told, each kind at another age, and a write on an old version is refused. Not played: nodes,
Progressing conditions, revision history that is cleaned up, minReadySeconds below 68 years.
"""

import hashlib
import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fleet.clock import ManualClock
from fleet.kubernetes.client.object_names import COST_ANNOTATION, HASH_LABEL
from fleet.kubernetes.deployment.pod_counts import DESIRED_ANNOTATION
from fleet.kubernetes.deployment.pod_status import is_gone, is_ready
from tests.support.memory_server import MemoryServer

Object = dict[str, Any]
ORDER = "deployment.kubernetes.io/revision"
_MAX = "deployment.kubernetes.io/max-replicas"


class Outdated(Exception):
    """A controller wrote on a version that is not the newest."""


class PlayedControllers:
    """Both controllers, the quota's admission and the kubelets of one namespace.

    deleted, created: told of each pod that a ReplicaSet's controller deletes or makes.
    """

    def __init__(self, server: MemoryServer, rng: random.Random) -> None:
        self.server = server
        self.rng = rng
        self.pace = 1.0
        """Things that they do in 50 ms, or while a request is under way."""
        self.quota = 1_000
        self.lingers = False
        """Whether deleted pods stay, as they do for their grace."""
        self.deleted: Callable[[Object], None] = lambda pod: None
        self.created: Callable[[Object], None] = lambda pod: None
        self._cache: dict[str, dict[str, Object]] = {}
        self._cached_at: dict[str, int] = {}
        self._acted_at: dict[str, int] = {}
        """Server's version at which a ReplicaSet's pods, or its status, were last written."""
        self._specs: dict[str, Object] = {}
        self._made = 0
        server.after = self._stored

    def _stored(self, method: str, found: Object) -> None:
        """Of a Deployment that somebody writes: its generation counts changes of its spec."""
        if found["kind"] != "Deployment":
            return
        meta = self.server.objects["Deployment", found["metadata"]["name"]]["metadata"]
        if self._specs.get(meta["name"]) != found["spec"]:
            self._specs[meta["name"]] = json.loads(json.dumps(found["spec"]))
            meta["generation"] = meta.get("generation", 0) + 1
        meta.setdefault("uid", "u")

    def step(self) -> None:
        """One of them does one thing."""
        what = self.rng.randrange(8)
        if what < 3:
            self._listen(("Deployment", "ReplicaSet", "Pod")[what])
        elif what < 5:
            self._kubelet()
        else:
            name = self.rng.choice(["", *sorted(self._cache.get("ReplicaSet", {}))])
            self._sync(name)

    def go_on(self, times: float) -> None:
        """So many things in the mean."""
        for _ in range(int(times) + (self.rng.random() < times % 1)):
            self.step()

    def still(self) -> None:
        """All of them do all that is to be done."""
        for _ in range(100):
            before = self.server._version
            for kind in ("Deployment", "ReplicaSet", "Pod"):
                self._listen(kind)
            self._kubelet(everywhere=True)
            for name in ("", *sorted(self._cache["ReplicaSet"])):
                self._sync(name)
            if self.server._version == before:
                return
        raise AssertionError("controllers that never rest")

    def _sync(self, name: str) -> None:
        """A ReplicaSet by its name, or the Deployment; it is queued again where that fails."""
        with suppress(Outdated):
            if name:
                self._sync_set(name)
                return
            for deployment in self._cache.get("Deployment", {}).values():
                self._sync_deployment(json.loads(json.dumps(deployment)))

    def misnote(self) -> None:
        """A ReplicaSet says other `desired-replicas` than the Deployment has."""
        for each in list(self._now("ReplicaSet").values()):
            notes = {**each["metadata"]["annotations"], DESIRED_ANNOTATION: "77"}
            self.server.put({**each, "metadata": {**each["metadata"], "annotations": notes}})

    def evict(self, name: str) -> None:
        """A node is drained."""
        conditions = [{"type": "DisruptionTarget", "status": "True"}]
        status = {"phase": "Failed", "conditions": conditions}
        self.server.put({**self.server.objects["Pod", name], "status": status})

    # --- what they know ---------------------------------------------------------------------

    def _now(self, kind: str) -> dict[str, Object]:
        """As stored: nobody changes what is, only puts another in its place."""
        return {name: o for (its, name), o in self.server.objects.items() if its == kind}

    def _listen(self, kind: str) -> None:
        self._cache[kind] = self._now(kind)
        self._cached_at[kind] = self.server._version

    def _put(self, seen: Object, **changes: Any) -> Object:
        """Write an object as it was read. Raises Outdated where it is another by now."""
        key = seen["kind"], seen["metadata"]["name"]
        found = self.server.objects.get(key)
        if found is None:
            raise Outdated
        if found["metadata"]["resourceVersion"] != seen["metadata"]["resourceVersion"]:
            raise Outdated
        return self.server.put({**seen, **changes})

    # --- the Deployment's controller ----------------------------------------------------------

    def _sync_deployment(self, deployment: Object) -> None:
        sets = [
            json.loads(json.dumps(s))
            for s in self._cache.get("ReplicaSet", {}).values()
            if s["metadata"]["ownerReferences"][0]["uid"] == deployment["metadata"]["uid"]
        ]
        replicas = deployment["spec"]["replicas"]
        current, others = self._current(deployment, sets)
        active = [s for s in (*others, *([current] if current else [])) if _size(s)]
        scaled = any(int(s["metadata"]["annotations"][DESIRED_ANNOTATION]) != replicas
                     for s in active)  # fmt: skip
        if deployment["spec"].get("paused") or scaled:
            self._scale(deployment, current, others)
        else:
            if current is None:
                current = self._make_set(deployment, others)
            if not self._grow_current(deployment, current, others):
                self._shrink_others(deployment, current, others)
        status = {"observedGeneration": deployment["metadata"]["generation"]}
        if deployment.get("status") != status:
            self._put(deployment, status=status)

    def _current(self, deployment: Object, sets: list[Object]) -> tuple[Object | None, list]:
        """The template's own ReplicaSet, its order told, and all others."""
        hash_ = template_hash(deployment)
        current = next((s for s in sets if s["metadata"]["labels"][HASH_LABEL] == hash_), None)
        others = [s for s in sets if s is not current]
        if current is not None:
            notes = current["metadata"]["annotations"]
            newest = max((int(s["metadata"]["annotations"][ORDER]) for s in others), default=0)
            cooldown = int(deployment["spec"]["minReadySeconds"])
            if int(notes[ORDER]) <= newest or current["spec"]["minReadySeconds"] != cooldown:
                notes[ORDER] = str(max(newest + 1, int(notes[ORDER])))
                current["spec"]["minReadySeconds"] = cooldown
                current.update(self._put(current))
            elif deployment["metadata"].setdefault("annotations", {}).get(ORDER) != notes[ORDER]:
                deployment["metadata"]["annotations"][ORDER] = notes[ORDER]
                self._put(deployment)
        return current, others

    def _make_set(self, deployment: Object, others: list[Object]) -> Object:
        hash_ = template_hash(deployment)
        template = json.loads(json.dumps(deployment["spec"]["template"]))
        template["metadata"]["labels"][HASH_LABEL] = hash_
        name = f"{deployment['metadata']['name']}-{hash_}"
        if ("ReplicaSet", name) in self.server.objects:
            raise Outdated
        order = max((int(s["metadata"]["annotations"][ORDER]) for s in others), default=0) + 1
        made = {
            "kind": "ReplicaSet",
            "metadata": {
                "name": name,
                "labels": dict(template["metadata"]["labels"]),
                "annotations": {ORDER: str(order)},
                "ownerReferences": [{"uid": deployment["metadata"]["uid"], "controller": True}],
                "made": order,
            },
            "spec": {
                "replicas": 0,
                "minReadySeconds": deployment["spec"]["minReadySeconds"],
                "template": template,
            },
            "status": {},
        }
        made["spec"]["replicas"] = self._room(deployment, made, others)
        _note(made, deployment)
        stored = self.server.put(made)
        deployment["metadata"].setdefault("annotations", {})[ORDER] = str(order)
        self._put(deployment)
        return json.loads(json.dumps(stored))

    def _room(self, deployment: Object, current: Object, others: list[Object]) -> int:
        replicas, surge, _ = _numbers(deployment)
        have, total = _size(current), _size(current) + sum(map(_size, others))
        if total >= replicas + surge:
            return have
        return have + min(replicas + surge - total, replicas - have)

    def _resize(self, found: Object, size: int, deployment: Object, *, always: bool) -> bool:
        if not always and _size(found) == size:
            return False
        changed = _size(found) != size
        before = dict(found["metadata"]["annotations"])
        found["spec"]["replicas"] = size
        _note(found, deployment)
        if changed or found["metadata"]["annotations"] != before:
            found.update(self._put(found))
        return changed

    def _grow_current(self, deployment: Object, current: Object, others: list[Object]) -> bool:
        replicas = deployment["spec"]["replicas"]
        if _size(current) == replicas:
            return False
        size = replicas if _size(current) > replicas else self._room(deployment, current, others)
        return self._resize(current, size, deployment, always=False)

    def _shrink_others(self, deployment: Object, current: Object, others: list[Object]) -> None:
        replicas, _, unavailable = _numbers(deployment)
        active = sorted((s for s in others if _size(s)), key=lambda s: s["metadata"]["made"])
        total = _size(current) + sum(map(_size, active))
        most = total - (replicas - unavailable) - (_size(current) - _available(current))
        for each in active if most > 0 else ():
            fewer = min(most, _size(each) - _available(each))
            if fewer > 0:
                self._resize(each, _size(each) - fewer, deployment, always=False)
                most -= fewer
        spare = sum(map(_available, (*active, current))) - (replicas - unavailable)
        for each in active:
            if spare > 0 and (fewer := min(spare, _size(each))) > 0:
                self._resize(each, _size(each) - fewer, deployment, always=False)
                spare -= fewer

    def _scale(self, deployment: Object, current: Object | None, others: list[Object]) -> None:
        replicas, surge, _ = _numbers(deployment)
        active = [s for s in (*others, *([current] if current else [])) if _size(s)]
        if len(active) < 2:
            one = active[0] if active else current or others[-1]
            if _size(one) != replicas:
                self._resize(one, replicas, deployment, always=False)
            return
        add = (replicas + surge if replicas else 0) - sum(map(_size, active))
        sign = -1 if add > 0 else 1  # the newest of the largest grow, the oldest shrink
        active.sort(key=lambda s: (-_size(s), sign * s["metadata"]["made"]))
        sizes, added = [], 0
        for each in active:
            before = int(each["metadata"]["annotations"][_MAX])
            part = round(_size(each) * (replicas + surge) / before) - _size(each)
            part = (min if add > 0 else max)(part, add - added) if add else 0
            sizes.append(_size(each) + part)
            added += part
        sizes[0] = max(0, sizes[0] + add - added)
        for each, size in zip(active, sizes, strict=True):
            self._resize(each, size, deployment, always=True)

    # --- the ReplicaSets' controller ----------------------------------------------------------

    def _sync_set(self, name: str) -> None:
        found = json.loads(json.dumps(self._cache["ReplicaSet"][name]))
        known = min(self._cached_at["ReplicaSet"], self._cached_at.get("Pod", 0))
        if known < self._acted_at.get(name, 0):
            return  # it waits until it has heard of what it did
        pods = [
            p for p in self._cache.get("Pod", {}).values()
            if p["metadata"]["ownerReferences"][0]["uid"] == name and not is_gone(p)
        ]  # fmt: skip
        refused = self._manage(found, pods)
        labels = found["spec"]["template"]["metadata"]["labels"].items()
        status: Object = {
            "replicas": len(pods),
            "fullyLabeledReplicas": sum(labels <= p["metadata"]["labels"].items() for p in pods),
            "readyReplicas": sum(map(is_ready, pods)),
        }
        cooldown = found["spec"]["minReadySeconds"]
        status["availableReplicas"] = 0 if cooldown else status["readyReplicas"]
        if refused:
            condition = {"type": "ReplicaFailure", "status": "True", "message": refused}
            status["conditions"] = [condition]
        if found["status"] != status:
            self._put(found, status=status)
            self._acted_at[name] = self.server._version

    def _manage(self, found: Object, pods: list[Object]) -> str:
        name, missing = found["metadata"]["name"], _size(found) - len(pods)
        for _ in range(missing):
            there = [p for p in self._now("Pod").values() if p["status"]["phase"] != "Failed"]
            if len(there) >= self.quota:
                return f'pods "{name}-x" is forbidden: exceeded quota: pods'
            self._made += 1
            template = found["spec"]["template"]["metadata"]
            pod = {
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{self._made}",
                    "labels": dict(template["labels"]),
                    "annotations": dict(template.get("annotations") or {}),
                    "ownerReferences": [{"uid": name, "controller": True}],
                    "made": self._made,
                },
                "status": {"phase": "Pending", "conditions": []},
            }
            self.server.put(pod)
            self._acted_at[name] = self.server._version
            self.created(pod)
        if missing < 0:
            pods.sort(key=_rank)
            for each in pods[:-missing]:
                self._delete(each)
                self._acted_at[name] = self.server._version
        return ""

    def _delete(self, pod: Object) -> None:
        found = self.server.objects.get(("Pod", pod["metadata"]["name"]))
        if found is None or "deletionTimestamp" in found["metadata"]:
            return
        self.deleted(found)
        meta = {**found["metadata"], "deletionTimestamp": "now"}
        self.server.put({**found, "metadata": meta})

    def _kubelet(self, *, everywhere: bool = False) -> None:
        pods = list(self._now("Pod").values())
        for pod in pods if everywhere else pods and [self.rng.choice(pods)]:
            if "deletionTimestamp" in pod["metadata"]:
                if self.lingers:
                    continue
                self.server.delete("Pod", pod["metadata"]["name"])
            elif pod["status"]["phase"] == "Pending":
                conditions = [{"type": "Ready", "status": "True"}]
                status = {"phase": "Running", "conditions": conditions}
                self.server.put({**pod, "status": status})


class PlayedClock(ManualClock):
    """Controllers go on while somebody sleeps."""

    def __init__(self, controllers: PlayedControllers) -> None:
        super().__init__()
        self._controllers = controllers

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._controllers.go_on(self._controllers.pace * (1 + min(seconds, 1.0) / 0.05))


class PlayedInformer:
    """A manager's pods, as old as they happen to be (`PodInformer`)."""

    def __init__(self, controllers: PlayedControllers, clock: PlayedClock) -> None:
        self._controllers = controllers
        self._clock = clock
        self._known = controllers._now("Pod")

    def items(self) -> tuple[Object, ...]:
        if self._controllers.rng.random() < 0.6:
            self._known = self._controllers._now("Pod")
        return tuple(found for _, found in sorted(self._known.items()))

    def written(self, found: Object | None) -> None:
        if found is not None:
            self._known[found["metadata"]["name"]] = json.loads(json.dumps(found))

    def wait(self, settled: Callable[[tuple[Object, ...]], bool], *, seconds: float) -> bool:
        deadline = self._clock.monotonic() + seconds
        while not settled(self.items()):
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(0.05)
        return True


def template_hash(deployment: Object) -> str:
    """Of what its pods shall be."""
    text = json.dumps(deployment["spec"]["template"], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _size(found: Object) -> int:
    return int(found["spec"]["replicas"])


def _available(found: Object) -> int:
    return int(found["status"].get("availableReplicas", 0))


def _numbers(deployment: Object) -> tuple[int, int, int]:
    """Replicas, maxSurge, maxUnavailable."""
    spec = deployment["spec"]
    rolling = spec["strategy"]["rollingUpdate"]
    surge, unavailable = int(rolling["maxSurge"]), int(rolling["maxUnavailable"])
    return spec["replicas"], surge, min(max(unavailable, 0 if surge else 1), spec["replicas"])


def _note(found: Object, deployment: Object) -> None:
    replicas, surge, _ = _numbers(deployment)
    found["metadata"]["annotations"].update(
        {DESIRED_ANNOTATION: str(replicas), _MAX: str(replicas + surge)}
    )


def _rank(pod: Object) -> tuple[bool, bool, int, int]:
    """Who goes first."""
    cost = (pod["metadata"].get("annotations") or {}).get(COST_ANNOTATION, "0")
    return pod["status"]["phase"] != "Pending", is_ready(pod), int(cost), -pod["metadata"]["made"]
