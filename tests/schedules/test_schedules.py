"""Seeded schedules of our own slot, slot targets and change code: what must hold after every event
does.

2,000 small ones here; 100,000 of up to twelve workers in the long form. A schedule that breaks
something is shrunk, and its timeline told.
"""

import gc
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fleet.log.records import decode
from fleet.log.replay.causes import Replay
from fleet.worker.slot.slot_life import Life
from tests.schedules.schedule import (
    KINDS,
    MANAGER,
    Fault,
    Played,
    Schedule,
    drawn,
    first_broken,
    shrunk,
    told,
)
from tests.schedules.simulated_broker import GROUP
from tests.schedules.simulated_fleet import LEASE
from tests.schedules.simulated_member import SimulatedMember
from tests.schedules.simulated_time import Process

SMALL = 3
"""Workers in the usual run."""


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Python's collector walks all that pytest holds, again and again: a fifth of the time."""
    gc.disable()
    yield
    gc.enable()


def hold(seeds: range, *, most: int, kinds: tuple[str, ...] = KINDS) -> None:
    for begin in range(seeds.start, seeds.stop, 50):
        broken = first_broken(range(begin, min(begin + 50, seeds.stop)), most=most, kinds=kinds)
        gc.collect()
        if broken is not None:
            pytest.fail(told(broken), pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_schedules_hold(part: int) -> None:
    """1,800, with three workers each at first."""
    hold(range(part * 450, part * 450 + 450), most=SMALL)


@pytest.mark.parametrize(
    ("change", "frozen"), [("none", (0.3, 1.2)), ("up", (6.0, 8.6)), ("roll", (6.0, 8.6))]
)
def test_an_owner_frozen_before_its_join_fences_nobody(
    change: str, frozen: tuple[float, float]
) -> None:
    """I1, I6: its slot may have a new owner, with the same instance id [54]."""
    assert Played(drawn(10717)).broken is None
    for seed in range(30):
        rng = random.Random(seed)
        stop = Fault(rng.uniform(*frozen), "pause", rng.randrange(5), rng.uniform(LEASE, 28.0))
        count = 2 if change == "up" else 0
        schedule = replace(
            drawn(seed, most=SMALL), static=True, change=change, count=count, faults=(stop,)
        )
        if Played(schedule).broken is not None:
            pytest.fail(told(schedule), pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_managers_come_and_go(part: int) -> None:
    """200 in which a change's actor is stopped, killed, cut off, or has a rival."""
    hold(range(part * 100, part * 100 + 100), most=SMALL, kinds=MANAGER)


@pytest.mark.long
@pytest.mark.parametrize("part", range(100))
def test_long_schedules_hold(part: int) -> None:
    """100,000, with up to twelve workers."""
    hold(range(part * 1000, part * 1000 + 1000), most=12)


class CalledOff(Played):
    """A slot is to leave, and a moment later it is not: as a change that is aborted."""

    def _second(self) -> None:
        person = Process("person", self.world)
        store = self.fleet.store_for(person)

        def leaving(*numbers: int) -> None:
            store.change_targets(
                GROUP, lambda targets: replace(targets, leaving=frozenset(numbers))
            )

        def changes() -> None:
            leaving(0)
            person.sleep(self.world.random.uniform(0.5, 1.5))
            leaving()

        person.start(changes)


def test_what_is_called_off_is_processed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6: also where a batch is in hand, which is then committed before anything is read."""
    held = []

    def become(member: SimulatedMember, life: Life, real=SimulatedMember.become) -> None:
        if life is Life.SERVING:
            held.append(member.hand)
        real(member, life)

    monkeypatch.setattr(SimulatedMember, "become", become)
    for seed in range(40):
        quiet = replace(drawn(seed, most=SMALL), static=True, change="none", faults=())
        assert CalledOff(quiet).broken is None
    assert any(held)


@pytest.mark.parametrize("seed", range(12))
def test_one_seed_tells_one_story(seed: int) -> None:
    """I12: to the last line."""
    stories = [Played(drawn(seed), told=True).world.story for _ in range(2)]
    assert stories[0]
    assert stories[0] == stories[1]


@pytest.mark.parametrize("seed", range(12))
def test_the_log_tells_what_the_coordinator_knows(seed: int) -> None:
    """I13: our replay of what the model wrote, read by our decoder."""
    broker = Played(drawn(seed)).fleet.broker
    replay = Replay("main", GROUP)
    for offset, record in enumerate(broker.coordinator.log):
        found = decode(record.key, record.value, offset=offset, timestamp=0)
        replay.feed(0, found)
    group = broker.group
    assert group is not None
    assert {m.member_id for m in replay.members()} == set(group.members)
    assert replay.number == group.generation


def test_most_kinds_of_faults_are_drawn() -> None:
    """And every kind of change, of both kinds of members."""
    schedules = [drawn(seed, most=SMALL) for seed in range(300)]
    assert {f.kind for s in schedules for f in s.faults} == set(KINDS)
    assert {(s.change, s.static) for s in schedules} >= {("roll", True), ("up", False)}
    assert any(not s.faults for s in schedules)


def test_a_schedule_that_breaks_is_shrunk() -> None:
    """To the one fault that breaks it, and as few workers as there can be."""
    crash = Fault(7.0, "crash", 1)
    more = (Fault(5.5, "freeze", 0, 3.0), crash, Fault(9.0, "clock", 2, 5.0))
    big = replace(drawn(1), workers=8, partitions=9, change="roll", faults=more)

    def breaks(schedule: Schedule) -> bool:
        return crash in schedule.faults

    least = shrunk(big, breaks)
    assert (least.faults, least.workers, least.change) == ((crash,), 3, "none")
    assert "crash (worker 1, 0.0 s)" in told(least)
    assert "is killed" in told(least)
