"""A fleet on two nodes: spread as it requires, a node that is drained, and one that is lost [29].

One fleet lives through all tests of this file, in their order. No record is lost, and static
members cost no rebalance.
"""

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from k8s.cluster.cluster_layout import NODE
from tests.conftest import RunningBroker
from tests.support import waiting
from tests.support.kube import Kube, image
from tests.support.pod_ground import Ground, opened
from tests.support.second_node import NAME, TOLERATION, SecondNode, second_node

pytestmark = [pytest.mark.broker, pytest.mark.kubernetes, pytest.mark.long]

SLOTS = 3
NOTICE = 120.0
"""Seconds from the notice of a spot node to its end."""
STAYS = 10
"""Seconds for which pods stay on a node that does not answer."""
PLACE = {
    "spread_required": True,
    "tolerations": [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": STAYS,
        }
        for state in ("not-ready", "unreachable")
    ],
    "pod_template": {"spec": {"tolerations": [TOLERATION]}},
}


@pytest.fixture(scope="module")
def node(kube: Kube) -> Iterator[SecondNode]:
    """With the image of workers only: the Spark server is on the first node."""
    with second_node(kube, image("worker")) as made:
        yield made


@pytest.fixture(scope="module")
def ground(
    kube: Kube,
    kube_broker: RunningBroker,
    node: SecondNode,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Ground]:
    """Three workers and a standby at work; judged at the end by what they were called with."""
    home, group = tmp_path_factory.mktemp("two-nodes"), f"nodes-{uuid.uuid4().hex[:8]}"
    with opened(kube, kube_broker, home, group=group, place=PLACE, slots=SLOTS) as made:
        yield made
        made.serve()
        lost, twice = made.account()
        print(f"{lost} lost, {twice} twice")
        assert lost == 0


def nodes_of(ground: Ground) -> Counter[str]:
    """How many pods each node runs."""
    return Counter(pod.spec.node_name for pod in ground.pods().values())


def ready_or_joining(ground: Ground) -> int:
    """How many pods are ready, or own a slot and will be with their first commit."""
    owners = {slot.owner for slot in ground.slots().values()}
    return len(ground.ready() | owners & ground.pods().keys())


def test_workers_are_spread_as_required(ground: Ground) -> None:
    """Two on each node."""
    assert nodes_of(ground) == {NODE: 2, NAME: 2}


def test_a_spot_node_goes_within_two_minutes(ground: Ground, node: SecondNode) -> None:
    """A taint and a drain at the notice: one pod at a time, each once the last is replaced."""
    drain = ("drain", NAME, "--delete-emptydir-data", f"--timeout={NOTICE:.0f}s")
    with ground.costs() as cost, ThreadPoolExecutor(1) as beside:
        began, ready = time.monotonic(), [SLOTS + 1]
        ground.kube.kubectl("taint", "nodes", NAME, "spot=notice:NoSchedule")
        draining = beside.submit(ground.kube.kubectl, *drain)
        while not draining.done():
            ready.append(ready_or_joining(ground))
            time.sleep(0.2)
        draining.result()
        took = time.monotonic() - began
        node.cut_power()
        ground.serve()
    print(f"a node was drained within {took:.0f} s: {cost}")
    assert took < NOTICE
    assert min(ready) == SLOTS
    assert cost.rebalances == 0
    assert nodes_of(ground) == {NODE: SLOTS + 1}


def test_a_lost_node_costs_no_rebalance(ground: Ground, node: SecondNode) -> None:
    """The node is back, workers are spread anew by a roll; then its power goes without notice.

    A standby that is left takes a slot after its lease. Others wait for pods in the place of those
    that are lost: until then no member may be taken out of the group.
    """
    node.start()
    ground.kube.kubectl("uncordon", NAME)
    ground.kube.kubectl("taint", "nodes", NAME, "spot-")
    with ground.costs() as cost:
        ground.shop.edit_job("VERSION = 1", "VERSION = 2")
        ground.apply()
        ground.serve()
    print(f"a roll back onto two nodes: {cost}")
    assert cost.rebalances == 0
    assert nodes_of(ground) == {NODE: 2, NAME: 2}
    lost = {name for name, pod in ground.pods().items() if pod.spec.node_name == NAME}
    slots = {number for number, slot in ground.slots().items() if slot.owner in lost}
    assert slots
    with ground.costs() as cost:
        node.cut_power()
        began = time.monotonic()
        waiting.until(lambda: not node.is_ready(), "the node to be missed")
        ground.serve()
        took = time.monotonic() - began
    print(f"slots {sorted(slots)} of a lost node were served after {took:.0f} s: {cost}")
    assert cost.rebalances == 0
    assert nodes_of(ground) == {NODE: SLOTS + 1}
    ground.kube.kubectl("delete", "node", NAME)  # as a cloud does: until then its pods stay
    gone = [f"pod/{name}" for name in sorted(lost)]
    namespace = ground.shop.namespace
    ground.kube.kubectl("wait", "--for=delete", *gone, f"--namespace={namespace}", "--timeout=300s")
