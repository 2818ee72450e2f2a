"""A broker that pauses, is killed and comes back: who looks at it lives on, and sees right after.

With librdkafka's admin client such a process may end by an assertion (librdkafka #4605).
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from fleet.broker import Broker
from fleet.clock import SystemClock
from fleet.log.readers.tail import CoordinatorPoller
from fleet.observe.admin import Observer
from tests.support import commits
from tests.support.brokers import OFFSETS_PARTITIONS, running_broker
from tests.support.needs import repository
from tests.support.topics import create_topic
from tests.support.waiting import until

GROUPS = 30
PARTITIONS = 4


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory) -> Iterator[Broker]:
    """A broker that may be stopped."""
    with running_broker(tmp_path_factory.mktemp("broker")) as made:
        yield made.broker


@contextmanager
def paused(broker: Broker) -> Iterator[None]:
    (node,) = broker.status().nodes
    os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.pid, signal.SIGCONT)


def groups_made(bootstrap: str, groups: int, partitions: int) -> None:
    """Each with lag 1 in every partition."""
    config = {"bootstrap.servers": bootstrap}
    create_topic(config, "t", partitions, records=1)
    for number in range(groups):
        client = Consumer({**config, "group.id": f"g{number:04d}"})
        commits.commit(client, [TopicPartition("t", p, 0) for p in range(partitions)])
        client.close()


class Looking:
    """`looking.py`, and the lines that it wrote."""

    def __init__(self, bootstrap: str) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("looking.py")),
                bootstrap,
                str(GROUPS),
            ],
            env={**os.environ, "PYTHONPATH": str(repository())},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.seen: list[dict] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(json.loads(line))

    def next(self, count: int = 1) -> dict:
        """The look after so many others."""
        wanted = len(self.seen) + count
        until(lambda: len(self.seen) >= wanted or self.process.poll() is not None, "a look")
        assert self.process.poll() is None, f"ended with {self.process.returncode}"
        return self.seen[-1]

    def end(self) -> None:
        """Whatever it is at."""
        self.process.kill()
        self._thread.join()
        self.process.stdout.close()
        self.process.wait()


def test_who_looks_outlives_pauses_and_sees_right_after_them(own_broker: Broker):
    """Looks fail in time while it lasts; the second one that began after it tells everything."""
    bootstrap = own_broker.status().bootstrap_servers
    groups_made(bootstrap, GROUPS, PARTITIONS)
    right = {f"g{number:04d}": PARTITIONS for number in range(GROUPS)}
    looking = Looking(bootstrap)
    coordinators = CoordinatorPoller({"bootstrap.servers": bootstrap}, clock=SystemClock())
    try:
        until(lambda: looking.next().get("lags") == right, "a first look")
        for seconds in (1.6, 2.5, 8.0):
            with paused(own_broker):
                time.sleep(seconds)
                during = len(looking.seen)
            looking.next(2)
            seen = until(
                lambda: "lags" in (look := looking.next()) and look,
                "a look that tells",
                still=2.0,  # of one look: where too much runs, one may fail by that alone
            )
            assert seen["lags"] == right, looking.seen[during:]
        coordinators.poll()
        own_broker.kill()
        looking.next(2)
        own_broker.start(wait=300)
        until(lambda: looking.next().get("lags") == right, "figures after a restart")
        moved = until(coordinators.poll, "the coordinators' move")
        assert (moved.partitions, moved.of) == (OFFSETS_PARTITIONS, OFFSETS_PARTITIONS)
        assert coordinators.poll() is None
        assert max(each["took"] for each in looking.seen) < 60.0  # 2 s where nothing else runs
        assert any("did not answer within 2 s" in s.get("error", "") for s in looking.seen)
    finally:
        coordinators.close()
        looking.end()


@pytest.mark.long
def test_one_silent_broker_of_three_hides_its_own_groups_only(tmp_path):
    """What the others coordinate and lead is told in time, with a sentence about what is not."""
    cluster = Broker(tmp_path, brokers=3)
    try:
        bootstrap = cluster.start(wait=300).bootstrap_servers
        groups_made(bootstrap, GROUPS, PARTITIONS)
        look = Observer(
            cluster="t", config={"bootstrap.servers": bootstrap}, clock=SystemClock(), timeout=6.0
        )
        until(lambda: len(look.snapshot().facts) == GROUPS, "all groups")
        stopped = cluster.status().nodes[0].pid
        os.kill(stopped, signal.SIGSTOP)
        try:
            seen = look.snapshot()
            assert seen.partial
            assert 0 < len(seen.facts) < GROUPS
            assert any("a broker did not list its groups" in each for each in seen.problems)
            assert seen.took < 30.0  # 4 s where nothing else runs
            known = {lag for group in seen.facts if (lag := seen.groups[group].lag) is not None}
            assert known <= {PARTITIONS, PARTITIONS - 1, PARTITIONS - 2}
            # Who begins now may knock at the silent one first.
            fresh = Observer(
                cluster="t",
                config={"bootstrap.servers": bootstrap},
                clock=SystemClock(),
                timeout=6.0,
            )
            assert fresh.snapshot().facts
        finally:
            os.kill(stopped, signal.SIGCONT)
        until(
            lambda: (
                {look.snapshot().groups[f"g{n:04d}"].lag for n in range(GROUPS)} == {PARTITIONS}
            ),
            "all of it again",
        )
        look.close()
    finally:
        cluster.purge()
