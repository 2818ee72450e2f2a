"""A fleet of pods that nobody manages, on the real cluster with the real broker [22].

One fleet lives through all tests of this file, in their order: applied, rolled by kubectl, hit.
Rebalances are counted by Kafka's own tool in `__consumer_offsets`.
"""

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from fleet.broker import Broker
from fleet.kubernetes.deployment.pod_status import read_log
from tests.conftest import RunningBroker
from tests.support.kafka_tools import generations
from tests.support.kube import Kube
from tests.support.pod_fleet import LEASE, SESSION, SLOTS, PodFleet, derived

pytestmark = [pytest.mark.broker, pytest.mark.kubernetes]


@pytest.fixture(scope="module")
def fleet(kube: Kube, kube_broker: RunningBroker) -> Iterator[PodFleet]:
    """Its manifests are applied by the first test."""
    with kube.namespace(f"unmanaged-{uuid.uuid4().hex[:8]}") as namespace:
        made = PodFleet(kube, namespace, kube_broker.bootstrap_servers)
        with made.fed():
            yield made


@pytest.fixture
def counted(fleet: PodFleet, kube_broker: RunningBroker) -> Iterator[None]:
    """No rebalance while the test runs, and records flow before and after it."""
    if not fleet.pods():  # where the first test is not run
        fleet.apply()
    fleet.until(fleet.serve, "all slots to be served")
    before = max(generations(kube_broker.broker, fleet.group))
    yield
    fleet.all_advance()
    after = max(generations(kube_broker.broker, fleet.group))
    assert after == before, f"{after - before} rebalances"


def test_applied_to_an_empty_cluster_it_starts_to_consume(
    fleet: PodFleet, kube_broker: RunningBroker
):
    """The standbys open the slot targets themselves, all slots at once: one rebalance, or two."""
    fleet.apply()
    fleet.until(fleet.serve, "the first slots to be served", timeout=240)
    fleet.all_advance()
    assert fleet.targets().open == frozenset(range(SLOTS))
    assert len(fleet.pods()) == SLOTS + 1
    fleet.until(lambda: len(fleet.ready()) == SLOTS + 1, "all pods to be ready")
    told = sorted(fleet.probe(pod, "/readyz") for pod in fleet.pods())
    assert told == [
        "ok: no slot; waits for a free slot that is open",
        *(f"ok: serving (slot {n})" for n in range(SLOTS)),
    ]
    # cooperative-sticky from Empty: a second one only where a join missed the first.
    assert max(generations(kube_broker.broker, fleet.group)) <= 2


@contextmanager
def away(broker: Broker) -> Iterator[None]:
    """It answers nothing; connections stand, and new ones are taken."""
    pids = [node.pid for node in broker.status().nodes if node.pid is not None]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def cut_off(fleet: PodFleet, pods: set[str]) -> bool:
    """Whether one of these is warm, and says that no broker answers it."""
    for pod in pods:
        with suppress(AssertionError):  # it does not listen yet
            if json.loads(fleet.probe(pod, "/status"))["condition"] == "disconnected":
                return True
    return False


def test_a_rollout_waits_for_kafka_and_costs_nothing(
    fleet: PodFleet, counted: None, kube_broker: RunningBroker
):
    """`kubectl rollout restart` while no broker answers: the new pod is warm and not ready, none
    of the old ones goes, nobody is restarted. Then every slot ends on a new pod, at 0 rebalances.
    """
    old = set(fleet.pods())
    with away(kube_broker.broker):
        fleet.kubectl("rollout", "restart", fleet.deployment)
        fleet.until(lambda: cut_off(fleet, set(fleet.pods()) - old), "a new pod that is cut off")
        ends = time.monotonic() + LEASE
        while time.monotonic() < ends:
            assert old <= set(fleet.pods()), "an old one went, and could not drain"
            assert not fleet.ready() - old
            time.sleep(0.5)
        found = [s for pod in fleet.pods().values() for s in pod.status.container_statuses or ()]
        assert [s.restart_count for s in found] == [0] * len(found)
    fleet.until(
        lambda: fleet.serve(lambda: fleet.ready() - old) and not old & set(fleet.pods(going=True)),
        "all slots on the new pods",
        timeout=240,
    )
    assert len(fleet.pods()) == SLOTS + 1


def test_a_killed_worker_is_replaced_within_its_lease(fleet: PodFleet, counted: None):
    """Kill -9 inside the pod: the standby takes over as soon as the next container tells; that
    one comes back as a standby, and the pod's log has both lives.
    """
    slot = fleet.slots()[0]
    assert slot.owner is not None
    fleet.until(lambda: len(fleet.ready()) == SLOTS + 1, "a warm standby")
    fleet.kill(slot.owner)
    killed = time.monotonic()
    fleet.until(lambda: fleet.slots()[0].token > slot.token, "the standby to take the slot")
    took = time.monotonic() - killed
    new_owner = fleet.slots()[0].owner
    assert new_owner not in {None, slot.owner}
    how = "has ended" if "which has ended" in said(fleet, str(new_owner)) else "lease"
    print(f"slot taken {took:.1f} s after kill -9 ({how}), lease {LEASE:g} s")
    assert took < SESSION, "by its lease, not by the end of its session"
    fleet.until(fleet.serve, "all slots to be served")
    fleet.until(lambda: slot.owner in fleet.ready(), "the container to come back")
    pod = fleet.pods()[slot.owner]
    assert pod.status.container_statuses[0].restart_count == 1
    assert fleet.probe(slot.owner, "/readyz").startswith("ok: no slot")
    assert said(fleet, slot.owner).count("ready after") == 2, "of both containers"


def said(fleet: PodFleet, pod: str) -> str:
    """The log of a pod, as `fleet logs` reads it."""
    return "\n".join(line.text for line in read_log(fleet.api, pod).lines)


@pytest.mark.long
def test_an_image_that_fails_on_every_batch_gets_one_slot(
    fleet: PodFleet, counted: None, kube: Kube
):
    """At most one slot runs it, its pod is not ready and says why; all other partitions go on."""
    good = fleet.pods()[str(fleet.slots()[0].owner)].spec.containers[0].image
    old, shares = set(fleet.pods()), {n: fleet.share(n) for n in range(SLOTS)}
    failing_image = derived(kube, "failing", JOB_FAILS="1")
    fleet.kubectl("set", "image", fleet.deployment, f"worker={failing_image}")
    fleet.until(lambda: fleet.fails("broken on purpose"), "the new pod to fail", timeout=240)
    since, ends = fleet.committed(), time.monotonic() + 2 * LEASE
    while time.monotonic() < ends:
        theirs = {n for n, slot in fleet.slots().items() if slot.owner not in old | {None}}
        assert len(theirs) <= 1, "a second slot runs it"
        time.sleep(0.2)
    kept = {n for n, owner in fleet.owners().items() if owner in old}
    print(f"{len(kept)} of {SLOTS} slots on the good image while the other one fails")
    assert len(kept) >= SLOTS - 1
    assert set().union(*(shares[n] for n in kept)) <= fleet.advanced(since)
    # It took the old standby at most, and the one owner whose slot is on trial.
    assert len(old & set(fleet.pods())) >= SLOTS - 1, "the rollout stands"
    assert not fleet.ready() - old, "no new pod is taken for ready"

    fleet.kubectl("set", "image", fleet.deployment, f"worker={good}")
    fleet.until(
        lambda: fleet.serve(fleet.ready) and len(fleet.pods()) == SLOTS + 1,
        "the good image to have all slots again",
        timeout=240,
    )
