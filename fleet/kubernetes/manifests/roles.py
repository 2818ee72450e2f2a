"""What each part may do to the API server: the least, as the rules of its Role.

Problem: one service account for everything means that a worker with a hole in it can take any
group's slot or read every Secret. Choice: what slots need of each side is said beside their store
(`fleet.kubernetes.leases.store_roles`), the manager has besides what it applies, and nobody has a
cluster role.
"""

from collections.abc import Sequence
from typing import Any, Final

from fleet.kubernetes.client.object_names import SPARK
from fleet.kubernetes.leases import store_roles

Rule = dict[str, Any]
_ALL: Final = ["get", "list", "watch", "create", "update", "patch", "delete"]
_LOOK: Final = ["get", "list", "watch"]


def exporter_rules() -> list[Rule]:
    """To look at slots, gates and changes, and nothing to write."""
    return store_roles.reader_rules()


def manager_rules() -> list[Rule]:
    """All objects of its fleets, in its own namespace; of Secrets only the Spark server's.

    It hands each fleet's workers their Role, so it must hold what those Roles allow.
    """
    return [
        *store_roles.manager_rules(),
        _rule("apps", ["deployments"], _ALL),
        _rule("apps", ["replicasets"], ["get", "list", "watch", "patch"]),
        _rule("", ["pods"], ["get", "list", "watch", "patch", "delete"]),
        _rule("", ["pods/log"], ["get"]),
        _rule("", ["services", "serviceaccounts"], _ALL),
        _rule("policy", ["poddisruptionbudgets"], _ALL),
        _rule("rbac.authorization.k8s.io", ["roles", "rolebindings"], _ALL),
        _rule("autoscaling", ["horizontalpodautoscalers"], _LOOK),
        # Made where it is missing; RBAC cannot limit `create` to a name.
        _rule("", ["secrets"], ["create"]),
        {**_rule("", ["secrets"], ["get", "delete"]), "resourceNames": [SPARK]},
    ]


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str]) -> Rule:
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
