"""The shared Spark Connect server: one per home, at one address for good."""

import os
import subprocess
import sys

import pytest

from fleet.act import spark_server
from fleet.act.census import marked
from fleet.act.local import find_orphans
from fleet.clock import SystemClock
from fleet.errors import Unreachable
from fleet.processes import alive

CLIENT = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print(spark.range(10).count())
spark.stop()
"""


def count_to_ten(url: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CLIENT, url],
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    return done.stdout.strip() or done.stderr


def test_a_home_without_a_server_has_no_address(tmp_path):
    """Nothing is guessed; stopping nothing is fine; the wait says what the log says."""
    assert spark_server.connect_url(tmp_path) is None
    assert spark_server.process(tmp_path) is None
    assert not spark_server.ready(tmp_path)
    spark_server.stop(tmp_path)
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "log").write_text("java: not found\n")
    with pytest.raises(Unreachable, match="java: not found"):
        spark_server.wait_ready(tmp_path, timeout=5.0, clock=SystemClock())


def test_workers_wait_for_a_server_that_cannot_start_and_say_so(bench, monkeypatch):
    """No Java: the supervisor lives, the worker is not started, and its reason is readable."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    bench.runtime.ensure()
    (name,) = bench.start(1, spark="shared")
    bench.until(lambda: "Spark server" in (bench.worker(name).exit_reason or ""), seconds=30)
    assert not bench.worker(name).running
    assert "/nowhere" in bench.worker(name).exit_reason


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_server_is_shared_comes_back_and_goes(bench, monkeypatch):
    """It starts with the first worker that needs it; after kill -9 it is back on its port."""
    monkeypatch.setenv("FLEET_SPARK_MEMORY", "700m")
    home = bench.runtime.home
    bench.runtime.ensure()
    assert spark_server.process(home) is None
    (name,) = bench.start(1, spark="shared")
    bench.until(lambda: bench.worker(name).running, seconds=90)
    url = spark_server.wait_ready(home, timeout=1.0, clock=SystemClock())
    first = spark_server.process(home)
    assert first is not None
    assert count_to_ten(url) == "10"
    assert find_orphans(home) == []  # the server's Python workers are its children

    pid = bench.worker(name).pid
    os.kill(first.pid, 9)
    bench.until(lambda: spark_server.process(home) not in {None, first}, seconds=20)
    assert spark_server.wait_ready(home, timeout=60.0, clock=SystemClock()) == url
    assert bench.worker(name).pid == pid  # workers are not restarted for it

    second = spark_server.process(home)
    assert second is not None
    bench.runtime.down(grace=2.0)
    assert not alive(second)
    assert list(marked(home)) == []
