"""The ordinary Deployment for comparison: dynamic members, a rolling update as Kubernetes does it.

Nothing of Fleet is in it but the image's Python and confluent-kafka. Its consumers are gentle
ones: they finish their batch, commit and leave at SIGTERM, and a pod is ready only when it has
partitions, so that the next one is not restarted before.
"""

import json
from pathlib import Path
from typing import Any

from fleet.clock import SystemClock
from fleet.demo.measure import await_settled
from tests.support.kube import Kube, image
from tests.support.pod_shop import PodShop

NAME = "ordinary"
SOURCE = Path(__file__).with_name("ordinary_consumer.py")


class OrdinaryPods:
    """As many consumers as the shop has slots, in its namespace, on its topic."""

    def __init__(self, kube: Kube, shop: PodShop, *, replicas: int, assignor: str) -> None:
        self.kube = kube
        self.shop = shop
        self.group = f"{shop.group}-{NAME}"
        self.replicas = replicas
        self.environment = {
            "SERVERS": shop.bootstrap,
            "GROUP": self.group,
            "TOPIC": shop.topic,
            "JOURNAL_TOPIC": shop.journal_topic,
            "ASSIGNOR": assignor,
        }

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl in the shop's namespace."""
        return self.kube.kubectl("-n", self.shop.namespace, *words, stdin=stdin)

    def apply(self) -> None:
        """`kubectl apply`; returns when all pods are ready."""
        listed = {"apiVersion": "v1", "kind": "List", "items": [self._code(), self._deployment()]}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(listed))
        self._rolled_out()

    def restart(self) -> None:
        """`kubectl rollout restart`; returns when it is over and the old pods are gone."""
        self.kubectl("rollout", "restart", f"deployment/{NAME}")
        self._rolled_out()
        self.settle()

    def delete(self) -> None:
        """No more of it."""
        self.kubectl("delete", f"deployment/{NAME}", "--wait=false")

    def settle(self) -> None:
        """Wait until no further round is to come [25]."""
        with self.shop.fleet() as fleet:
            await_settled(fleet, self.group, clock=SystemClock())
            members = fleet.snapshot([self.group]).groups[self.group].members
        assert len(members) == self.replicas, [m.client_id for m in members]

    def _rolled_out(self) -> None:
        self.kubectl("rollout", "status", f"deployment/{NAME}", "--timeout=80s")

    def _code(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME},
            "data": {"consumer.py": SOURCE.read_text()},
        }

    def _deployment(self) -> dict[str, Any]:
        labels = {"app": NAME}
        container = {
            "name": "consumer",
            "image": image("worker"),
            "imagePullPolicy": "Never",
            "command": ["python3", "/etc/consumer/consumer.py"],
            "env": [{"name": key, "value": value} for key, value in self.environment.items()],
            "volumeMounts": [{"name": "code", "mountPath": "/etc/consumer"}],
            "readinessProbe": {"exec": {"command": ["test", "-f", "/tmp/ready"]},
                               "periodSeconds": 1},
        }  # fmt: skip
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": NAME},
            "spec": {
                "replicas": self.replicas,
                "strategy": {"type": "RollingUpdate"},
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "containers": [container],
                        "volumes": [{"name": "code", "configMap": {"name": NAME}}],
                    },
                },
            },
        }
