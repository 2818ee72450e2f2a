"""Dynamic members on a real broker: their own roll in rolling batches, at the stated expected cost.

docs/concepts/cost.md: all N rolled with room for N more: 2 (range), at most 3 (cooperative); with
less room that per rolling batch. Counted by Kafka's own tool.
"""

import time
from dataclasses import replace

import pytest

from fleet.model import StepKind
from fleet.slots import ChangeState, Phase
from tests.support.workshop import kill

pytestmark = [pytest.mark.broker, pytest.mark.spark]

HOW = {"canary_batches": 1, "warm_timeout": "5m"}
FAILS = """VERSION = 2


def write_journal(context, rows):
    context.warm or {}['missing']
"""
MOST = {"range": 1, "cooperative-sticky": 2}


@pytest.fixture
def fleet_of(unique, open_shop):
    """A workshop of dynamic members, with eight partitions, rolled so many at once."""

    def made(assignor: str, width: int, partitions: int = 8, bake: str = "2s"):
        shop = open_shop(
            f"dynamic-{unique}", assignor=assignor, membership="dynamic", heartbeat_interval="1s"
        )
        shop.declare(rollout={**HOW, "bake": bake, "max_parallel": width})
        shop.create_topic(partitions)
        return shop

    return made


def test_roll_and_down(fleet_of, counting):
    """With room for all: a roll is 2 under range, k fewer are 1; nothing lost or twice."""
    shop = fleet_of("range", 2)
    count = counting(shop)
    with shop.stream(rate=100):
        assert count.apply() == {StepKind.OPEN: [1]}
        shop.new_code()
        assert count.apply() == {StepKind.ROLL: [2]}
        assert count.apply(wanted=1) == {StepKind.LEAVE: [1]}
    assert shop.lost_and_duplicates() == (0, 0)


@pytest.mark.long
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("width", [2, 4])
def test_four_rolled_with_more_and_less_room(assignor, width, fleet_of, counting):
    """Four members in one rolling batch or in two; then up by two and down by four, one episode
    each.
    """
    shop = fleet_of(assignor, width)
    count = counting(shop)
    with shop.stream(rate=100):
        count.apply()
        (up,) = count.apply(wanted=4)[StepKind.OPEN]
        assert 1 <= up <= MOST[assignor]
        shop.new_code()
        rolling_batches = count.apply(wanted=4)[StepKind.ROLL]
        assert len(rolling_batches) == 4 // width
        assert all(2 <= cost <= 1 + MOST[assignor] for cost in rolling_batches)
        (up,) = count.apply(wanted=6)[StepKind.OPEN]
        assert 1 <= up <= MOST[assignor]
        (down,) = count.apply(wanted=2)[StepKind.LEAVE]
        assert 1 <= down <= MOST[assignor]
    assert shop.lost_and_duplicates() == (0, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("members", "bad", "costs"),
    [
        pytest.param(("range", 2), "VERSION = {}['missing']", {0}, id="cannot-be-imported"),
        pytest.param(("range", 2), FAILS, range(2, 9), id="fails"),  # who dies leaves by itself
        # Beside the old ones there is nothing for them: it shows once those have left.
        pytest.param(("cooperative-sticky", 2, 2, "40s"), FAILS, range(4, 20), id="fails-alone"),
    ],
)
def test_a_bad_first_rolling_batch_leaves_again(members, bad, costs, fleet_of, counting):
    """The old members are there in the end; the plan ends rolled back with the error."""
    shop = fleet_of(*members)
    count = counting(shop)
    with shop.stream(rate=100):
        count.apply()
        shop.edit_job("VERSION = 1", bad)
        before = count.recorded()
        with shop.fleet() as fleet:
            held = fleet.targets(shop.group).open
            change = fleet.apply(shop.group, actor="test", progress=shop.say)
            assert change.state is ChangeState.ROLLED_BACK
            assert "KeyError" in change.sentence
            assert fleet.targets(shop.group).open == held
            assert not fleet.targets(shop.group).handover
        assert count.recorded() - before in costs
    assert shop.lost_and_duplicates() == (0, 0)


@pytest.mark.long
def test_a_killed_member_is_evicted_by_its_taker(fleet_of, counting):
    """Kill -9: the standby sends the dead member's leave, and does not wait for its session."""
    shop = fleet_of("range", 2)
    count = counting(shop)
    with shop.stream(rate=100):
        count.apply()
        before = count.recorded()
        with shop.fleet() as fleet:
            victim = next(s for s in fleet.slots(shop.group) if s.owner)
            pid = next(w.pid for w in fleet.workers(shop.group) if w.name == victim.owner)
            assert pid is not None
            kill(pid)
            killed = time.monotonic()

            def taken() -> bool:
                now = next(s for s in fleet.slots(shop.group) if s.number == victim.number)
                return now.token > victim.token and now.phase is Phase.ACTIVE

            shop.until(taken, "the slot to be taken")
            assert time.monotonic() - killed < 150, "not the session timeout of 180 s"
        assert count.recorded() - before <= 2
    lost, _ = shop.lost_and_duplicates()
    assert lost == 0


@pytest.mark.long
def test_the_workers_complete_a_leave(fleet_of, counting):
    """The actor dies after asking: members that poll no more are left by whoever is alive [21]."""
    shop = fleet_of("range", 2)
    count = counting(shop)
    with shop.stream(rate=100):
        count.apply(wanted=3)
        before = count.recorded()
        with shop.fleet() as fleet:
            targets = fleet.store.targets(shop.group)
            assert (
                fleet.store.write_targets(replace(targets, leaving=frozenset({1, 2}))) is not None
            )
            shop.until(lambda: fleet.targets(shop.group).open == {0}, "the leave to be completed")

            def alone() -> bool:
                group = fleet.snapshot([shop.group]).groups[shop.group]
                return len(group.members) == 1 and group.state == "Stable"

            shop.until(alone, "one member to be left")
            shop.until(
                lambda: all(not s.owner for s in fleet.slots(shop.group) if s.number),
                "the members to close",
            )
        assert count.recorded() - before == 1
    assert shop.lost_and_duplicates() == (0, 0)
