"""Delta Lake and Iceberg in an object store: written by the worker and by Spark's tasks.

The store is moto's S3 server; Spark is a test's own, since its tasks find the login in their
environment.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fleet.system.ports import on_free_ports
from fleet.testing import local_spark
from tests.sinks.cases import SINKS, Place, batch, range_of
from tests.support.waiting import until

pytestmark = pytest.mark.spark

BUCKET = "lake"
LOGIN = {
    "LAKE_ENDPOINT": "",
    "LAKE_REGION": "us-east-1",
    "LAKE_KEY": "key",
    "LAKE_SECRET": "secret",
}
STORE = {
    "endpoint": "LAKE_ENDPOINT",
    "region": "LAKE_REGION",
    "access_key_id": "LAKE_KEY",
    "secret_access_key": "LAKE_SECRET",
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server with one bucket."""
    with on_free_ports("moto", _served) as address:
        yield address


@contextmanager
def _served(port: int) -> Iterator[str]:
    import boto3

    address = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(  # of its own: delta-rs lets no other thread run meanwhile
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    client = boto3.client(
        "s3",
        endpoint_url=address,
        region_name=LOGIN["LAKE_REGION"],
        aws_access_key_id=LOGIN["LAKE_KEY"],
        aws_secret_access_key=LOGIN["LAKE_SECRET"],
    )
    try:

        def up() -> bool:
            assert server.poll() is None, "moto ended"
            return answers(client)

        until(up, "the store to answer")
        client.create_bucket(Bucket=BUCKET)
        yield address
    finally:
        server.terminate()
        server.wait(120)


def answers(client: Any) -> bool:
    """Whether the server is up."""
    from botocore.exceptions import EndpointConnectionError

    try:
        client.list_buckets()
    except EndpointConnectionError:
        return False
    return True


@pytest.fixture(scope="module")
def login(endpoint: str) -> Iterator[None]:
    """In this process's environment, and so in that of Spark's tasks."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**LOGIN, "LAKE_ENDPOINT": endpoint}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def own_spark(login: None) -> Iterator[Any]:
    """A session whose tasks know the login."""
    with local_spark() as made:
        yield made


@pytest.fixture(params=["delta", "iceberg"])
def place(request: pytest.FixtureRequest, endpoint: str, tmp_path: Any) -> tuple[str, Place]:
    """A sink and where it writes."""
    if request.param == "delta":
        return "delta", {"path": f"s3://{BUCKET}/delta", "store": json.dumps(STORE)}
    catalog = {
        "warehouse": f"s3://{BUCKET}/iceberg",
        "s3.endpoint": endpoint,
        "s3.region": LOGIN["LAKE_REGION"],
        "s3.access-key-id": LOGIN["LAKE_KEY"],
        "s3.secret-access-key": LOGIN["LAKE_SECRET"],
    }
    return "iceberg", {
        "path": str(tmp_path),
        "catalog": json.dumps(catalog),
        "store": json.dumps(STORE),
    }


def test_each_record_once(place: tuple[str, Place], own_spark: Any):
    """In turn by the worker and by tasks, repeated and cut anew."""
    case = SINKS[place[0]](place[1])
    written = []
    for start, end, by_tasks in [(0, 10, False), (5, 20, True), (0, 20, True), (10, 30, False)]:
        rows, context = batch(range_of(start, end))
        written.append(case.write(own_spark.createDataFrame(rows) if by_tasks else rows, context))
    assert written == [1, 1, 0, 1]
    assert case.offsets() == list(range(30))
