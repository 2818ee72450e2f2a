"""Every store of slots, in a fresh place."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slots.opened import Stores

ON_KUBERNETES = [
    pytest.param("manager", marks=pytest.mark.kubernetes),
    pytest.param("follower", marks=pytest.mark.kubernetes),
    pytest.param("worker", marks=pytest.mark.kubernetes),
]


def _stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    if request.param in {"memory", "sqlite"}:
        stores = Stores(request.param, tmp_path)
    else:
        kube_api = request.getfixturevalue("kube_api")
        config = str(kube_api.kubeconfig())
        stores = Stores(request.param, tmp_path, config, kube_api.namespace())
    yield stores
    stores.close()


@pytest.fixture(params=["memory", "sqlite", *ON_KUBERNETES])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    """One place of state, opened as often as a test likes."""
    yield from _stores(request, tmp_path)


@pytest.fixture(params=["sqlite", ON_KUBERNETES[2]])
def racing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    """The same for many processes: on Kubernetes only workers race."""
    yield from _stores(request, tmp_path)


@pytest.fixture
def store(stores: Stores) -> Any:
    """One store."""
    return stores.open()
