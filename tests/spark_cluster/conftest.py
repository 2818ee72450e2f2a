"""A standalone cluster with a Connect server, and the session's Spark of one machine beside it.

What docs/how-to/remote-spark.md shows is run here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet.act.spark_server import TOKEN_ENV
from tests.support.spark_cluster import Standalone, connect_server, standalone
from tests.worker.conftest import group

__all__ = ["group"]

TOKEN = "of-this-test-alone"


@dataclass(frozen=True)
class Elsewhere:
    """The cluster, and the address of the Connect server in it."""

    cluster: Standalone
    url: str


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """Master, a node of two cores, Connect server, executor: none of it in this process' home."""
    with (
        standalone(tmp_path_factory.mktemp("cluster"), cores=2) as cluster,
        connect_server(cluster, token=TOKEN) as url,
    ):
        yield Elsewhere(cluster, url)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    """In the environment of whoever calls the server."""
    monkeypatch.setenv(TOKEN_ENV, TOKEN)
    return TOKEN


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """For fleet.yaml, tables and whatever a test leaves."""
    return tmp_path
