"""What a Spark server may do by the chart's rights, tried with its token on a real API server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fleet.act.spark_server import TOKEN_ENV
from fleet.config.spec import FleetSpec
from fleet.errors import Refused
from fleet.kubernetes.client.api import Api, Object, Request
from fleet.kubernetes.deployment.spark_servers import ensure_spark
from fleet.kubernetes.manifests.spark_objects import spark_servers
from fleet.system.ports import free_ports, is_listening
from tests.kubernetes.test_chart_rights import Shop, object_of, refusal, shop
from tests.support import waiting
from tests.support.declared import ON_KUBERNETES, declaration, fleet_spec

pytestmark = pytest.mark.kubernetes
__all__ = ["shop"]

SUFFIX = "5d9f8c7b6d-x2x4z"


def spec_of(namespace: str, **runtime: Any) -> FleetSpec:
    """Two fleets with Secrets of their own, as the chart's defaults have them."""
    place = {
        **ON_KUBERNETES,
        "namespace": namespace,
        "service_account": "fleet-worker",
        "spark": {"executors": {"instances": 2}},
        **runtime,
    }
    groups: dict[str, dict[str, Any]] = {
        "orders": {"env_from": ["kafka"], "mounts": {"kafka-tls": "/tls"}},
        "payments": {"env_from": ["kafka"]},
    }
    return fleet_spec(
        *(declaration(group, runtime={**place, **own}) for group, own in groups.items())
    )


class Driver:
    """The pod of a Spark server, whose code calls the API server with the pod's token."""

    def __init__(self, shop: Shop, server: str, template: Object) -> None:
        self.shop, self.server, self.template = shop, server, template
        self.name = f"{server}-{SUFFIX}"
        made = object_of("Pod", self.name, spec={"containers": [{"name": "spark", "image": "s:1"}]})
        made["spec"]["serviceAccountName"] = "fleet-spark"
        self.bound = shop.admin.apply(made)
        self.user = shop.server.account(shop.namespace, "fleet-spark", pod=self.bound)
        self.api = shop.server.api(shop.namespace, self.user)

    def executor(self, **changed: Any) -> Object:
        """An executor as Spark makes it; what is changed in its metadata, spec or container."""
        made: Object = json.loads(json.dumps(self.template))
        made["metadata"] |= {"name": f"exec-{self.server}", "ownerReferences": [self.reference()]}
        (container,) = made["spec"]["containers"]
        address = {"fieldRef": {"fieldPath": "status.podIP"}}
        container["env"].append({"name": "SPARK_EXECUTOR_POD_IP", "valueFrom": address})
        made["spec"]["volumes"].append({"name": "spark-local-dir-1", "emptyDir": {}})
        made["metadata"] |= changed.pop("metadata", {})
        container |= changed.pop("container", {})
        made["spec"]["volumes"] += changed.pop("volumes", [])
        made["spec"] |= changed
        return made

    def reference(self) -> Object:
        meta = self.bound["metadata"]
        return {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}


Drivers = tuple[Driver, Driver]


def create(api: Api, wanted: Object, *, trial: bool = True) -> object:
    """Creates a pod as Spark does; by default without storing it."""
    query = [("dryRun", "All")] if trial else []
    path = api._path("Pod", "").rstrip("/")
    return api._call(Request("POST", path, body=wanted, query=query))


def delete_all(api: Api, server: str) -> object:
    """Deletes all executors of a server in one request: its own pod has the same instance."""
    path = api._path("Pod", "").rstrip("/")
    query = [("labelSelector", executors_of(server))]
    return api._call(Request("DELETE", path, query=query))


def executors_of(server: str) -> str:
    return f"app.kubernetes.io/name=fleet-spark-executor,app.kubernetes.io/instance={server}"


@pytest.fixture(scope="module")
def drivers(shop: Shop) -> Iterator[Drivers]:
    """The servers of two fleets with different Secrets; the operator has made both."""
    spec = spec_of(shop.namespace)
    ensure_spark(spec, shop.operator)
    made: list[Driver] = []
    for server in spark_servers(spec):
        found = shop.admin.get("Deployment", server) or {}
        env = found["spec"]["template"]["spec"]["containers"][0]["env"]
        pod = next(e["value"] for e in env if e["name"] == "FLEET_SPARK_EXECUTOR_POD")
        made.append(Driver(shop, server, json.loads(pod)))
    for each in made:  # a policy hears of Deployments a moment later
        act = partial(create, each.api, each.executor(container={"image": "other:1"}))
        waiting.until(lambda: "only the image" in refusal(act), "the policies")  # noqa: B023
    yield made[0], made[1]
    for each in made:
        each.api.close()


def test_a_server_creates_its_executors_and_deletes_them(drivers: Drivers) -> None:
    """One by one and all at once; it sees no Secret and no other namespace."""
    for driver in drivers:
        create(driver.api, driver.executor(), trial=False)
        assert driver.api.delete("Pod", f"exec-{driver.server}")
        create(driver.api, driver.executor(), trial=False)
        delete_all(driver.api, driver.server)
        assert driver.api.get("Pod", f"exec-{driver.server}") is None
        assert "forbidden" in refusal(partial(driver.api.get, "Secret", "fleet-spark"))
    elsewhere = drivers[0].shop.server.account(drivers[0].shop.namespace, "fleet-spark")
    with drivers[0].shop.server.api(drivers[0].shop.system, elsewhere) as api:
        assert "forbidden" in refusal(partial(api.find, "Pod"))


ACCOUNT, ONLY = "no account of its own", "only the image and the Secrets"
PRIVILEGE, OWN = "unprivileged", "own executors"
SECRET = {"name": "a", "secret": {"secretName": "kafka-tls"}}
TOKENS = {"name": "a", "secret": {"secretName": "fleet-spark"}}
PROJECTED = {"name": "a", "projected": {"sources": [{"secret": {"name": "kafka"}}]}}
HOST = {"name": "a", "hostPath": {"path": "/"}}
KEY = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "fleet-spark", "key": "token"}}}
SECURE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
INIT = {"name": "i", "image": "other:1", "securityContext": SECURE}
ADDED = {"allowPrivilegeEscalation": False, "capabilities": {"add": ["NET_ADMIN"]}}
ESCALATED = {**SECURE, "privileged": True, "allowPrivilegeEscalation": True}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"serviceAccountName": "fleet-spark"}, ACCOUNT),
        ({"serviceAccountName": "fleet-worker"}, ACCOUNT),
        ({"automountServiceAccountToken": True}, ACCOUNT),
        ({"volumes": [SECRET]}, ONLY),
        ({"volumes": [TOKENS]}, ONLY),
        ({"volumes": [PROJECTED]}, ONLY),
        ({"volumes": [HOST]}, ONLY),
        ({"container": {"image": "other:1"}}, ONLY),
        ({"container": {"envFrom": [{"secretRef": {"name": "bank"}}]}}, ONLY),
        ({"container": {"env": [KEY]}}, ONLY),
        ({"initContainers": [INIT]}, ONLY),
        ({"container": {"securityContext": ESCALATED}}, PRIVILEGE),
        ({"container": {"securityContext": {**SECURE, "runAsNonRoot": False}}}, PRIVILEGE),
        ({"container": {"securityContext": ADDED}}, PRIVILEGE),
        ({"securityContext": {}}, PRIVILEGE),
        ({"hostNetwork": True}, PRIVILEGE),
        ({"metadata": {"labels": {"app.kubernetes.io/name": "fleet-worker"}}}, OWN),
        ({"metadata": {"labels": {}}}, OWN),
        ({"metadata": {"ownerReferences": []}}, "belongs to the pod"),
    ],
)
def test_an_executor_has_no_more_than_its_server(
    drivers: Drivers, change: dict[str, Any], why: str
) -> None:
    """The code of a fleet runs in its server; the second server has fewer Secrets."""
    _, driver = drivers
    assert why in refusal(partial(create, driver.api, driver.executor(**change)))


@pytest.mark.spark
def test_spark_creates_executors_and_runs_tasks_in_them(drivers: Drivers, tmp_path: Path) -> None:
    """By its own scheduler, with the server's token and under the policies.

    No node runs the pods: this test starts what each of them describes.
    """
    driver, _ = drivers
    secret = tmp_path / "token"
    secret.write_text("of-this-test-alone")
    (port,) = free_ports(1)
    program = (
        "from fleet.act import spark_server as s; "
        f"s.SECRET_FILE = {str(secret)!r}; s.main(['--listen', '127.0.0.1:{port}'])"
    )
    given = os.environ | {
        "FLEET_HOME": str(tmp_path),
        "FLEET_SPARK_MASTER": f"k8s://{driver.shop.server.url}",
        "FLEET_SPARK_MEMORY": "512m",
        "FLEET_SPARK_EXECUTORS": json.dumps({"instances": 1, "cores": 1, "memory": "512m"}),
        "FLEET_SPARK_EXECUTOR_POD": json.dumps(driver.template),
        "KUBECONFIG": str(driver.shop.server.kubeconfig(driver.user)),
        "POD_NAME": driver.name,
        TOKEN_ENV: "of-this-test-alone",
    }
    find = partial(driver.shop.admin.find, "Pod", executors_of(driver.server))
    log = tmp_path / "log"
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str, environ: Mapping[str, str]) -> None:
        with log.open("a") as out:
            process = subprocess.Popen(
                [sys.executable, *words], env=environ, stdout=out, stderr=out
            )
            started.append(process)

    try:
        start("-c", program, environ=given)
        waiting.until(lambda: find()[0] or started[0].poll() is not None, "an executor")
        (pod,) = find()[0]
        assert "of-this-test-alone" not in json.dumps(pod)
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"] == {"memory": "896Mi"}
        told = {e["name"]: e.get("value") or "127.0.0.1" for e in container["env"]}
        told |= {name: str(tmp_path) for name in ("FLEET_HOME", "HOME", "SPARK_LOCAL_DIRS")}
        start("-m", "fleet.act.spark_server", *container["args"], environ=os.environ | told)
        waiting.until(lambda: is_listening(started[0].pid, port), "the server")
        done = subprocess.run(
            ["timeout", "60", sys.executable, "-c", CALL],
            env={**given, "PORT": str(port)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout.split() == ["4950"], f"{done.stderr[-900:]}{log.read_text()[-3000:]}"
    finally:
        started[0].terminate()
        for each in started:
            each.wait(60)
    waiting.until(lambda: not find()[0], "its executors to go with it")


CALL = """
import os
from pyspark.sql.connect.session import SparkSession
spark = SparkSession.builder.remote(f"sc://localhost:{os.environ['PORT']}").getOrCreate()
rows = spark.range(100, numPartitions=4).mapInArrow(lambda batches: batches, "id long").collect()
print(sum(row.id for row in rows))
"""


def test_a_server_cannot_pass_for_another(drivers: Drivers) -> None:
    """Neither by the label of an executor nor by a token without its pod."""
    first, second = drivers
    assert OWN in refusal(partial(create, second.api, first.executor()))
    create(first.api, first.executor(), trial=False)
    assert OWN in refusal(partial(second.api.delete, "Pod", f"exec-{first.server}"))
    assert OWN in refusal(partial(second.api.delete, "Pod", first.name))
    assert OWN in refusal(partial(delete_all, second.api, first.server))
    delete_all(first.api, first.server)
    shop = first.shop
    names = ("fleet-spark", f"{first.server}-more-{SUFFIX}")
    pods = [shop.admin.apply({**first.bound, "metadata": {"name": name}}) for name in names]
    for pod in (None, *pods):
        with shop.server.api(
            shop.namespace, shop.server.account(shop.namespace, "fleet-spark", pod=pod)
        ) as api:
            assert OWN in refusal(partial(create, api, first.executor()))


def test_an_operator_makes_no_account_for_spark(shop: Shop) -> None:
    """It says what is missing, and who can create it."""
    spec = spec_of(shop.namespace, service_account=None)
    with pytest.raises(
        Refused, match=r"(?s)need ServiceAccount fleet-spark, .* install the Helm chart"
    ):
        ensure_spark(spec, shop.operator)
