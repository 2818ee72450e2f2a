"""A managed fleet of pods on a real cluster: evicted, given bad code, left by its manager [29].

One fleet lives through all tests of this file, in their order. Whatever hits it costs what
docs/concepts/cost.md says: no rebalance, nothing lost, and twice at most what a kill interrupts
(here: nothing, since no worker is killed).
"""

import time
import uuid
from collections.abc import Iterator

import pytest
from kubernetes import client

from fleet.kubernetes.client.object_names import ObjectNames
from fleet.slots import ChangeState
from tests.conftest import RunningBroker
from tests.support.kube import Kube
from tests.support.pod_ground import SLOTS, Ground, opened
from tests.support.workshop import until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.kubernetes,
    pytest.mark.long,
]
GRACE = 55.0
"""Seconds of a pod of this fleet: drain_timeout 30 s, lease 10 s and 15 s."""


@pytest.fixture(scope="module")
def whole(
    kube: Kube, kube_broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ground]:
    """Four workers and a standby at work; judged at the end by what they were called with."""
    home = tmp_path_factory.mktemp("misfortunes")
    with opened(kube, kube_broker, home, group=f"hit-{uuid.uuid4().hex[:8]}") as made:
        yield made
        made.serve()
        assert made.account() == (0, 0)


@pytest.fixture
def ground(whole: Ground) -> Ground:
    """As it was: all slots served, a ready standby."""
    whole.serve()
    return whole


def test_a_plain_scale_takes_standbys(ground: Ground) -> None:
    """`kubectl scale` 6 to 4 without a manager: both standbys go, no owner."""
    name = f"deployment/{ObjectNames('test', ground.shop.group).deployment}"

    def scale(pods: int) -> None:
        ground.kube.kubectl("-n", ground.shop.namespace, "scale", name, f"--replicas={pods}")

    held = {n: (s.owner, s.token) for n, s in ground.slots().items()}
    with ground.costs() as cost:
        scale(SLOTS + 2)
        until(lambda: len(ground.ready()) == SLOTS + 2, 150, "two standbys to be ready")
        time.sleep(2.0)  # the controller hears of costs by its watch
        scale(SLOTS)
        until(lambda: len(ground.pods()) == SLOTS, 60, "two pods to go")
        assert {n: (s.owner, s.token) for n, s in ground.slots().items()} == held
        scale(SLOTS + 1)
        ground.serve()
    print(f"scaled by hand: {cost}")
    assert cost.rebalances == 0


def evict(ground: Ground, pod: str) -> bool:
    """Ask the Eviction API; False where the budget forbids it now."""
    asked = client.V1Eviction(metadata=client.V1ObjectMeta(name=pod))
    try:
        ground.kube.core.create_namespaced_pod_eviction(pod, ground.shop.namespace, asked)
        ground.shop.say(f"evicted {pod}, which held {ground.held_by(pod)}")
    except client.ApiException as error:
        if error.status != 429:
            raise
        return False
    return True


def gone(ground: Ground, pod: str) -> bool:
    """Whether nothing is left of it, not even its end."""
    found = ground.kube.core.list_namespaced_pod(ground.shop.namespace)
    return pod not in {each.metadata.name for each in found.items}


@pytest.mark.parametrize(
    ("found", "broken", "why", "slots"),
    [
        pytest.param("", "import no_such_module\n", "no_such_module", 0, id="not imported"),
        pytest.param(
            "    write_journal(df, context)\n",
            '    if not context.warm:\n        raise ValueError("broken on purpose")\n',
            "broken on purpose",
            1,
            id="raises on every batch",
        ),
    ],
)
def test_code_that_does_not_work_goes_back(
    ground: Ground, found: str, broken: str, why: str, slots: int
) -> None:
    """With its last words, at no rebalance, within four minutes; one slot at most was handed over
    and back, the canary's.
    """
    good, held = ground.shop.code.read_text(), ground.slots()
    there, began = set(ground.pods()), time.monotonic()
    ground.shop.write_code(good.replace(found, broken, 1))
    try:
        with ground.costs() as cost, ground.shop.fleet() as fleet:
            change = fleet.apply(ground.shop.group, actor="test", progress=ground.shop.say)
    finally:
        ground.shop.write_code(good)
    assert change.state is ChangeState.ROLLED_BACK, change.sentence
    assert why in change.sentence
    assert time.monotonic() - began < 240.0
    assert cost.rebalances == 0
    ground.serve()
    assert {slot.owner for slot in held.values()} <= there
    assert sum(s.token > held[n].token for n, s in ground.slots().items()) == slots


def test_a_killed_manager_of_a_roll(ground: Ground) -> None:
    """The next one finishes it: 0 rebalances over both, every slot on new pods."""
    old = set(ground.pods())
    ground.shop.new_code()
    with ground.costs() as cost:
        roll = ground.manager("apply", ground.shop.group)
        ground.killed(roll, lambda: "canary: slot" in ground.said())
        with ground.shop.fleet() as fleet:
            (left,) = fleet.changes(ground.shop.group, limit=1)
        assert left.state is ChangeState.RUNNING
        ground.ended(ground.manager("apply", ground.shop.group))
        ground.serve()
    print(f"a manager was killed in a roll: {cost}")
    assert cost.rebalances == 0
    assert not old & set(ground.pods())
    assert len({s.revision for s in ground.slots().values()}) == 1


def test_each_pod_is_evicted(ground: Ground) -> None:
    """One after the other, as a node is drained: slots pass on, 0 rebalances.

    The budget keeps all ready ones but one; a pod that is not ready may always go, and goes at
    once, also while its Python only starts: else it would take a slot until it is killed.
    """
    first = set(ground.pods())
    with ground.costs() as cost:
        for pod in sorted(first):
            until(lambda pod=pod: evict(ground, pod), 30, "the budget to know that all are ready")
            assert not evict(ground, min(ground.ready() - {pod})), "one at a time"
            if pod == min(first):
                until(lambda: ground.pods().keys() - ground.ready(), 30, "the one in its place")
                young = min(ground.pods().keys() - ground.ready())
                assert evict(ground, young)
                until(lambda young=young: gone(ground, young), GRACE - 15, f"{young} to end")
            ground.serve()
    assert not first & set(ground.pods())
    print(f"{len(first)} pods evicted: {cost}")
    assert cost.rebalances == 0
