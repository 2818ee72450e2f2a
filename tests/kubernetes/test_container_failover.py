"""How soon a killed container's partitions are processed again, one kill after the other [13].

From kill -9 of the worker inside to the first call of the entrypoint for each partition that it
read, by the journal that pods write [34]; rebalances are counted by Kafka's own DumpLogSegments.
The pod is deleted once its next container is warm, or the kubelet would wait longer each time.
"""

import time
from pathlib import Path

import pytest

from benchmarks.failover import processed_again
from benchmarks.figures import spread
from fleet.model import TopicPartition
from tests.conftest import RunningBroker
from tests.support.kube import Kube
from tests.support.pod_fleet import kill_inside
from tests.support.pod_ground import RATE, Ground, opened
from tests.support.workshop import until

pytestmark = [pytest.mark.broker, pytest.mark.kubernetes, pytest.mark.long]
KILLS = 20
SLOTS = 3
LEASE = 10.0
MOST_SECONDS = 4.0
"""Until a killed container's partitions are processed again, at p95: docs/concepts/cost.md."""
SLOW = 3.0
"""Seconds from which on a kill's logs are printed."""
MOST_REBALANCES = {"range": 0, "cooperative-sticky": 0, "consumer": 2}
"""Of a death: a static member's place is kept; KIP-848 frees it, and gives it away again."""


def killed(ground: Ground, number: int) -> list[float]:
    """Kill the container that holds a slot; seconds of each of its partitions."""
    pod = str(ground.slots()[number].owner)
    kill_inside(pod)
    at = time.time()
    found: dict[TopicPartition, float | None] = {}

    def over() -> bool:
        nonlocal found
        found = processed_again(ground.shop.entries(), victim=pod, at=at)
        return bool(found) and None not in found.values()

    until(over, 120, f"what {pod} read to be processed again")
    if max(each or 0.0 for each in found.values()) > SLOW:
        print(f"killed {pod} at {at:.2f}: {found}")
        for each in ground.pods():
            said = ground.kube.kubectl(
                "-n", ground.shop.namespace, "logs", each, "--timestamps", "--since=15s"
            )
            print(f"--- {each}\n{said}")
    until(lambda: pod in ground.ready(), 150, f"{pod} to be warm again")
    ground.kube.kubectl("-n", ground.shop.namespace, "delete", "pod", pod, "--wait=false")
    return [each for each in found.values() if each is not None]


@pytest.mark.parametrize("protocol", MOST_REBALANCES)
def test_killed_containers_one_after_the_other(
    kube: Kube, kube_broker: RunningBroker, tmp_path: Path, unique: str, protocol: str
) -> None:
    """Nothing is lost, at most the batch in hand comes twice, and no kill waits for a lease; in the
    end one pod is deleted by force.
    """
    how = {"protocol": "consumer"} if protocol == "consumer" else {"assignor": protocol}
    group = f"containers-{unique}"
    kind = "consumer" if protocol == "consumer" else "classic"
    with opened(
        kube, kube_broker, tmp_path, group=group, protocol=kind, worker=how, slots=SLOTS
    ) as ground:
        seconds: list[float] = []
        for kill in range(KILLS):
            ground.serve()
            before = ground.recorded()
            took = killed(ground, kill % SLOTS)
            ground.serve()
            cost = ground.recorded() - before
            print(
                f"{protocol} {kill + 1}/{KILLS}: {max(took):.2f} s, {cost} rebalances", flush=True
            )
            assert cost <= MOST_REBALANCES[protocol]
            seconds += took
        before, last = ground.recorded(), ground.slots()[0]
        force = ("--force", "--grace-period=0")  # the kubelet gives its process a second or two
        name = ("-n", ground.shop.namespace, "delete", "pod", str(last.owner))
        ground.kube.kubectl(*name, *force)
        until(lambda: ground.slots()[0].token > last.token, 60, "a standby to take the slot")
        ground.serve()
        assert ground.recorded() - before <= MOST_REBALANCES[protocol]
        lost, twice = ground.account()
    told = spread(seconds)
    assert told is not None
    print(
        f"{protocol}: {KILLS} containers killed, processed again after {told.p50:.2f} s at p50, "
        f"{told.p95:.2f} at p95, {told.max:.2f} at most; {lost} lost, {twice} twice"
    )
    assert lost == 0
    assert twice <= KILLS * RATE, "the batch in hand of each, a second's records at most"
    assert told.p95 <= MOST_SECONDS, "the next container tells, not the lease"
