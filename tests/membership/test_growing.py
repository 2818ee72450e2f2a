"""A topic grows under a fleet: picked up by its workers, then scaled for by the policy."""

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from fleet.model import StepKind

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_partitions_are_picked_up_and_scaled_for(assignor, unique, open_shop, counting):
    """The growth is one episode that no plan is charged for; the next plan opens slots for it."""
    shop = open_shop(
        f"grows-{unique}", assignor=assignor, metadata_refresh="1s", heartbeat_interval="1s"
    )
    shop.declare(scaling={"policy": "partitions", "per_worker": 2})
    shop.create_topic(4)
    count = counting(shop)
    with shop.stream(rate=100):
        assert count.apply() == {StepKind.OPEN: [1]}
        before = count.recorded()
        admin = AdminClient({"bootstrap.servers": shop.bootstrap})
        admin.create_partitions([NewPartitions(shop.topic, 6)])[shop.topic].result(20)
        shop.produce_to(shop.topic, 60)  # the stream's own producer learns of them much later
        with shop.fleet() as fleet:

            def owned() -> int:
                group = fleet.snapshot([shop.group]).groups[shop.group]
                return sum(len(m.partitions) for m in group.members)

            shop.until(lambda: owned() == 6, "the new partitions to be owned")
            plan = fleet.plan(shop.group)
        assert [step.kind for step in plan.steps] == [StepKind.OPEN]
        assert len(plan.steps[0].slots) == 1
        grown = count.recorded() - before
        print(f"growth cost {grown} rebalance(s) under {assignor}")
        assert 1 <= grown <= 2
        (up,) = count.apply()[StepKind.OPEN]
        assert 1 <= up <= 2
    shop.await_drained()
    assert shop.lost_and_twice() == (0, 0)
