"""When a member subscribes again, and when it does not: bounds, topics, protocols, threads [41]."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.errors import ConfigError
from fleet.model import TopicPartition
from fleet.slots import Gate, Handover, Phase, Slot
from fleet.worker.member.membership import LONGEST, MOST, PAUSE, STILL, Nudging, wanted
from fleet.worker.slot.slot_holder import TAKER_JOINS, SlotHolder
from fleet.worker.slot.slot_life import Life
from tests.support.batch_parts import worker_context
from tests.support.memory_kafka import MemoryKafka
from tests.worker.driving import CLOCK, Drive, Driven

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Turns:
    """A consumer thread's turns over one `Nudging`, on a clock that is moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ours, self.joins = True, False
        self.mark: object = 0
        context = worker_context(clock=self.clock)
        self.nudging = Nudging(context, ours=lambda: self.ours, joining=lambda: self.joins)

    def over(self, seconds: float) -> int:
        """How often it was due, looked at every 20 ms."""
        times = 0
        for _ in range(round(seconds / 0.02)):
            times += self.nudging.due(lambda: self.mark)
            self.clock.sleep(0.02)
        return times


def test_it_ends_once_nothing_moves():
    """Nothing before the change begins; then every `PAUSE`, until all keeps still."""
    turns = Turns()
    assert turns.over(5.0) == 0
    turns.nudging.begin("a change", turns.clock.monotonic() + 2.0)
    assert turns.over(1.9) == 0
    assert turns.over(60.0) == STILL
    turns.nudging.begin("a change", turns.clock.monotonic())
    assert turns.over(2 * PAUSE + 0.1) == 3
    turns.mark = 1
    assert turns.over(60.0) == STILL


def test_it_goes_on_while_others_join():
    turns = Turns()
    turns.joins = True
    turns.nudging.begin("a change", turns.clock.monotonic())
    assert turns.over(5.0) > STILL
    turns.joins = False
    assert turns.over(60.0) <= 1


def test_it_ends_in_any_case():
    """Also where a joiner never gets ready, and where the epoch never keeps still."""
    turns = Turns()
    turns.joins = True
    turns.nudging.begin("a change", turns.clock.monotonic())
    assert turns.over(LONGEST) <= MOST
    assert turns.over(600.0) == 0


def test_who_lost_its_slot_does_not():
    turns = Turns()
    turns.nudging.begin("a change", turns.clock.monotonic())
    assert turns.over(PAUSE) == 1
    turns.ours = False
    assert turns.over(60.0) == 0
    turns.ours = True
    assert turns.over(60.0) == 0


@pytest.mark.parametrize(("told", "is_wanted"), [({}, True), ({"FLEET_NUDGES": "0"}, False)])
def test_the_seam_of_benchmarks(told, is_wanted):
    assert wanted(told) is is_wanted
    with pytest.raises(ConfigError, match="write 0 or 1"):
        wanted({"FLEET_NUDGES": "no"})


# --- a real membership ------------------------------------------------------------------------


@pytest.fixture
def member(kafka: MemoryKafka, drive: Drive) -> Iterator[Driven]:
    """Of KIP-848, at work and settled."""
    driven = drive(A, B, protocol="consumer")
    driven.until(lambda: told(driven, "nudged") == 1, "the end of its own join")
    kafka.subscribed.clear()
    return driven


def told(driven: Driven, event: str) -> int:
    """How often it was."""
    if not driven.events_at.exists():
        return 0
    return driven.events_at.read_text().count(f'"event":"{event}"')


def test_the_same_topics_on_the_same_thread(kafka: MemoryKafka, member: Driven):
    """By the thread that owns the consumer, until all keeps still, told once [1]."""
    member.member.hear("a change", CLOCK.monotonic())
    member.until(lambda: told(member, "nudged") == 2, "the end of the change")
    assert set(kafka.subscribed) == {(("t",), "member")}
    assert len(kafka.subscribed) == STILL


def test_not_while_it_drains(kafka: MemoryKafka, member: Driven):
    """Whom a batched leave removes must not join again."""
    member.joining = True
    member.member.hear("a change", CLOCK.monotonic())
    member.until(lambda: len(kafka.subscribed) == 2, "two of them")
    member.member.become(Life.HOLDING)
    member.turns()
    kafka.subscribed.clear()
    member.turns(100)
    assert kafka.subscribed == []


def test_never_in_the_classic_protocol(kafka: MemoryKafka, drive: Drive):
    """There it would be a new join."""
    member = drive(A, B)
    member.until(lambda: bool(member.member.state.partitions), "the assignment")
    member.joining = True
    member.member.hear("a change", CLOCK.monotonic())
    member.turns(100)
    assert len(kafka.subscribed) == 1


# --- what a holder sees -----------------------------------------------------------------------


class Looks:
    """A holder's looks at gate and slots."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        unused: Any = SimpleNamespace(store=None, canary=None)
        parts = dict.fromkeys(("watcher", "completer", "takeover", "runner", "reporter"), unused)
        self.holder = SlotHolder(
            worker_context(clock=self.clock), Slot(group="g", number=0), **parts
        )
        self.gate = Gate(group="g", version=1, open=frozenset({0, 1}))
        self.slots = {n: held(n) for n in (0, 1)}
        assert self.look() is None

    def look(self) -> tuple[str, float] | None:
        """One; the time as seconds from now."""
        seen = self.holder._what_changed(self.gate, tuple(self.slots.values()), frozenset())
        return None if seen is None else (seen[0], seen[1] - self.clock.monotonic())

    def take(self, number: int, worker: str) -> None:
        """By another holder, which still joins."""
        slot = self.slots[number]
        self.slots[number] = replace(slot, holder=worker, token=slot.token + 1, phase=Phase.JOINING)


def held(number: int) -> Slot:
    """By a worker that is ready."""
    return Slot(
        group="g",
        number=number,
        holder=f"w{number}",
        token=1,
        phase=Phase.ACTIVE,
        member_id=f"m{number}",
    )


def test_slots_that_open_and_close():
    """From the time of the joint subscribe on; a leave is seen when it is over."""
    looks = Looks()
    looks.gate = replace(looks.gate, open=frozenset({0, 1, 2}), open_at=looks.clock.now() + 1.5)
    assert looks.look() == ("slots were opened", pytest.approx(1.5))
    assert looks.look() is None
    looks.gate = replace(looks.gate, leaving=frozenset({2}))
    assert looks.look() is None
    looks.gate = replace(looks.gate, open=frozenset({0, 1}), leaving=frozenset())
    assert looks.look() == ("slots were closed", 0.0)
    assert looks.look() is None


def test_a_handover_is_no_change():
    looks = Looks()
    looks.gate = replace(looks.gate, handover={1: Handover(token=1, revision="r2")})
    assert looks.look() is None
    looks.take(1, "n1")
    assert looks.look() is None
    assert looks.holder._joining
    looks.clock.sleep(10 * TAKER_JOINS)
    assert looks.look() is None


def test_a_restart_is_no_change():
    """Released clean and taken again: a static member that comes back moves nothing."""
    looks = Looks()
    looks.slots[1] = replace(looks.slots[1], holder=None, phase=Phase.FREE)
    assert looks.look() is None
    looks.take(1, "n1")
    assert looks.look() is None
    looks.clock.sleep(10 * TAKER_JOINS)
    assert looks.look() is None


def test_an_end_that_was_seen_is_followed_by_a_takeover():
    """Freed for whoever is next before its lease ran out, but not clean: its member has to go."""
    looks = Looks()
    looks.slots[1] = replace(looks.slots[1], holder=None, phase=Phase.FREE, clean=False)
    assert looks.look() is None
    looks.take(1, "n1")
    assert looks.look() is None
    looks.clock.sleep(TAKER_JOINS)
    assert looks.look() == ("slot 1 was taken over", 0.0)


@pytest.mark.parametrize("quick", [True, False])
def test_a_takeover_is_one_once_the_taker_has_joined(quick):
    """Not before, lest the others be assigned what is to be its own; then some may be theirs."""
    looks = Looks()
    looks.take(1, "n1")
    assert looks.look() is None
    looks.clock.sleep(TAKER_JOINS / 2)
    assert looks.look() is None
    if quick:
        looks.slots[1] = replace(looks.slots[1], phase=Phase.ACTIVE)
    else:
        looks.clock.sleep(TAKER_JOINS / 2)
    assert looks.look() == ("slot 1 was taken over", 0.0)
    assert looks.holder._joining is not quick
    looks.clock.sleep(2 * TAKER_JOINS)
    assert looks.look() is None


def test_a_taker_that_is_gone_again_is_none():
    """Its slot is free, or the next one's: that one is waited for."""
    looks = Looks()
    looks.take(1, "n1")
    assert looks.look() is None
    looks.slots[1] = replace(looks.slots[1], holder=None, phase=Phase.FREE, clean=False)
    assert looks.look() is None
    looks.clock.sleep(TAKER_JOINS)
    assert looks.look() is None
    looks.take(1, "n2")
    assert looks.look() is None
    looks.slots[1] = replace(looks.slots[1], phase=Phase.ACTIVE)
    assert looks.look() == ("slot 1 was taken over", 0.0)


def test_a_forced_rebalance_is_one_when_it_is_over():
    looks = Looks()
    looks.gate = replace(looks.gate, rejoin={1: 1})
    assert looks.look() is None
    looks.gate = replace(looks.gate, rejoin={})
    assert looks.look() == ("a forced rebalance", 0.0)
