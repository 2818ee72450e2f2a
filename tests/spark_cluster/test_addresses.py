"""What may stand in fleet.yaml of a Spark elsewhere, and what a server tells its executors."""

import json
import os
import socket
import subprocess
import sys
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


def test_a_server_in_a_pod_lets_the_scheduler_create_executors(tmp_path: Path):
    """By a template in a file, and without a secret on its command line."""
    (tmp_path / "scratch").mkdir()
    container = {"name": "executor", "image": "spark:1", "imagePullPolicy": "Never"}
    pod = {"metadata": {"namespace": "pay"}, "spec": {"containers": [container]}}
    environ = {
        **os.environ,
        "FLEET_SPARK_MASTER": "k8s://https://kubernetes.default.svc",
        "FLEET_SPARK_EXECUTORS": '{"instances": 2, "cores": 1, "cpu": "500m", "memory": "1g"}',
        "FLEET_SPARK_EXECUTOR_POD": json.dumps(pod),
        "POD_NAME": "fleet-spark-1",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": "a-secret",
    }
    told = spark_server._arguments(tmp_path, host="0.0.0.0", port=15002, environ=environ)
    settings = dict(word.partition("=")[::2] for word in told if word.startswith("spark."))
    assert settings["spark.executor.instances"] == "2"
    assert settings["spark.kubernetes.executor.request.cores"] == "500m"
    assert settings["spark.kubernetes.driver.pod.name"] == "fleet-spark-1"
    assert settings["spark.kubernetes.namespace"] == "pay"
    assert settings["spark.kubernetes.container.image"] == "spark:1"
    assert settings["spark.authenticate"] == "true"
    assert settings["spark.kubernetes.executor.useDriverPodIP"] == "false"
    template = Path(settings["spark.kubernetes.executor.podTemplateFile"])
    assert json.loads(template.read_text()) == pod
    ports = {value for key, value in settings.items() if key.endswith((".port", "Manager.port"))}
    assert ports == {"15002", "7078", "7079"}
    assert "a-secret" not in " ".join(told)


def test_an_executor_is_what_the_scheduler_describes(tmp_path: Path):
    """Its process becomes Java, with the options that Spark numbers."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$SPARK_HOME" "$@"\n')
    java.chmod(0o755)
    described = {
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "1024m",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
        "SPARK_EXECUTOR_POD_NAME": "fleet-1-exec-3",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
        "SPARK_JAVA_OPT_1": "-Done=with a space",
    }
    done = subprocess.run(
        [sys.executable, "-m", "fleet.act.spark_server", "executor"],
        env={**os.environ, "JAVA_HOME": str(tmp_path), **described},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    home, *words = done.stdout.splitlines()
    assert Path(home, "bin", "spark-submit").exists()
    assert {"-Dspark.driver.port=7078", "-Done=with a space", "-Xmx1024m"} <= set(words)
    after = words[words.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend") :]
    told = dict(zip(after[1::2], after[2::2], strict=True))
    assert told["--driver-url"] == described["SPARK_DRIVER_URL"]
    assert told["--hostname"] == "10.0.0.8"
    assert told["--podName"] == "fleet-1-exec-3"
    assert told["--cores"] == "2"
