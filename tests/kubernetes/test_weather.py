"""Bad weather over a fleet of pods, by every way of membership: nothing lost, nobody evicted.

What processes of one machine meet is in tests/faults/matrix_faults.py; here is what only a cluster
can do: an API server that takes no write, a quota, brokers that are away while pods roll.
"""

import contextlib
import time
import uuid
from collections.abc import Iterator

import pytest
from kubernetes import client

from fleet.kubernetes.client.object_names import ObjectNames
from fleet.slots import ChangeState
from tests.faults.six_fleets import WAYS, members
from tests.support.brokers import running_broker
from tests.support.kafka_tools import dump_group_records
from tests.support.kube import Kube
from tests.support.pod_ground import Ground, opened

pytestmark = [
    pytest.mark.broker,
    pytest.mark.kubernetes,
    pytest.mark.long,
]

SLOTS = 2
LEASE = 10.0
"""Of `opened`."""
AWAY = 25.0
"""Seconds without brokers: a drain has 30."""
READING = {"get", "list", "watch"}
QUOTA = "as-it-is"


@pytest.fixture(scope="module")
def ground(
    request: pytest.FixtureRequest, kube: Kube, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ground]:
    """Two workers and a standby, as the parameter says, on a broker that may be killed."""
    place = tmp_path_factory.mktemp("weather")
    with contextlib.ExitStack() as ending:
        running = ending.enter_context(running_broker(place / "broker", host=kube.host_address))
        group = f"weather-{uuid.uuid4().hex[:8]}"
        fleet = opened(
            kube, running, place / "home", group=group, slots=SLOTS, worker=WAYS[request.param]
        )
        made = ending.enter_context(fleet)
        made.serve()
        yield made


def joined(ground: Ground) -> frozenset[str]:
    """Ids of the members, by the coordinator's records."""
    return members(dump_group_records(ground.broker, ground.shop.group))


def tokens(ground: Ground) -> dict[int, int]:
    """Slot → the token of its take."""
    return {number: slot.token for number, slot in ground.slots().items()}


@contextlib.contextmanager
def read_only(ground: Ground) -> Iterator[None]:
    """The Role of the workers is one that may only read."""
    rbac = client.RbacAuthorizationV1Api(ground.kube.api)
    name = ObjectNames("test", ground.shop.group).role
    whole = rbac.read_namespaced_role(name, ground.shop.namespace).rules
    reading = [
        client.V1PolicyRule(
            api_groups=rule.api_groups,
            resources=rule.resources,
            resource_names=rule.resource_names,
            verbs=[verb for verb in rule.verbs if verb in READING],
        )
        for rule in whole
        if READING & set(rule.verbs)
    ]
    rbac.patch_namespaced_role(name, ground.shop.namespace, client.V1Role(rules=reading))
    try:
        yield
    finally:
        rbac.patch_namespaced_role(name, ground.shop.namespace, client.V1Role(rules=whole))


@contextlib.contextmanager
def no_more_pods(ground: Ground) -> Iterator[None]:
    """A quota of as many pods as there are."""
    core, namespace = ground.kube.core, ground.shop.namespace
    count = len(core.list_namespaced_pod(namespace).items)
    quota = {"metadata": {"name": QUOTA}, "spec": {"hard": {"pods": str(count)}}}
    core.create_namespaced_resource_quota(namespace, quota)
    try:
        yield
    finally:
        core.delete_namespaced_resource_quota(QUOTA, namespace)


def writes_refused(ground: Ground) -> None:
    """For three leases; nobody takes a slot of the living, then or after."""
    before = joined(ground), tokens(ground), set(ground.pods())
    with read_only(ground):
        time.sleep(3 * LEASE)
    time.sleep(1.5 * LEASE)
    ground.serve()
    assert (joined(ground), tokens(ground), set(ground.pods())) == before


def quota(ground: Ground) -> None:
    """New code needs a pod that is not admitted: it goes back, and rolls once there is room."""
    before = joined(ground), tokens(ground), set(ground.pods())
    ground.shop.new_code()
    with no_more_pods(ground):
        manager = ground.manager("apply", ground.shop.group)
        code = manager.wait(400)
        print(ground.said())
        assert code != 0, "it could not be done"
        assert "quota" in ground.said()
        with ground.shop.fleet() as fleet:
            state = fleet.changes(ground.shop.group, limit=1)[0].state
        assert state in {ChangeState.FAILED, ChangeState.ROLLED_BACK}
    time.sleep(5)
    ground.serve()
    assert (joined(ground), tokens(ground), set(ground.pods())) == before
    # A rolling batch of dynamic members would cost a rebalance each time: it waits for a person.
    again = "apply" if state is ChangeState.FAILED else "roll"
    ground.ended(ground.manager(again, ground.shop.group))
    ground.serve()
    assert not before[2] & set(ground.pods())


def brokers_away_in_a_roll(ground: Ground) -> None:
    """What is not done then is done after; nobody is let go with a batch in hand."""
    old = set(ground.pods())
    ground.shop.new_code()
    manager = ground.manager("apply", ground.shop.group)
    ground.shop.until(
        lambda: "canary: slot" in ground.said() or manager.poll() is not None, "the roll to begin"
    )
    assert manager.poll() is None, ground.said()
    ground.broker.kill()
    time.sleep(AWAY)
    ground.broker.start(wait=300)
    if manager.wait(600) != 0:
        print(ground.said())
        ground.ended(ground.manager("apply", ground.shop.group))
    ground.serve()
    assert not old & set(ground.pods())


FAULTS = {
    fault.__name__.replace("_", " "): fault
    for fault in (writes_refused, quota, brokers_away_in_a_roll)
}


@pytest.mark.parametrize("ground", WAYS, indirect=True, scope="module")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault(ground: Ground, fault: str) -> None:
    """It passes; every record was processed once, by the rows."""
    FAULTS[fault](ground)
    assert ground.account() == (0, 0)
