"""`consumer_offsets` on a standalone cluster whose executors have no Fleet."""

import os
import shutil
from pathlib import Path

import pytest

from benchmarks.offset_commits import write
from fleet.act import spark_server
from fleet.clock import SystemClock
from fleet.history.source import register
from fleet.worker.batch.spark_link import SparkLink
from tests.conftest import RunningBroker
from tests.ranges.test_elsewhere import cluster
from tests.support.waiting import until

__all__ = ["cluster"]

pytestmark = [
    *(pytest.mark.broker, pytest.mark.spark, pytest.mark.long),
]
COMMITS = 40_000


def test_standalone_cluster(cluster: str, broker: RunningBroker, tmp_path: Path):
    """Both executors read a share; every commit is decoded once."""
    clock = SystemClock()
    write(broker.bootstrap_servers, COMMITS, groups=100, clock=clock, say=print)
    home = tmp_path / "home"
    home.mkdir()
    spark_server.start(home, environ={**os.environ, "FLEET_SPARK_MASTER": cluster})
    link = SparkLink(
        where=lambda: spark_server.connect_url(home),
        token=lambda: spark_server.token(home),
        clock=clock,
        app="test",
    )
    try:
        spark_server.wait_ready(home, timeout=300.0, clock=clock)
        session = link.connect(timeout=300.0, given_up=lambda: False)
        register(session)
        until(
            lambda: (
                session.range(0, 1000).selectExpr("spark_partition_id()").distinct().count() > 1
            ),
            "two executors",
        )
        frame = (
            session.read.format("consumer_offsets")
            .option("bootstrap.servers", broker.bootstrap_servers)
            .option("groupsPattern", r"group-\d{5}")
            .option("tasks", "2")
            .load()
            .selectExpr("*", "spark_partition_id() AS task")
        )
        found = frame.groupBy("task", "type", "problem").count().collect()
        assert sum(row["count"] for row in found) == COMMITS
        assert {(row["type"], row["problem"]) for row in found} == {(1, None)}
        assert len({row["task"] for row in found}) == 2
    finally:
        link.close()
        spark_server.stop(home)
        shutil.rmtree(home, ignore_errors=True)
