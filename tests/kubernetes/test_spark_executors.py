"""A Spark server whose executors are pods of Spark's own Kubernetes scheduler."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tests.kubernetes.test_chart import VALUES, rendered
from tests.kubernetes.test_spark_elsewhere import tell_places, told
from tests.support.kube import Kube, in_pods
from tests.support.pod_shop import PodShop
from tests.support.workshop import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.long]

EXECUTORS = 2


def test_executors_are_pods(
    kube: Kube,
    namespace: str,
    pod_shop: Callable[..., PodShop],
    policies: None,
) -> None:
    """3,000 records by ranges; one executor is killed, then the driver, and nothing is lost.

    All of it under the chart's policies, in a namespace that enforces `restricted`.
    """
    enforced = "pod-security.kubernetes.io/enforce=restricted"
    kube.kubectl("label", "namespace", namespace, enforced)
    executors = {"instances": EXECUTORS, "cpu": "500m", "memory": "600m"}
    spark = {**in_pods(namespace)["spark"], "executors": executors}
    spark.pop("master")
    shop = pod_shop(namespace, runtime={"spark": spark})
    places = tell_places(shop, 'os.environ["SPARK_EXECUTOR_POD_NAME"]')
    shop.apply()

    until(lambda: len(running(kube, namespace)) == EXECUTORS, 180, "the executors to run")
    first = set(running(kube, namespace))
    shop.produce_to(shop.topic, 3000)
    assert shop.lost_and_duplicates() == (0, 0)
    assert told(shop.bootstrap, places) <= first
    no_secret_is_shown(kube, namespace)

    victim = min(first)
    kube.kubectl("-n", namespace, "delete", "pod", victim, "--force", "--grace-period=0")
    shop.produce_to(shop.topic, 3000)
    assert shop.lost_and_duplicates()[0] == 0
    until(lambda: len(running(kube, namespace)) == EXECUTORS, 180, "another executor")
    second = set(running(kube, namespace))
    assert victim not in second

    driver = "app.kubernetes.io/name=fleet-spark"
    kube.kubectl("-n", namespace, "delete", "pod", "-l", driver, "--force", "--grace-period=0")
    until(lambda: not second & set(running(kube, namespace)), 180, "its executors to go with it")
    until(lambda: len(running(kube, namespace)) == EXECUTORS, 300, "those of another driver")
    shop.produce_to(shop.topic, 3000)
    assert shop.lost_and_duplicates()[0] == 0


@pytest.fixture
def policies(kube: Kube, namespace: str) -> Iterator[None]:
    """The chart's policies for Spark servers of this namespace."""
    made = rendered(namespace, {**VALUES, "watchNamespaces": [namespace]})
    own = [o for o in made if f"{namespace}-fleet-spark" in o["metadata"]["name"]]
    assert len(own) == 4
    text = yaml.safe_dump_all(own)
    kube.kubectl("apply", "-f", "-", stdin=text)
    yield
    kube.kubectl("delete", "-f", "-", stdin=text)


def no_secret_is_shown(kube: Kube, namespace: str) -> None:
    """Driver and executors take it from a file; a pod's description holds neither it nor a key."""
    pods = items(kube, namespace, "app.kubernetes.io/name=fleet-spark-executor")
    assert len(pods) == EXECUTORS
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        assert not [e["name"] for e in container["env"] if re.search("SECRET|TOKEN", e["name"])]
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert [each["kind"] for each in pod["metadata"]["ownerReferences"]] == ["Pod"]
        assert container["envFrom"] == [{"secretRef": {"name": "quick-jvm"}}]


def running(kube: Kube, namespace: str) -> list[str]:
    found = items(kube, namespace, "app.kubernetes.io/name=fleet-spark-executor")
    live = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
    return [pod["metadata"]["name"] for pod in live if pod["status"].get("phase") == "Running"]


def items(kube: Kube, namespace: str, label: str) -> list[dict[str, Any]]:
    said = kube.kubectl("-n", namespace, "get", "pods", "-l", label, "-o", "json")
    return list(json.loads(said)["items"])
