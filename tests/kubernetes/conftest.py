"""A control plane without nodes, and fleets of pods on a whole cluster.

What docs/contributing/README.md shows is run here.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kube_api import KubeApi
from tests.support.kube_controllers import controllers
from tests.support.nodeless import Ground
from tests.support.pod_shop import PodShop


@pytest.fixture(scope="session")
def control_plane(kube_api: KubeApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    """API server and controllers of the session: use a namespace of your own."""
    with controllers(kube_api, tmp_path_factory.mktemp("controllers")) as server:
        yield server


@pytest.fixture
def ground(control_plane: KubeApi) -> Iterator[Ground]:
    """One fleet's Deployment on controllers without nodes."""
    with control_plane.api(control_plane.namespace()) as api:
        found = Ground(api)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture
def pod_shop(
    kube: Any, kube_broker: Any, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., PodShop]]:
    """Makes workshops whose workers are pods of one namespace; at the end nothing of them runs."""
    from tests.support.kube import in_pods

    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig))
    made: list[PodShop] = []

    def new(group: str, *, runtime: dict[str, Any] | None = None, **worker: Any) -> PodShop:
        told = {**in_pods(namespace), **(runtime or {})}
        shop = PodShop(tmp_path, kube_broker.bootstrap_servers, group, runtime=told, **worker)
        made.append(shop)
        return shop

    yield new
    for shop in made:
        with shop.fleet() as fleet:
            fleet.down(purge=True)


@pytest.fixture
def pod_broker(kube_broker: Any) -> Any:
    """The broker that pods reach, for those who count its records."""
    return kube_broker.broker
