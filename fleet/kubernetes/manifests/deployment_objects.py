"""A fleet as Kubernetes objects: pure functions from settings to plain dicts.

Problem: what a manager applies, what `fleet render consumer-fleet` prints and what a test compares
must be one thing, or a manager that comes later rolls every worker it finds. Choice: these
functions know no client and no time; the same settings give the same dicts. Objects whose content
is written by workers (Leases, worker reports, marks) are rendered without it, so that applying them
again leaves it alone. Cost: a Lease per slot that may ever be open exists from the start.
"""

import json
import math
from base64 import b64encode
from typing import Final

from fleet.config.settings import WorkerSettings
from fleet.config.spec import FixedScaling, GroupSpec
from fleet.errors import ConfigError
from fleet.kubernetes.client.api import new_object
from fleet.kubernetes.client.object_names import HASH_LABEL, ObjectNames
from fleet.kubernetes.leases.lease_objects import FIRST, watched_by
from fleet.kubernetes.leases.lease_store import worker_rules
from fleet.kubernetes.manifests.pod_template import Object, account, runtime_of, template
from fleet.worker.pod_environment import CODE

FIRST_AFTER: Final = 60
"""Seconds after which the slot targets open even if not all of its first standbys are ready."""
MOST_CODE: Final = 700_000
"""Bytes of packed code that a ConfigMap (1 MiB with everything) takes beside the settings."""
_SETTLE: Final = 30
"""Seconds for a group to settle and for its members to leave."""
_HISTORY: Final = 10
"""Old ReplicaSets kept: a way back needs no new template."""


def names_of(settings: WorkerSettings) -> ObjectNames:
    """Returns the names of the fleet's objects."""
    return ObjectNames(settings.cluster.name, settings.group.group)


def first_slots(group: GroupSpec) -> int:
    """Returns how many slots open without a manager: replicas.min, or a fixed policy's number."""
    bounds = group.replicas
    if isinstance(group.scaling, FixedScaling):
        return min(max(group.scaling.workers, bounds.min), bounds.max)
    return bounds.min


def most_slots(group: GroupSpec) -> int:
    """Returns the most open slots: replicas.max, plus a rolling batch of dynamic members."""
    worker = group.worker
    dynamic = worker is not None and worker.membership == "dynamic"
    return group.replicas.max + (group.rollout.max_parallel if dynamic else 0)


def most_reports(group: GroupSpec) -> int:
    """Returns the number of Leases for reports: enough while every pod has a successor."""
    return 2 * (most_slots(group) + group.replicas.standby)


def metadata(names: ObjectNames, namespace: str, name: str, **annotations: str) -> Object:
    """Returns the metadata of an object; `annotations` are added to the raw ids."""
    return {
        "name": name,
        "namespace": namespace,
        "labels": names.labels(),
        "annotations": {**names.annotations(), **annotations},
    }


def deployment(settings: WorkerSettings, *, replicas: int) -> Object:
    """Returns the Deployment of one revision, whose controller rolls it at the group's pace."""
    names, rollout = names_of(settings), settings.group.rollout
    spec = {
        "replicas": replicas,
        "revisionHistoryLimit": _HISTORY,
        "progressDeadlineSeconds": progress_deadline(settings.group),
        "minReadySeconds": min_ready(settings.group),
        "strategy": strategy(rollout.max_parallel),
        "selector": {"matchLabels": names.selector()},
        "template": template(settings, names=names),
    }
    meta = metadata(names, runtime_of(settings.group).namespace, names.deployment)
    return new_object("Deployment", meta, spec=spec)


def strategy(surge: int, *, unavailable: int | str = 0) -> Object:
    """Returns the strategy of a Deployment that rolls with so many additional pods."""
    numbers = {"maxSurge": surge, "maxUnavailable": unavailable}
    return {"type": "RollingUpdate", "rollingUpdate": numbers}


def min_ready(group: GroupSpec) -> int:
    """Returns `minReadySeconds`: the bake, for which a new pod is ready before an old one goes.

    Dynamic members leave together after the canary and a settled group; no old pod goes before.
    """
    bake = math.ceil(group.rollout.bake)
    dynamic = group.worker is not None and group.worker.membership == "dynamic"
    return 2 * bake + _SETTLE if dynamic else bake


def progress_deadline(group: GroupSpec) -> int:
    """Returns `progressDeadlineSeconds`: the longest time for one new pod to replace an old one.

    A pod gets a node and gets warm, an owner drains or its lease expires, and the new owner commits
    its first batches.
    """
    rollout = group.rollout
    longest = rollout.node_timeout + rollout.warm_timeout + rollout.drain_timeout
    longest += group.runtime.lease + group.batch_limit
    return math.ceil(longest) + min_ready(group) + _SETTLE


def deployment_again(
    names: ObjectNames, namespace: str, replica_set: Object, *, fields: Object
) -> Object:
    """Returns the Deployment with a ReplicaSet's template and these fields."""
    given = replica_set["spec"]["template"]
    meta = {k: v for k, v in given["metadata"].items() if k in {"labels", "annotations"} and v}
    meta["labels"] = {k: v for k, v in meta["labels"].items() if k != HASH_LABEL}
    spec = {
        **fields,
        "selector": {"matchLabels": names.selector()},
        "template": {**given, "metadata": meta},
    }
    return new_object("Deployment", metadata(names, namespace, names.deployment), spec=spec)


def budget(names: ObjectNames, group: GroupSpec) -> Object:
    """Bounds how many workers are evicted at once; one that never became ready may always be."""
    runtime = runtime_of(group)
    spec = {
        "maxUnavailable": runtime.max_unavailable,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": names.selector()},
    }
    meta = metadata(names, runtime.namespace, names.budget)
    return new_object("PodDisruptionBudget", meta, spec=spec)


def own_access(names: ObjectNames, group: GroupSpec, *, slots: int) -> list[Object]:
    """Returns ServiceAccount, Role and RoleBinding of workers, for their Leases and maps.

    Empty if the platform made the account (`service_account`).
    """
    runtime = runtime_of(group)
    if runtime.service_account:
        return []
    rules = worker_rules(names, slots=slots, reports=most_reports(group))
    return account(metadata(names, runtime.namespace, names.service_account), rules)


def leases(names: ObjectNames, namespace: str, group: GroupSpec) -> list[Object]:
    """Returns the Leases of the slot targets and their answers, of free slots and of reports."""
    first = json.dumps({"slots": first_slots(group), "after": FIRST_AFTER})

    def lease(name: str, **annotations: str) -> Object:
        return new_object("Lease", metadata(names, namespace, name, **annotations))

    every_owner = (
        lease(names.targets, **{FIRST: first}),
        lease(names.answers),
        *map(lease, names.slots(range(most_slots(group)))),
    )
    return [*map(watched_by, every_owner), *map(lease, names.reports(most_reports(group)))]


def marks_map(names: ObjectNames, namespace: str) -> Object:
    """Returns the empty ConfigMap of stopped partitions."""
    return new_object("ConfigMap", metadata(names, namespace, names.stopped_partitions))


def settings_map(
    settings: WorkerSettings, *, code: bytes | None = None, text: str | None = None
) -> Object:
    """Returns the settings ConfigMap of a revision; `code` is a .tar.gz of the entrypoint.

    text: these settings as they are published, maybe by a release that knows more keys, which
    stay; None: as this one writes them. Raises ConfigError where the code is too large for a
    ConfigMap.
    """
    if code is not None and len(code) > MOST_CODE:
        raise ConfigError(
            f"group {settings.group.group}: the code on worker.python_path is "
            f"{len(code) / 1e3:.0f} kB packed, more than the {MOST_CODE / 1e3:.0f} kB that fit a "
            "ConfigMap; build an image with it, and remove python_path"
        )
    names = names_of(settings)
    name, namespace = names.settings(settings.revision), runtime_of(settings.group).namespace
    told = json.loads(text or settings.model_dump_json())
    told["group"]["runtime"]["context"] = None  # a pod uses its service account
    data = {"settings.json": json.dumps(told, indent=1, ensure_ascii=False)}
    made = new_object("ConfigMap", metadata(names, namespace, name), data=data)
    if code is not None:
        made["binaryData"] = {CODE: b64encode(code).decode()}
    return made


def fleet_objects(
    settings: WorkerSettings, *, replicas: int | None = None, code: bytes | None = None
) -> list[Object]:
    """Returns all objects of a fleet in the order to apply them, the Deployment last.

    `replicas`: pods; None: for the first slots and their standbys.
    """
    group = settings.group
    names, namespace = names_of(settings), runtime_of(group).namespace
    if replicas is None:
        replicas = first_slots(group) + group.replicas.standby
    return [
        *own_access(names, group, slots=most_slots(group)),
        *leases(names, namespace, group),
        marks_map(names, namespace),
        settings_map(settings, code=code),
        budget(names, group),
        deployment(settings, replicas=replicas),
    ]
