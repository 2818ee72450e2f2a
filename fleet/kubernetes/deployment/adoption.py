"""Reads and scales an adopted Deployment; never changes its template or pods.

Problem: external consumers know nothing of slots, so that Fleet can only change their number. It
must know which pods are gone before it removes their members. Choice: one patch of `spec.replicas`,
so that removed pods get their SIGTERM together. It returns when the pods are deleted (their
processes have ended then), or when the new ones are ready. Cost: the ReplicaSet chooses the pods.
"""

from typing import Final

from fleet.clock import Clock
from fleet.decide.adopted import Adopted
from fleet.errors import FleetError
from fleet.kubernetes.client.api import Api, Object, again_on_conflict
from fleet.kubernetes.client.informer import PodInformer
from fleet.kubernetes.client.object_names import MANAGED_LABEL, MANAGER
from fleet.kubernetes.deployment.pod_status import exit_reason, is_gone, is_ready

_SLACK: Final = 120.0
"""Seconds beyond a pod's grace period for it to end, or to get ready."""


def read_adopted(api: Api, name: str) -> Adopted | None:
    """Returns the state of a Deployment; None if it does not exist."""
    found = api.get("Deployment", name)
    return None if found is None else _adopted(found, api.find("Pod", _selector(found))[0])


def scale_adopted(api: Api, name: str, count: int, *, clock: Clock) -> Adopted:
    """Scales to `count` pods; returns when removed pods are gone and new ones are ready."""

    def write() -> Object:
        found = api.get("Deployment", name)
        if found is None:
            raise FleetError(
                f"namespace {api.namespace} has no Deployment {name}; correct runtime.deployment"
            )
        return api.merge("Deployment", name, {"spec": {"replicas": count}}, seen=found) or found

    def is_done(items: tuple[Object, ...]) -> bool:
        living = [p for p in items if not is_gone(p)]
        ended = [p for p in items if "deletionTimestamp" in p["metadata"]]
        return len(living) == count and not ended and all(map(is_ready, living))

    found = again_on_conflict(clock, write)
    template = found["spec"]["template"]["spec"]
    limit = float(template.get("terminationGracePeriodSeconds") or 30) + _SLACK
    with PodInformer(api, _selector(found), clock=clock) as pods:
        if pods.wait(is_done, seconds=limit):
            return _adopted(found, list(pods.items()))
        reasons = [
            f"{p['metadata']['name']}: {exit_reason(p) or 'not ready, no reason given'}"
            for p in pods.items()
            if is_gone(p) or not is_ready(p)
        ]
    raise FleetError(
        f"Deployment {name} did not reach {count} ready pods within {limit:.0f} s: "
        f"{'; '.join(reasons) or 'none is starting'}"
    )


def deployments_of(api: Api) -> tuple[Adopted, ...]:
    """Returns the Deployments of the namespace that are not Fleet's, by name."""
    found, _ = api.find("Deployment")
    others = [d for d in found if (d["metadata"].get("labels") or {}).get(MANAGED_LABEL) != MANAGER]
    return tuple(
        _adopted(each, api.find("Pod", _selector(each))[0])
        for each in sorted(others, key=lambda each: str(each["metadata"]["name"]))
    )


def _adopted(found: Object, pods: list[Object]) -> Adopted:
    living = [p for p in pods if not is_gone(p)]
    return Adopted(
        name=found["metadata"]["name"],
        replicas=int(found["spec"].get("replicas", 1)),
        ready=sum(map(is_ready, living)),
        addresses={
            p["metadata"]["name"]: p["status"]["podIP"]
            for p in living
            if (p.get("status") or {}).get("podIP")
        },
        one_by_one=found["spec"].get("strategy", {}).get("type") != "Recreate",
    )


def _selector(found: Object) -> str:
    """Returns its selector as a query."""
    selector = found["spec"]["selector"]
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for each in selector.get("matchExpressions") or []:
        values = f" ({','.join(each.get('values') or [])})"
        parts.append(
            {
                "In": f"{each['key']} in{values}",
                "NotIn": f"{each['key']} notin{values}",
                "Exists": each["key"],
                "DoesNotExist": f"!{each['key']}",
            }[each["operator"]]
        )
    return ",".join(parts)
