"""A group's Leases and ConfigMaps, as its manager makes them before any worker starts."""

import json
from typing import TYPE_CHECKING

from fleet.kubernetes.leases.lease_objects import FIRST
from fleet.kubernetes.manifests.deployment_objects import leases, marks_map
from tests.support.declared import group_spec

if TYPE_CHECKING:
    from fleet.kubernetes.leases.lease_store import LeaseStore
    from fleet.slots import FirstOpening


def make_leases(
    store: "LeaseStore",
    group: str,
    *,
    slots: int,
    reports: int = 8,
    first: "FirstOpening | None" = None,
) -> int:
    """Create what is missing; how many that is. reports: at least so many, two for each slot."""
    names, api = store.leases.names(group), store.leases.api
    standbys = max(0, -(-reports // 2) - slots)
    spec = group_spec(group, replicas={"min": 1, "max": slots, "standby": standbys})
    made = [*leases(names, api.namespace, spec), marks_map(names, api.namespace)]
    opens = made[0]["metadata"]["annotations"]
    del opens[FIRST]
    if first is not None:
        opens[FIRST] = json.dumps({"slots": first.slots, "after": first.after})
    return sum(api.create(each) for each in made)
