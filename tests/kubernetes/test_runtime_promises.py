"""A fleet of pods on a real cluster keeps what docs/concepts/cost.md says.

Rebalances are counted by Kafka's own DumpLogSegments [33]; lost and twice come from what the
pods were really called with [34].
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fleet.dagster import asset_keys
from fleet.model import ReceiptResult, StepKind
from fleet.slots import ChangeState
from tests.support.kafka_tools import rebalances
from tests.support.pod_shop import PodShop
from tests.support.through_dagster import ran

pytestmark = [pytest.mark.kubernetes, pytest.mark.broker]

OpenShop = Callable[..., PodShop]
SPARK = 1
"""Pods of the shared Spark server."""


@pytest.fixture
def shop(pod_shop: OpenShop, unique: str) -> PodShop:
    """Three workers and a standby at work."""
    made = pod_shop(f"pods-{unique}", assignor="range")
    made.create_topic(6)
    made.declare(scaling={"policy": "fixed", "workers": 3})
    return made


@contextmanager
def quota(kube: Any, namespace: str, pods: int) -> Iterator[None]:
    """The namespace takes so many pods, as its administrator has it."""
    body = {"metadata": {"name": "pods"}, "spec": {"hard": {"pods": str(pods)}}}
    kube.core.create_namespaced_resource_quota(namespace, body)
    kube.kubectl(
        *("wait", "-n", namespace, "resourcequota/pods", "--timeout=30s"),
        f"--for=jsonpath={{.status.hard.pods}}={pods}",
    )
    yield
    kube.core.delete_namespaced_resource_quota("pods", namespace)


def pods(shop: PodShop) -> set[str]:
    with shop.fleet() as fleet:
        return {worker.name for worker in fleet.workers(shop.group)}


def held(shop: PodShop) -> dict[int, str]:
    with shop.fleet() as fleet:
        return {s.number: s.owner for s in fleet.slots(shop.group) if s.owner}


def test_roll_up_and_down(kube: Any, shop: PodShop, pod_broker: Any) -> None:
    """A roll through Dagster costs nothing, with room for one extra pod; +2 one episode, and
    nothing at all where there is no room; -2 one generation and just the drained pods.
    """
    with shop.stream(rate=100):
        shop.apply()
        shop.rest(4)

        before, old = rebalances(pod_broker, shop.group), pods(shop)
        shop.new_code()
        with quota(kube, shop.namespace, len(old) + SPARK + 1):
            result = ran(shop)
            assert result.success, [e for e in result.all_events if e.is_step_failure]
            (receipt,) = result.get_asset_check_evaluations()
            assert (receipt.check_name, receipt.passed) == (asset_keys.RECEIPT, True)
            shop.rest(4)
        with shop.fleet() as fleet:
            rolled = fleet.changes(shop.group, limit=1)[0]
            slots = [s for s in fleet.slots(shop.group) if s.owner]
        assert rolled.state is ChangeState.DONE, rolled.sentence
        assert [s.kind for s in rolled.plan.steps] == [StepKind.ROLL]
        assert all(r.result is ReceiptResult.EQUAL for r in rolled.receipts), rolled.receipts
        assert rebalances(pod_broker, shop.group) == before
        assert not pods(shop) & old
        assert {s.revision for s in slots} == {rolled.plan.revision}

        there, owners = pods(shop), held(shop)
        with quota(kube, shop.namespace, len(there) + SPARK):
            with shop.fleet() as fleet:
                refused = fleet.apply(shop.group, wanted=5, actor="test", progress=shop.say)
            assert refused.state is ChangeState.FAILED
            assert "exceeded quota" in (refused.sentence or "")
            shop.rest(4)
        assert (pods(shop), held(shop)) == (there, owners), "nothing came or went for good"
        shop.apply(5)
        assert rebalances(pod_broker, shop.group) == before + 1
        shop.rest(6)

        there, owners = pods(shop), held(shop)
        down = shop.apply(3)
        assert rebalances(pod_broker, shop.group) == before + 2
        (leave,) = [s for s in down.plan.steps if s.kind is StepKind.LEAVE]
        shop.rest(4)
        assert there - pods(shop) == {owners[n] for n in leave.slots}, "exactly the drained pods"
    assert shop.lost_and_duplicates() == (0, 0)
