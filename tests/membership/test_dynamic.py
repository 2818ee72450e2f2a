"""Dynamic members on a real broker: their own roll in waves, at the stated price.

DESIGN section 3: all N rolled with room for N more: 2 (range), at most 3 (cooperative); with
less room that per wave. Counted by Kafka's own tool.
"""

import pytest

from fleet.model import StepKind

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

ROOM = {"canary_batches": 1, "bake": "5s", "warm_timeout": "5m"}
MOST = {"range": 1, "cooperative-sticky": 2}


@pytest.mark.parametrize(
    "assignor",
    ["range", pytest.param("cooperative-sticky", marks=pytest.mark.long)],
)
def test_up_roll_down(assignor, unique, open_shop, counting):
    """From nothing 1, up one episode, a roll of all 2 (or 3), down one; nothing lost or twice."""
    shop = open_shop(f"dynamic-{unique}", assignor=assignor, membership="dynamic")
    shop.declare(rollout={**ROOM, "max_parallel": 3})
    shop.create_topic(6)
    count = counting(shop)
    with shop.stream(rate=100):
        assert count.apply() == {StepKind.OPEN: [1]}
        (up,) = count.apply(wanted=3)[StepKind.OPEN]
        assert 1 <= up <= MOST[assignor]

        shop.edit_job("VERSION = 1", "VERSION = 2")
        (rolled,) = count.apply(wanted=3)[StepKind.ROLL]
        assert 2 <= rolled <= 1 + MOST[assignor]

        (down,) = count.apply(wanted=1)[StepKind.LEAVE]
        assert 1 <= down <= MOST[assignor]
    shop.await_drained()
    assert shop.lost_and_twice() == (0, 0)
