"""A fleet of pods on a real cluster keeps what DESIGN.md, section 3, promises.

Rebalances are counted by Kafka's own DumpLogSegments [33]; lost and twice come from what the
pods were really called with [34].
"""

from collections.abc import Callable
from typing import Any

import pytest

from fleet.model import StepKind, Verdict
from fleet.slots import ChangeState
from tests.support.kafka_tools import generations
from tests.support.pod_shop import PodShop

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.broker,
    pytest.mark.timeout(600),
]

OpenShop = Callable[..., PodShop]


def recorded(shop: PodShop, broker: Any) -> int:
    """Completed generations of the group, in its records."""
    return len({g for g in generations(broker, shop.group) if g > 0})


@pytest.fixture
def shop(pod_shop: OpenShop, unique: str) -> PodShop:
    """Four workers and a standby at work."""
    made = pod_shop(f"pods-{unique}", assignor="range")
    made.create_topic(8)
    made.declare(scaling={"policy": "fixed", "workers": 4})
    return made


def test_roll_up_and_down(shop: PodShop, pod_broker: Any) -> None:
    """A roll of 4 costs nothing, +3 one episode, -3 one generation and just the drained pods."""
    with shop.stream(rate=100):
        with shop.fleet() as fleet:
            first = fleet.apply(shop.group, actor="test", progress=shop.say)
            assert first.state is ChangeState.DONE, first.sentence
        shop.rest(5)

        before = recorded(shop, pod_broker)
        shop.edit_job("VERSION = 1", "VERSION = 2")
        with shop.fleet() as fleet:
            old = {w.name for w in fleet.workers(shop.group)}
            rolled = fleet.apply(shop.group, actor="test", progress=shop.say)
            assert rolled.state is ChangeState.DONE, rolled.sentence
            assert [s.kind for s in rolled.plan.steps] == [StepKind.ROLL]
            assert all(r.verdict is Verdict.EQUAL for r in rolled.receipts), rolled.receipts
        shop.rest(5)
        assert recorded(shop, pod_broker) == before
        with shop.fleet() as fleet:
            now = {w.name for w in fleet.workers(shop.group)}
            assert not now & old
            slots = [s for s in fleet.slots(shop.group) if s.holder]
            assert {s.revision for s in slots} == {rolled.plan.revision}

            up = fleet.apply(shop.group, wanted=7, actor="test", progress=shop.say)
            assert up.state is ChangeState.DONE, up.sentence
            assert recorded(shop, pod_broker) == before + 1
        shop.rest(8)

        with shop.fleet() as fleet:
            held = {s.number: s.holder for s in fleet.slots(shop.group) if s.holder}
            there = {w.name for w in fleet.workers(shop.group)}
            down = fleet.apply(shop.group, wanted=4, actor="test", progress=shop.say)
            assert down.state is ChangeState.DONE, down.sentence
            assert recorded(shop, pod_broker) == before + 2
            (leave,) = [s for s in down.plan.steps if s.kind is StepKind.LEAVE]
        shop.rest(5)
        with shop.fleet() as fleet:
            left = {w.name for w in fleet.workers(shop.group)}
        assert there - left == {held[n] for n in leave.slots}, "exactly the drained pods"
    shop.await_drained()
    assert shop.lost_and_twice() == (0, 0)
