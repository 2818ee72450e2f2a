"""What members cannot roll into is a step of its own, at its price [23], on a real broker."""

import pytest

from fleet.model import StepKind

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

STOPPED = {StepKind.STOP_ALL: [1], StepKind.OPEN: [1]}


@pytest.mark.parametrize(("assignor", "most"), [("range", 1), ("cooperative-sticky", 2)])
def test_another_topic(assignor, most, unique, open_shop, counting):
    """Rolled at 0; one forced rebalance then gives the new topic out, as a step of its own."""
    shop = open_shop(f"topics-{unique}", assignor=assignor, heartbeat_interval="1s")
    shop.create_topic(4)
    other = shop.create_another("returns", 4)
    count = counting(shop)
    with shop.stream(rate=100):
        assert count.apply() == {StepKind.OPEN: [1]}
        shop.declare(topics=[shop.topic, other])
        costs = count.apply()
        assert costs[StepKind.ROLL] == [0]
        (forced,) = costs[StepKind.REJOIN]
        assert 1 <= forced <= most
        shop.produce_to(other, 40)
        shop.until(lambda: _processed(shop, other) == 40, "the new topic's records")
        shop.declare(topics=[shop.topic])
        costs = count.apply()
        assert costs[StepKind.ROLL] == [0]
        assert 1 <= costs[StepKind.REJOIN][0] <= most
    shop.await_drained()
    assert shop.lost_and_twice() == (0, 0)


def test_what_cannot_share_a_generation(unique, open_shop, counting):
    """Assignor, session timeout, static or dynamic: all stop in one leave, all open in one join."""
    shop = open_shop(f"stops-{unique}", assignor="range", heartbeat_interval="1s")
    shop.create_topic(4)
    count = counting(shop)
    with shop.stream(rate=100):
        assert count.apply() == {StepKind.OPEN: [1]}
        for change in (
            {"assignor": "cooperative-sticky"},
            {"session_timeout": "60s"},
            {"membership": "dynamic"},
            {"membership": "static", "assignor": "range"},
        ):
            shop.declare(worker=change)
            assert count.apply() == STOPPED, change
    shop.await_drained()
    assert shop.lost_and_twice() == (0, 0)


def _processed(shop, topic: str) -> int:
    return sum(e.last - e.first + 1 for e in shop.entries() if e.tp.topic == topic)
