"""Each policy sizes a real group on a real broker: it reaches its target, and does not flap.

The test plans every few seconds, as Dagster's schedule does every minute. One worker reads 200
records a second, of which 500 arrive for five minutes. The workers are programs, or PySpark's.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks.client_programs import confluent
from fleet.decide.decision_log import KeptDecision
from fleet.manager.cycle import Fleet
from fleet.slots import ChangeState
from tests.support.json_server import JsonHandler, serving
from tests.support.workshop import Workshop, ending

pytestmark = [
    pytest.mark.broker,
    pytest.mark.long,
    pytest.mark.timeout(1800),
]

PARTITIONS = 6
SLOW = 0.005
"""Seconds of a worker for each record."""
JOB_SECONDS = f"{SLOW} * sum(each.end - each.start for each in context.ranges)"
RATE = 500
LOADED = 300.0
"""Seconds of load."""
EVERY = 3.0
"""Seconds between two plans."""
TARGET = 20.0

POLICIES = {
    "drain_time": {"policy": "drain_time", "target": f"{TARGET:g}s", "starts_in": "5s"},
    "lag": {"policy": "lag", "records_per_worker": 2000},
    "packed": {"policy": "packed"},
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

    def kept(self) -> tuple[KeptDecision, ...]:
        """The decisions that are kept of it."""
        with self.shop.fleet() as fleet:
            found = fleet.decisions(self.shop.group)
        for each in found:
            self.shop.say(f"{each.at:.0f}: {each.current} to {each.wanted}: {each.sentence}")
        return found


@pytest.fixture
def open_group(broker: Any, unique: str, tmp_path: Any) -> Iterator[Callable[..., Sized]]:
    """Declares a group of slow workers; at the end nothing of it runs."""
    with ending() as made:

        def new(scaling: dict[str, Any], spark: str | None = None) -> Sized:
            group = f"policy-{unique}"
            shop = Workshop(tmp_path, broker.bootstrap_servers, group)
            if spark is None:
                env = {"FLEET_JOURNAL": str(shop.journal), "RECORD_SECONDS": str(SLOW)}
                command = confluent(shop.bootstrap, group, shop.topic)
                shop._worker = {"command": command, "env": env, "heartbeat_interval": "500ms"}
            else:
                shop.edit_job('os.environ.get("JOB_SECONDS", "0")', JOB_SECONDS)
                batch = {"max_wait": "1200ms", "inline": 1000}
                shop._worker |= {"spark": spark, "reading": "inline", "batch": batch}
            made.append(shop)
            shop.declare(scaling=scaling)
            shop.create_topic(PARTITIONS)
            return Sized(shop)

        yield new


@pytest.mark.parametrize(
    ("policy", "workers"),
    [
        *((policy, "programs") for policy in POLICIES),
        pytest.param("drain_time", "spark", marks=pytest.mark.spark),
    ],
)
def test_a_policy_reaches_its_target_and_stays_there(policy, workers, open_group, request):
    """It only grows while load comes, to what reads it, and every change is kept with its why."""
    spark = request.getfixturevalue("spark_address") if workers == "spark" else None
    group = open_group(POLICIES[policy], spark)
    group.run(EVERY)
    with group.shop.stream(rate=RATE):
        looks = group.run(LOADED)
    kept = group.kept()
    grown = sizes(looks)
    assert grown == sorted(grown), grown
    assert 3 <= grown[-1] <= PARTITIONS, grown
    last = [look for look in looks if look.at > looks[-1].at - 60]
    assert {look.slots for look in last} == {grown[-1]}
    if policy != "lag":
        assert len(grown) <= 3, grown
    if policy == "drain_time":
        assert max(look.age or 0.0 for look in last) <= TARGET, last
    if policy == "packed":
        assert last[-1].lag <= max(look.lag for look in looks) / 2, "what waited is read"
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
    kept = group.kept()
    up, down = (
        next(k.at for k in kept if (k.current, k.wanted) == way) for way in ((1, 3), (3, 1))
    )
    assert 0 <= up - start < 30
    assert 0 <= down - (start + 120) < 60
    assert group.shop.lost_and_duplicates()[0] == 0


def test_the_number_of_another_program_is_obeyed_and_without_one_the_size_held(open_group):
    """It rises, falls, turns to nonsense, and at last its server is gone."""
    answer: dict[str, Any] = {}

    class Sizer(JsonHandler):
        def get(self) -> None:
            self.say(200, answer)

    with serving(Sizer) as url:
        scaling = {"policy": "external", "url": url, "value_location": "wanted", "down_after": "5s"}
        group = open_group(scaling)
        with group.shop.stream(rate=50):
            looks = []
            for wanted in (1, 4, 2):
                answer["wanted"] = wanted
                looks += group.run(30)
            for nonsense in ("many", -1, 20_000, None):
                answer["wanted"] = nonsense
                looks += group.run(10)
    looks += group.run(10)
    assert sizes(looks) == [1, 4, 2]
    kept = [each.reason for each in group.kept()]
    source = url.removeprefix("http://")
    for why in (
        f"{source} asks for 4: 4 slots",
        f"no number from {source} (its answer holds no number there",
        "it answers -1; allowed are 0 to 10,000",
        "it answers 20000; allowed are 0 to 10,000",
        "it cannot be reached",
    ):
        assert any(why in reason for reason in kept), (why, kept)
    assert group.shop.lost_and_duplicates()[0] == 0
