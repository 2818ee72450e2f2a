"""The API server is away: in the middle of a roll for 30 s, at rest for five minutes.

On a cluster of its own, since every other test of the session needs an API server.
"""

import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from k8s.cluster.lifecycle import TrialCluster
from k8s.images import image_build
from tests.support import kube as support
from tests.support.brokers import running_broker
from tests.support.pod_ground import Ground, opened
from tests.support.workshop import until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.kubernetes,
    pytest.mark.long,
]
SERVER = "kube-apiserver"
AWAY_IN_A_ROLL = 30.0
AWAY_AT_REST = 300.0


@pytest.fixture(scope="module")
def ground(kube: support.Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Cluster, broker and fleet of this file alone; judged at the end."""
    del kube  # images are built for it
    folder = tmp_path_factory.mktemp("away")
    cluster = TrialCluster(folder / "cluster-home")
    try:
        status = cluster.up()
        image_build.load([support.image("worker"), support.image("spark")], cluster)
        with running_broker(folder / "broker-home", host=status.host_address) as running:
            own = support.Kube(cluster, status)
            group = f"away-{uuid.uuid4().hex[:8]}"
            with opened(own, running, folder, group=group) as made:
                yield made
                made.serve()
                assert made.account() == (0, 0)
    finally:
        cluster.down()


def away(ground: Ground, seconds: float) -> None:
    """Stop the API server for so long."""
    ground.kube.cluster.stop(SERVER)
    ground.shop.say(f"the API server is away for {seconds:g} s")
    time.sleep(seconds)
    ground.kube.cluster.start(SERVER)
    ground.shop.say("the API server is back")


def advances(ground: Ground, seconds: float) -> None:
    """All partitions are worked on all that time."""
    entries = ground.shop.entries()
    places = {e.tp for e in entries}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        since = time.time()
        until(
            lambda since=since: {e.tp for e in ground.shop.entries() if e.at > since} == places,
            30,
            "every partition to go on",
        )
        time.sleep(min(5.0, max(0.0, end - time.monotonic())))


@pytest.mark.parametrize("moment", ["canary: slot", "slot 1 runs"])
def test_in_the_middle_of_a_roll(ground: Ground, moment: str) -> None:
    """The roll waits and goes on; 0 rebalances."""
    old = set(ground.pods())
    ground.shop.new_code()
    with ground.costs() as cost:
        roll = ground.manager("apply", ground.shop.group)
        until(lambda: moment in ground.said() or roll.poll() is not None, 180, moment)
        assert roll.poll() is None, ground.said()
        away(ground, AWAY_IN_A_ROLL)
        ground.ended(roll)
        ground.serve()
    print(f"a roll without an API server for {AWAY_IN_A_ROLL:g} s: {cost}")
    assert cost.rebalances == 0
    assert not old & set(ground.pods())


def test_at_rest(ground: Ground) -> None:
    """Every worker goes on, and nobody rebalances: not then, not when it is back."""
    ground.serve()
    before = {n: s.token for n, s in ground.slots().items()}
    there = set(ground.pods())
    with ground.costs() as cost:
        outage = threading.Thread(target=away, args=(ground, AWAY_AT_REST))
        outage.start()
        advances(ground, AWAY_AT_REST)
        outage.join()
        ground.serve()
        advances(ground, 30)
    print(f"{AWAY_AT_REST:g} s without an API server: {cost}")
    assert cost.rebalances == 0
    assert {n: s.token for n, s in ground.slots().items()} == before
    assert set(ground.pods()) == there
