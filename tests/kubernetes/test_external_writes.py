"""Who else changed a Deployment that Fleet applies, by the API server's own records."""

import pytest

from fleet.kubernetes.client.api import Request, transmit
from fleet.kubernetes.deployment.external_writes import external_writes
from fleet.kubernetes.manifests import deployment_objects
from tests.support.nodeless import Ground, patched

pytestmark = pytest.mark.kubernetes


def found(ground: Ground) -> tuple[str, ...]:
    deployment = ground.api.get("Deployment", ground.names.deployment)
    assert deployment is not None
    return external_writes(deployment)


def test_a_writer_is_named_with_its_fields(ground: Ground) -> None:
    """`kubectl edit` of the image and of the number; what Fleet applies again is Fleet's again."""
    ground.running(2)
    ground.start("one", 1)  # by a patch, which is Fleet's as well
    assert found(ground) == ()
    pod = {"spec": {"containers": [{"name": "worker", "image": "by-hand"}]}}
    patched(ground, manager="kubectl-edit", body={"spec": {"replicas": 5, "template": pod}})
    (write,) = found(ground)
    fields = "replicas, template.spec.containers[worker].image"
    assert write.startswith(f"kubectl-edit changed {fields} at 20")
    ground.api.apply(deployment_objects.deployment(ground.settings("one"), replicas=3))
    assert found(ground) == ()


def test_the_same_manifests_by_another_manager_are_no_change(ground: Ground) -> None:
    """Argo CD applies what Fleet renders, with force: both own it, and nothing conflicts."""
    ground.running(2)
    ground.until(lambda: ground.state().is_complete)
    before = ground.state()
    same = deployment_objects.deployment(ground.settings("one"), replicas=2)
    patched(ground, manager="argocd-controller", body=same, force=True)
    assert found(ground) == ()
    ground.stays({"one": 2}, seconds=1.0)
    assert ground.state() == before


def test_a_deployment_of_others_is_theirs(ground: Ground) -> None:
    """Created by kubectl from rendered manifests: Fleet has never applied it."""
    made = deployment_objects.deployment(ground.settings("one"), replicas=1)
    path = f"/apis/apps/v1/namespaces/{ground.api.namespace}/deployments"
    request = Request("POST", path, body=made, query=[("fieldManager", "kubectl")])
    assert transmit(ground.api.connection, request, (5.0, 20.0)).status == 201
    assert found(ground) == ()
