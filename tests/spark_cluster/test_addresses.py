"""What may stand in fleet.yaml of a Spark elsewhere, and what a server tells its executors."""

import socket
from pathlib import Path

import pytest

from fleet.act import spark_server
from fleet.config.load import load
from fleet.errors import ConfigError
from fleet.system import spark_python
from fleet.worker.batch.spark_link import in_clear

GROUP = """
fleets:
  - group: orders
    topics: [orders]
    worker: {{protocol: classic, entrypoint: "job:process", spark: "{spark}"}}
"""


@pytest.mark.parametrize(
    ("url", "clear"),
    [
        pytest.param("shared", False, id="not an address"),
        pytest.param("sc://spark:15002", False, id="PySpark's own: TLS with a token"),
        pytest.param("sc://spark:15002/;use_ssl=true", False, id="TLS"),
        pytest.param("sc://spark:15002/;use_ssl=false", True, id="asked for"),
        pytest.param("sc://spark:15002/;user_id=u;use_ssl=False", True, id="among others"),
    ],
)
def test_a_token_goes_in_the_clear_only_where_asked(url: str, clear: bool):
    """By the address itself, so that a person has written it."""
    assert in_clear(url) is clear


@pytest.mark.parametrize("environ", [{}, {"TOKEN": "a-secret"}], ids=["written", "expanded"])
def test_no_token_in_the_file(tmp_path: Path, environ: dict[str, str]):
    """It would be frozen into settings, and on Kubernetes into a ConfigMap."""
    file = tmp_path / "fleet.yaml"
    word = "${TOKEN}" if environ else "a-secret"
    file.write_text(GROUP.format(spark=f"sc://spark:443/;use_ssl=true;token={word}"))
    with pytest.raises(ConfigError, match=r"fleets\[0\]\.worker\.spark: holds a token") as refused:
        load(file, environ)
    assert "SPARK_CONNECT_AUTHENTICATE_TOKEN" in str(refused.value)
    assert "a-secret" not in str(refused.value)


def test_executors_elsewhere_are_told_an_address_that_they_reach():
    """The way to the master: a machine's own name may be a loopback address to itself."""
    with socket.socket(type=socket.SOCK_DGRAM) as here:
        here.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{here.getsockname()[1]},standby:7077"
    told = spark_server._driver_host("0.0.0.0", {"FLEET_SPARK_MASTER": master})
    assert told == "127.0.0.1"
    assert spark_server._driver_host("0.0.0.0", {"FLEET_SPARK_MASTER": "local[2]"}) == "127.0.0.1"


def test_the_python_of_executors_is_named_by_the_servers_environment(tmp_path: Path):
    """Only for a cluster: on this machine it is the one that runs Fleet."""
    named = {"PYSPARK_PYTHON": "/opt/python/bin/python3"}
    there = {**named, "FLEET_SPARK_MASTER": "spark://master:7077"}
    assert (
        spark_server._extra(tmp_path, "0.0.0.0", there)["PYSPARK_PYTHON"] == named["PYSPARK_PYTHON"]
    )
    here = spark_server._extra(tmp_path, "127.0.0.1", named)
    assert {**here, **spark_python.variables()} == here
