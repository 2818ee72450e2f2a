"""How a fleet's objects are called on Kubernetes, and the labels that find them again.

Problem: group ids hold characters and lengths that Kubernetes refuses, and an object must be
told as ours by anybody who looks. Choice: every name starts with `k8s_slug(cluster, group)`;
the raw ids stand in annotations. Slots are named by their number, so that a Role can name each
of them (`resourceNames`).
"""

from collections.abc import Iterable
from typing import Final

from fleet.config.spec import SPARK_SERVER
from fleet.decide.slugs import k8s_slug

MANAGER: Final = "fleet"
"""The field manager of everything that we apply."""
PREFIX: Final = "fleet"
CLUSTER_LABEL: Final = f"{PREFIX}/cluster"
GROUP_LABEL: Final = f"{PREFIX}/name"
"""The fleet's slug: on its Deployment, pods, Leases, ConfigMaps."""
SLOT_LABEL: Final = f"{PREFIX}/slot"
"""Of a pod that owns a slot: its number. The operator writes it for autoscalers and `kubectl`."""
WATCHED_LABEL: Final = f"{PREFIX}/watched-by"
"""Of a Lease, besides standbys: `owners`, all slot owners; `slot-N`, that of this slot alone."""
OWNERS: Final = "owners"
GROUP_ANNOTATION: Final = f"{PREFIX}/group"
"""The raw group id."""
REVISION_ANNOTATION: Final = f"{PREFIX}/revision"
"""Of the pod template (and so of its ReplicaSets): what fleet rendered it for."""
MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
DRAINED_ANNOTATION: Final = f"{PREFIX}/removed"
"""Of a pod that the manager removes: when it asked for that."""
UNMANAGED_ANNOTATION: Final = f"{PREFIX}/unmanaged"
"""Of a Deployment: since when nobody manages it; gone with the next apply."""
HASH_LABEL: Final = "pod-template-hash"
COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
SPARK: Final = SPARK_SERVER
"""Name label of all shared Connect servers, and the Secret of their tokens."""
CHILDREN: Final = ("Deployment", "PodDisruptionBudget", "Lease", "ConfigMap")
"""Kinds of a fleet's objects, in the order of their deletion."""
ACCESS: Final = ("RoleBinding", "Role", "ServiceAccount")
"""Kinds that Fleet makes too unless `runtime.service_account` names an account."""
CONTAINER: Final = "worker"
SETTINGS_PATH: Final = "/etc/fleet/settings.json"


class ObjectNames:
    """Names the objects of one fleet."""

    def __init__(self, cluster: str, group: str) -> None:
        self.cluster = cluster
        self.group = group
        slug = self.slug = k8s_slug(cluster, group)
        self.deployment = self.service_account = self.role = self.budget = slug
        self.targets = f"{slug}-targets"
        """The Lease of the slot targets."""
        self.answers = f"{slug}-answers"
        """The Lease of what workers answer to the slot targets."""
        self.change = f"{slug}-change"
        """The Lease of the running (or last) change, for the manager only."""
        self.stopped_partitions = f"{slug}-marks"
        """The ConfigMap of stopped partitions, one key each."""
        self.manager_state = f"{slug}-notes"
        """The ConfigMap of the manager state: memories and ended changes."""
        self.of_group = f"{GROUP_LABEL}={slug}"
        """The `labelSelector` of all of its objects."""

    def slot(self, number: int) -> str:
        """Returns the Lease of one slot."""
        return f"{self.slug}-slot-{number}"

    def slots(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """Returns the Leases of these slots."""
        return tuple(self.slot(number) for number in numbers)

    def report(self, number: int) -> str:
        """Returns the Lease of one worker's report: the worker that its holder names."""
        return f"{self.slug}-report-{number}"

    def reports(self, number: int) -> tuple[str, ...]:
        """Returns the Leases of so many reports."""
        return tuple(self.report(each) for each in range(number))

    def settings(self, revision: str) -> str:
        """Returns the ConfigMap of a revision: settings.json, and a copy of small code.

        `revision` is ten hex digits (fleet.config.settings.revision_of).
        """
        return f"{self.slug}-{revision}"

    def selector(self) -> dict[str, str]:
        """Returns the labels that select its pods and no others."""
        return {GROUP_LABEL: self.slug, "app.kubernetes.io/name": "fleet-worker"}

    def labels(self) -> dict[str, str]:
        """Returns the labels of every object."""
        return {**self.selector(), MANAGED_LABEL: MANAGER}

    def selection(self) -> str:
        """Returns the selector as a `labelSelector`."""
        return ",".join(f"{key}={value}" for key, value in sorted(self.selector().items()))

    def annotations(self) -> dict[str, str]:
        """Returns the annotations with the raw ids."""
        return {GROUP_ANNOTATION: self.group, CLUSTER_LABEL: self.cluster}


def pauses(cluster: str) -> str:
    """Names the ConfigMap of pauses of all groups of a cluster."""
    return k8s_slug(cluster, "pauses")
