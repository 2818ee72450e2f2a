"""What the slot store asks of the API server: the least that each side needs, as RBAC rules.

A worker reads and writes only Leases and ConfigMaps that its Role names; it creates and deletes
nothing. `list` and `watch` are authorized by name where the request's only field selector is
`metadata.name=NAME`, so a worker holds one watch per Lease: with a label selector it could be
one for all, and would show it every other group's Leases. `update` is what a compare-and-set
needs (a replacement with the version that was seen), `patch` of ConfigMaps what one key of many
needs.
"""

from typing import Any

from fleet.kubernetes.client.object_names import ObjectNames

Rule = dict[str, Any]
_LEASES = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
_MAPS = {"apiGroups": [""], "resources": ["configmaps"]}


def worker_rules(names: ObjectNames, *, slots: int) -> list[Rule]:
    """Of one fleet's workers; `slots`: replicas.max, as many Leases as there are."""
    return [
        {
            **_LEASES,
            "resourceNames": [names.gate, *names.slots(range(slots))],
            "verbs": ["get", "list", "watch", "update"],
        },
        {**_LEASES, "resourceNames": [names.change], "verbs": ["get"]},
        {**_MAPS, "resourceNames": [names.crew, names.marks], "verbs": ["get", "patch"]},
    ]


def manager_rules() -> list[Rule]:
    """Of the manager, in its namespace: it makes and removes the objects of every fleet."""
    verbs = ["get", "list", "watch", "create", "update", "patch", "delete"]
    return [{**_LEASES, "verbs": verbs}, {**_MAPS, "verbs": verbs}]


def reader_rules() -> list[Rule]:
    """Of whoever only looks: exporter, `fleet status`."""
    verbs = ["get", "list", "watch"]
    return [{**_LEASES, "verbs": verbs}, {**_MAPS, "verbs": verbs}]
