"""A fleet's objects and its Spark server's, as a real API server judges them: by dry run."""

from collections.abc import Iterator

import pytest

from fleet.config.spec import FleetSpec
from fleet.kubernetes.client.api import Api
from fleet.kubernetes.client.object_names import SPARK
from fleet.kubernetes.deployment.spark_servers import ensure_tokens
from fleet.kubernetes.manifests.deployment_objects import fleet_objects
from fleet.kubernetes.manifests.spark_objects import spark_objects, spark_servers
from tests.support.declared import ON_KUBERNETES, declaration, fleet_spec, settings_of
from tests.support.kube_api import KubeApi, pod_of

pytestmark = pytest.mark.kubernetes

ODD = {"env_from": ["kafka.login", "k" * 63], "mounts": {"tls.v1": "/tls", "m" * 63: "/more"}}
"""Dots and the longest name."""


@pytest.fixture(scope="module")
def api(kube_api: KubeApi) -> Iterator[Api]:
    """A namespace that enforces the restricted Pod Security Standard."""
    with kube_api.api(kube_api.namespace(enforce="restricted")) as made:
        yield made


def spec_in(api: Api) -> FleetSpec:
    """Two fleets, each with a Spark server of its own."""
    place = {**ON_KUBERNETES, "namespace": api.namespace}
    return fleet_spec(
        declaration("plain", runtime=place), declaration("odd", runtime={**place, **ODD})
    )


def test_the_server_takes_a_fleet_and_its_pods(api: Api) -> None:
    """Of workers and Spark servers, whatever their Secrets are called."""
    spec = spec_in(api)
    fleets = [
        each
        for group in spec.fleets
        for each in fleet_objects(settings_of(group, cluster=spec.cluster))
    ]
    objects = [*spark_objects(spec), *fleets]
    pods = [pod_of(each) for each in objects if each["kind"] == "Deployment"]
    for each in (*objects, *pods):
        assert api.apply(each, trial=True)["metadata"]["name"] == each["metadata"]["name"]
    assert len(spark_servers(spec)) == 2
    assert len(pods) == 4
    assert api.get("Deployment", SPARK) is None


def test_a_new_servers_token_is_added_to_the_secret(api: Api) -> None:
    """By whoever made the Secret; what is there stays."""
    ensure_tokens(api, [SPARK])
    before = (api.get("Secret", SPARK) or {})["data"]
    ensure_tokens(api, [SPARK, "fleet-spark-ab"])
    after = (api.get("Secret", SPARK) or {})["data"]
    assert after.items() > before.items()
    assert set(after) == {"token", "token-ab"}
    assert after["token"] != after["token-ab"]
