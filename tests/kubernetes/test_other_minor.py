"""A part of other tests, on the API server of the minor version that they do not use.

It takes definition, policies and rights of the chart, what Fleet applies, and Leases. Long form,
skipped until the version is built. `FLEET_KUBERNETES=MINOR make test ARGS="-m kubernetes"` runs all
tests on it.
"""

from collections.abc import Iterator

import pytest

from k8s.cluster import programs
from tests.kubernetes.test_chart_rights import (
    shop,
    test_a_token_of_another_pod_writes_nothing,
    test_a_worker_takes_a_slot_of_its_fleet_for_itself,
    test_an_operator_does_its_work,
    test_an_operator_has_no_right_to,
    test_an_operator_writes_only_what_is_fleets,
)
from tests.kubernetes.test_operator import place, test_the_server_refuses_what_fleet_yaml_refuses
from tests.kubernetes.test_server_side import api, test_the_server_takes_a_fleet_and_its_pods
from tests.support.kube_api import KubeApi

__all__ = [
    "api",
    "place",
    "shop",
    "test_a_token_of_another_pod_writes_nothing",
    "test_a_worker_takes_a_slot_of_its_fleet_for_itself",
    "test_an_operator_does_its_work",
    "test_an_operator_has_no_right_to",
    "test_an_operator_writes_only_what_is_fleets",
    "test_the_server_refuses_what_fleet_yaml_refuses",
    "test_the_server_takes_a_fleet_and_its_pods",
]
pytestmark = [pytest.mark.kubernetes, pytest.mark.long]


@pytest.fixture(scope="module")
def kube_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    """Of the other version, as all programs are until the end of this file."""
    (other,) = set(programs.VERSIONS) - {programs.minor()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLEET_KUBERNETES", other)
        if programs.missing():
            pytest.skip(f"not built: run FLEET_KUBERNETES={other} make programs")
        server = KubeApi(tmp_path_factory.mktemp("other-minor"))
        try:
            yield server.start()
        finally:
            server.stop()


@pytest.fixture(scope="module")
def control_plane(kube_api: KubeApi) -> KubeApi:
    """Without controllers: these tests have no need of them."""
    return kube_api


def test_it_is_the_other_version(kube_api: KubeApi) -> None:
    """Its own word."""
    assert kube_api.send("GET", "/version", None)["gitVersion"] == f"v{programs.version()}"
