"""Who else scales the same Deployment: a HorizontalPodAutoscaler, KEDA's among them.

Problem: two that write `spec.replicas` undo each other every few seconds, and each undoing ends
pods that hold slots. Choice: every autoscaler on the same scaleTargetRef is named, and a plan is
refused while there is one. KEDA works through an autoscaler that its ScaledObject owns. Cost: an
autoscaler of a kind of its own (a VPA, a cron that scales) is not seen.
"""

from dataclasses import dataclass

from fleet.kubernetes.client.api import Api


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """One HPA."""

    name: str
    target: str
    scaled_object: str | None
    """KEDA's, that owns it."""

    def __str__(self) -> str:
        if self.scaled_object is not None:
            return f"KEDA's ScaledObject {self.scaled_object} (its autoscaler {self.name})"
        return f"the HorizontalPodAutoscaler {self.name}"

    @property
    def remedy(self) -> str:
        """What to delete, or what to stop."""
        if self.scaled_object is not None:
            return f"kubectl -n NAMESPACE delete scaledobject {self.scaled_object}"
        return f"kubectl -n NAMESPACE delete hpa {self.name}"


def autoscalers_of(api: Api, deployment: str) -> tuple[Autoscaler, ...]:
    """Those that scale this Deployment."""
    found = []
    for each in api.find("HorizontalPodAutoscaler")[0]:
        target = each["spec"].get("scaleTargetRef") or {}
        if target.get("kind") != "Deployment" or target.get("name") != deployment:
            continue
        owners = each["metadata"].get("ownerReferences") or []
        keda = [o["name"] for o in owners if o.get("kind") == "ScaledObject"]
        found.append(Autoscaler(each["metadata"]["name"], deployment, keda[0] if keda else None))
    return tuple(found)


def named(rival: Autoscaler, group: str) -> str:
    """The reason against a plan, and what lifts it."""
    return (
        f"{rival} scales Deployment {rival.target} of group {group} as well: two that write its "
        "replicas undo each other, and each time members come or go; delete it, or stop managing "
        f"with `fleet release {group}`"
    )
