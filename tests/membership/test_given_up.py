"""A revision that never gets warm has touched nothing, and leaves nothing behind."""

import pytest

from fleet.slots import ChangeState

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


def test_code_that_cannot_start_goes_back(unique, open_shop, counting):
    """The roll ends rolled back with the reason; the old workers never drained."""
    shop = open_shop(f"cold-{unique}", assignor="range", heartbeat_interval="1s")
    shop.create_topic(4)
    count = counting(shop)
    with shop.stream(rate=100):
        count.apply()
        shop.edit_job("VERSION = 1", "VERSION = {}['missing']")
        before = count.recorded()
        with shop.fleet() as fleet:
            held = {s.number: (s.holder, s.token) for s in fleet.slots(shop.group) if s.holder}
            change = fleet.apply(shop.group, actor="test", progress=shop.say)
            assert change.state is ChangeState.ROLLED_BACK
            assert "got warm" in change.sentence
            assert "KeyError" in change.sentence
            assert held == {
                s.number: (s.holder, s.token) for s in fleet.slots(shop.group) if s.holder
            }
            new = change.plan.revision
            shop.until(
                lambda: all(w.revision != new for w in fleet.workers(shop.group)),
                "its workers to be gone",
            )
        assert count.recorded() == before
    shop.await_drained()
    assert shop.lost_and_twice() == (0, 0)
