"""Each policy sizes a real group on a real broker: it reaches its target, and does not flap.

The test plans every few seconds, as Dagster's schedule does every minute. One worker reads 200
records a second, of which 500 arrive for five minutes. The workers are programs.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks.client_programs import confluent
from fleet.manager.cycle import Fleet
from fleet.slots import ChangeState
from tests.support.workshop import Workshop, ending

pytestmark = [
    pytest.mark.broker,
    pytest.mark.long,
    pytest.mark.timeout(1800),
]

PARTITIONS = 6
SLOW = 0.005
"""Seconds of a worker for each record."""
RATE = 500
LOADED = 300.0
"""Seconds of load."""
EVERY = 3.0
"""Seconds between two plans."""
TARGET = 20.0

POLICIES = {
    "drain_time": {"policy": "drain_time", "target": f"{TARGET:g}s", "starts_in": "5s"},
    "lag": {"policy": "lag", "records_per_worker": 2000},
}


@dataclass(frozen=True, slots=True)
class Look:
    """What one plan saw and left behind."""

    at: float
    slots: int
    lag: int
    age: float | None


def sizes(looks: list[Look]) -> list[int]:
    """The numbers of slots in turn, without repetitions."""
    found = [look.slots for look in looks]
    return [now for before, now in zip([None, *found[:-1]], found, strict=True) if now != before]


class Sized:
    """A group that a policy sizes."""

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop

    def run(self, seconds: float, *, until: Callable[[Look], bool] | None = None) -> list[Look]:
        """Plans and applies for so long, or until a look is as wanted."""
        looks: list[Look] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with self.shop.fleet() as fleet:
                looks.append(self._once(fleet))
            if until is not None and until(looks[-1]):
                break
            time.sleep(EVERY)
        return looks

    def _once(self, fleet: Fleet) -> Look:
        group = self.shop.group
        change = fleet.apply(group, actor="test", progress=self.shop.say)
        assert change.state is ChangeState.DONE, change
        seen = fleet.snapshot([group]).groups[group]
        look = Look(time.time(), fleet.open_slots(group), seen.lag or 0, seen.lag_seconds)
        self.shop.say(str(look))
        return look


@pytest.fixture
def open_group(broker: Any, unique: str, tmp_path: Any) -> Iterator[Callable[..., Sized]]:
    """Declares a group of slow workers; at the end nothing of it runs."""
    with ending() as made:

        def new(scaling: dict[str, Any]) -> Sized:
            group = f"policy-{unique}"
            shop = Workshop(tmp_path, broker.bootstrap_servers, group)
            env = {"FLEET_JOURNAL": str(shop.journal), "RECORD_SECONDS": str(SLOW)}
            command = confluent(shop.bootstrap, group, shop.topic)
            shop._worker = {"command": command, "env": env, "heartbeat_interval": "500ms"}
            made.append(shop)
            shop.declare(scaling=scaling)
            shop.create_topic(PARTITIONS)
            return Sized(shop)

        yield new


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_reaches_its_target_and_stays_there(policy, open_group):
    """It only grows while load comes, to what reads it, and every change is kept with its why."""
    group = open_group(POLICIES[policy])
    with group.shop.stream(rate=RATE):
        looks = group.run(LOADED)
    grown = sizes(looks)
    assert grown == sorted(grown), grown
    assert 3 <= grown[-1] <= PARTITIONS, grown
    last = [look for look in looks if look.at > looks[-1].at - 60]
    assert {look.slots for look in last} == {grown[-1]}
    if policy == "drain_time":
        assert len(grown) <= 3, grown
        assert max(look.age or 0.0 for look in last) <= TARGET, last
    with group.shop.fleet() as fleet:
        kept = fleet.decisions(group.shop.group)
    assert [k.wanted for k in kept if k.wanted != k.current][-1] == grown[-1]
    assert all(k.reason for k in kept)
    assert group.shop.lost_and_duplicates()[0] == 0


def test_a_floor_opens_and_closes_slots_by_the_clock(open_group):
    """Three slots from the next full minute on, for two minutes; one before and after."""
    start = (int(time.time()) // 60 + 2) * 60
    hours = "-".join(
        datetime.fromtimestamp(at, UTC).strftime("%H:%M") for at in (start, start + 120)
    )
    scaling = {
        "policy": "lag", "records_per_worker": 100_000, "down_after": "10s",
        "floors": [{"hours": hours, "min": 3}],
    }  # fmt: skip
    group = open_group(scaling)
    with group.shop.stream(rate=50):
        before = group.run(start - time.time() - EVERY)
        looks = group.run(LOADED, until=lambda look: look.at > start + 60 and look.slots == 1)
    assert sizes(before) == [1]
    assert sizes(looks) in ([1, 3, 1], [3, 1])
    with group.shop.fleet() as fleet:
        kept = fleet.decisions(group.shop.group)
    up, down = (
        next(k.at for k in kept if (k.current, k.wanted) == way) for way in ((1, 3), (3, 1))
    )
    assert 0 <= up - start < 30
    assert 0 <= down - (start + 120) < 60
    assert group.shop.lost_and_duplicates()[0] == 0
