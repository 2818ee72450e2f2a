"""The chart on the real cluster: from nothing to a fleet by two commands, and back.

What docs/how-to/kubernetes.md shows is run here.
"""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.operator.resource import PLURAL
from tests.conftest import RunningBroker
from tests.kubernetes.test_chart import CHART, done
from tests.support import waiting
from tests.support.declared_fleets import resource, serves
from tests.support.kafka_tools import rebalances

if TYPE_CHECKING:
    from tests.support.kube import Kube

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

JOB = "def process(df, context):\n    df.count()\n"


class Installed:
    """A release in a namespace of its own, and one fleet in another."""

    def __init__(self, kube: "Kube", system: str, namespace: str, broker: RunningBroker) -> None:
        from tests.support.kube import image, in_pods

        self.kube = kube
        self.system = system
        self.namespace = namespace
        self.broker = broker
        self.group = f"orders-{namespace}"
        self.runtime = {k: v for k, v in in_pods(namespace).items() if k != "namespace"}
        self.values = {
            "image": {"name": image("worker"), "pullPolicy": "Never"},
            "clusters": {
                "main": {
                    "cluster": {"bootstrap_servers": broker.bootstrap_servers},
                    "defaults": {"runtime": {"kind": "kubernetes", **self.runtime}},
                }
            },
            "watchNamespaces": [namespace],
            "operator": {"interval": 2},
        }

    def helm(self, *words: str, **values: Any) -> str:
        given = {**self.values, **values} if words[0] in {"install", "upgrade"} else None
        rest = [str(CHART), "--wait", "--timeout", "4m"] if given else []
        return done(
            words[0], "fleet", *rest, *words[1:], "--namespace", self.system,
            values=given, kubeconfig=self.kube.kubeconfig,
        )  # fmt: skip

    def apply(self, *, manager: str = "kubectl", image: str = "", **more: Any) -> None:
        """`kubectl apply -f orders.yaml`, with the job in a ConfigMap beside it."""
        jobs = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "jobs", "namespace": self.namespace},
            "data": {"job.py": JOB},
        }
        mount = {"name": "jobs", "mountPath": "/jobs", "readOnly": True}
        path = {"name": "PYTHONPATH", "value": "/jobs"}
        fleet = {
            "group": self.group,
            "topics": [self.group],
            "create": {"partitions": 4},
            "worker": {"entrypoint": "job:process", **more.pop("worker", {})},
            "replicas": {"min": 1, "max": 4, "standby": 1},
            "scaling": {"policy": "fixed", "workers": 2},
            "rollout": {"bake": "2s", "canary_batches": 1, "warm_timeout": "5m"},
        }
        if image:
            fleet["runtime"] = {"image": image}
        pods = {
            "containers": [{"name": "worker", "volumeMounts": [mount], "env": [path]}],
            "volumes": [{"name": "jobs", "configMap": {"name": "jobs"}}],
        }
        declared = resource("orders", self.namespace, fleet=fleet, podTemplate={"spec": pods})
        declared["spec"].update(more)
        text = yaml.safe_dump_all([jobs, declared])
        asked = ("apply", "--server-side", f"--field-manager={manager}", "-f", "-")
        self.kube.kubectl(*asked, stdin=text)

    def kubectl(self, *words: str) -> str:
        return self.kube.kubectl("-n", self.namespace, *words)

    def found(self) -> dict[str, Any]:
        return dict(json.loads(self.kubectl("get", PLURAL, "orders", "-o", "json")))

    def replicas(self) -> int | None:
        wanted: int | None = self.found()["spec"].get("replicas")
        return wanted

    def until(self, what: str, reached: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:

        def status() -> dict[str, Any]:
            return dict(self.found().get("status") or {})

        waiting.until(
            lambda: reached(status()), what, progress=lambda: str(status()), still=240, every=1.0,
            picture=self.picture,
        )  # fmt: skip
        return status()

    def picture(self) -> str:
        """What the operator said, and the pods."""
        said = self.kube.kubectl("-n", self.system, "logs", "deployment/fleet-operator")
        return said + self.kubectl("get", "pods", "-o", "wide")

    def delete(self) -> None:
        """`kubectl delete`, until the resource is gone."""
        self.kubectl("delete", PLURAL, "orders", "--wait=false")
        waiting.until(
            lambda: not self.kubectl("get", PLURAL, "-o", "name").strip(), "the fleet to be gone",
            progress=lambda: self.kubectl("get", "pods", "-o", "name"), still=240, every=1.0,
            picture=self.picture,
        )  # fmt: skip

    def recorded(self) -> int:
        """How many rebalances the group has had, by DumpLogSegments."""
        return rebalances(self.broker.broker, self.group)

    def members(self) -> int:
        """How many members the group has, by the broker."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        found = admin.describe_consumer_groups([self.group])[self.group].result(60)
        return len(found.members)


@pytest.fixture
def installed(kube: "Kube", kube_broker: RunningBroker, namespace: str) -> Iterator[Installed]:
    with kube.namespace(f"{namespace}-system") as system:
        yield Installed(kube, system, namespace, kube_broker)


def test_from_nothing_to_a_fleet_and_back(installed: Installed) -> None:
    """Installed, upgraded, declared; drained and uninstalled, and nothing is left."""
    installed.helm("install")
    installed.helm("upgrade", exporter={"enabled": False})
    installed.apply()
    installed.until("two slots to work", serves(2))
    assert installed.members() == 2
    head, row = installed.kubectl("get", PLURAL).splitlines()
    assert head.split() == [
        *("NAME", "SLOTS", "OWNED", "STANDBYS", "LAG", "STORM", "CHANGE", "READY", "REASON", "AGE")
    ]
    assert row.split()[1:8] == ["2", "2", "1", "0", "false", "done", "True"]
    assert "Planned" in installed.kubectl("describe", PLURAL, "orders")

    installed.delete()
    assert installed.members() == 0
    slug = ObjectNames("main", installed.group).slug
    kinds = ("get", "deploy,pods,leases,pdb,role,sa", "-l", f"fleet/name={slug}")
    # A kubelet removes a pod a moment after its containers have ended.
    waiting.until(lambda: not installed.kubectl(*kinds).strip(), "nothing of it to be left")
    installed.helm("uninstall", "--wait")
    left = installed.kube.kubectl("-n", installed.system, "get", "deploy,sa,role", "-o", "name")
    assert left.split() == ["serviceaccount/default"]


@pytest.mark.long
def test_a_fleet_changes_as_its_resource_does(installed: Installed) -> None:
    """Rolled beside an upgrade of the chart, rolled back, scaled from outside: +3 is at most two
    rebalances, -3 one.
    """
    installed.helm("install")
    installed.apply()
    status = installed.until("two slots to work", serves(2))
    first = status["change"]["plan"]
    installed.apply(worker={"log_level": "debug"})
    installed.until("the roll to begin", lambda s: s["change"]["plan"] != first)
    installed.apply(manager="argocd", worker={"log_level": "debug"})  # no conflict
    installed.helm("upgrade", exporter={"enabled": False})  # another operator goes on
    status = installed.until("the roll to end", serves(2))
    assert status["change"]["state"] == "done"
    assert status["change"]["plan"] != first
    assert (status["lastReceipt"]["rebalances"], status["lastReceipt"]["result"]) == (0, "equal")
    assert status["observedGeneration"] == 2

    installed.apply(worker={"log_level": "debug"}, image="localhost/no-such-image:1")
    status = installed.until("the roll back", lambda s: "RolledBack" in str(s["conditions"]))
    assert status["slots"] == {"open": 2, "owned": 2, "ready": 2}
    kinds = {c["type"]: c["status"] for c in status["conditions"]}
    assert kinds == {"Ready": "False", "Reconciling": "False", "Stalled": "True"}
    assert "ErrImageNeverPull" in status["change"]["message"]
    installed.apply(worker={"log_level": "debug"})
    installed.until("the old image to be wanted again", serves(2))

    installed.apply(scaling={"policy": "external"})
    installed.until("replicas to be written", lambda _: installed.replicas() == 2)
    installed.kubectl("scale", PLURAL, "orders", "--replicas=1")
    installed.until("one slot to work", serves(1))
    before = installed.recorded()
    installed.kubectl("scale", PLURAL, "orders", "--replicas=9")
    status = installed.until(
        "four slots to work", lambda s: serves(4)(s) and "spec.replicas is 9" in str(s)
    )
    up = installed.recorded() - before
    assert 1 <= up <= 2
    assert status["lastReceipt"]["rebalances"] == up
    owners = installed.kubectl("get", "pods", "-l", status["selector"], "-o", "name").split()
    assert len(owners) == status["replicas"] == 4
    installed.kubectl("scale", PLURAL, "orders", "--replicas=1")
    status = installed.until("one slot to work", serves(1))
    assert installed.recorded() - before - up == 1
    assert status["lastReceipt"]["rebalances"] == 1
    installed.delete()
