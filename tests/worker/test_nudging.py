"""When a member subscribes again, and when it does not: bounds, topics, protocols, threads [41]."""

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.act.kafka import GroupAdmin
from fleet.clock import ManualClock
from fleet.model import TopicPartition
from fleet.slots import Phase, Slot, SlotTargets
from fleet.slots.sqlite import SqliteStore
from fleet.worker.member.losses import StoppedPartitionsView
from fleet.worker.member.membership import (
    LONGEST,
    MOST,
    PAUSE,
    STILL,
    VARIABLE,
    Membership,
    Resubscriber,
)
from fleet.worker.slot.slot_life import Life
from fleet.worker.slot.slot_owner import NEW_OWNER_JOINS, SlotOwner
from tests.conftest import RunningBroker
from tests.support.batch_parts import connected, events_of, runner_of, worker_context
from tests.support.declared import group_spec, settings_of
from tests.support.kafka_tools import dump_records
from tests.support.memory_kafka import MemoryKafka
from tests.support.waiting import until
from tests.worker.rig import CLOCK, Drive, Driven

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Turns:
    """A consumer thread's turns over one `Resubscriber`, on a clock that is moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ours, self.joins = True, False
        self.mark: object = 0
        context = worker_context(clock=self.clock)
        self.resubscribing = Resubscriber(
            context, ours=lambda: self.ours, joining=lambda: self.joins
        )

    def over(self, seconds: float) -> int:
        """How often it was due, looked at every 20 ms."""
        times = 0
        for _ in range(round(seconds / 0.02)):
            times += self.resubscribing.is_due(lambda: self.mark)
            self.clock.sleep(0.02)
        return times


def test_it_ends_once_nothing_moves():
    """Nothing before the change begins; then every `PAUSE`, until all keeps still."""
    turns = Turns()
    assert turns.over(5.0) == 0
    turns.resubscribing.begin("a change", turns.clock.monotonic() + 2.0)
    assert turns.over(1.9) == 0
    assert turns.over(60.0) == STILL
    turns.resubscribing.begin("a change", turns.clock.monotonic())
    assert turns.over(2 * PAUSE + 0.1) == 3
    turns.mark = 1
    assert turns.over(60.0) == STILL


def test_it_ends_in_any_case():
    """Also where a joiner never gets ready, and where the epoch never keeps still."""
    turns = Turns()
    turns.joins = True
    turns.resubscribing.begin("a change", turns.clock.monotonic())
    assert turns.over(LONGEST) <= MOST
    assert turns.over(600.0) == 0


def test_who_lost_its_slot_does_not():
    turns = Turns()
    turns.resubscribing.begin("a change", turns.clock.monotonic())
    assert turns.over(PAUSE) == 1
    turns.ours = False
    assert turns.over(60.0) == 0
    turns.ours = True
    assert turns.over(60.0) == 0


# --- a real membership ------------------------------------------------------------------------


@pytest.fixture
def member(kafka: MemoryKafka, drive: Drive) -> Iterator[Driven]:
    """Of KIP-848, at work and settled."""
    driven = drive(A, B, protocol="consumer")
    driven.until(lambda: len(driven.events("resubscribed")) == 1, "the end of its own join")
    kafka.subscribed.clear()
    return driven


def test_the_same_topics_on_the_same_thread(kafka: MemoryKafka, member: Driven):
    """By the thread that owns the consumer, until all keeps still, told once [1]."""
    member.member.expect_change("a change", CLOCK.monotonic())
    member.until(lambda: len(member.events("resubscribed")) == 2, "the end of the change")
    assert set(kafka.subscribed) == {(("t",), "member")}
    assert len(kafka.subscribed) == STILL


def test_not_while_it_drains(kafka: MemoryKafka, member: Driven):
    """Whom a batched leave removes must not join again."""
    member.joining = True
    member.member.expect_change("a change", CLOCK.monotonic())
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
    member.member.expect_change("a change", CLOCK.monotonic())
    member.turns(100)
    assert len(kafka.subscribed) == 1


# --- what an owner sees -----------------------------------------------------------------------


class Looks:
    """An owner's looks at slot targets and slots."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        unused: Any = SimpleNamespace(store=None, canary=None)
        parts = dict.fromkeys(("watcher", "completer", "failover", "runner", "reporter"), unused)
        self.owner = SlotOwner(worker_context(clock=self.clock), Slot(group="g", number=0), **parts)
        self.targets = SlotTargets(group="g", version=1, open=frozenset({0, 1}))
        self.slots = {n: held(n) for n in (0, 1)}
        assert self.look() is None

    def look(self) -> tuple[str, float] | None:
        """One; the time as seconds from now."""
        seen = self.owner._find_change(self.targets, tuple(self.slots.values()), frozenset())
        return None if seen is None else (seen[0], seen[1] - self.clock.monotonic())

    def take(self, number: int, worker: str) -> None:
        """By another owner, which still joins."""
        slot = self.slots[number]
        self.slots[number] = replace(slot, owner=worker, token=slot.token + 1, phase=Phase.JOINING)


def held(number: int) -> Slot:
    """By a worker that is ready."""
    return Slot(
        group="g",
        number=number,
        owner=f"w{number}",
        token=1,
        phase=Phase.ACTIVE,
        member_id=f"m{number}",
    )


def test_slots_that_open_and_close():
    """From the time of the joint subscribe on; a leave is seen when it is over."""
    looks = Looks()
    looks.targets = replace(
        looks.targets, open=frozenset({0, 1, 2}), open_at=looks.clock.now() + 1.5
    )
    assert looks.look() == ("slots were opened", pytest.approx(1.5))
    assert looks.look() is None
    looks.targets = replace(looks.targets, leaving=frozenset({2}))
    assert looks.look() is None
    looks.targets = replace(looks.targets, open=frozenset({0, 1}), leaving=frozenset())
    assert looks.look() == ("slots were closed", 0.0)
    assert looks.look() is None


def test_an_end_that_was_seen_is_followed_by_a_failover():
    """Freed for whoever is next before its lease ran out, but not clean: its member has to go."""
    looks = Looks()
    looks.slots[1] = replace(looks.slots[1], owner=None, phase=Phase.FREE, clean=False)
    assert looks.look() is None
    looks.take(1, "n1")
    assert looks.look() is None
    looks.clock.sleep(NEW_OWNER_JOINS)
    assert looks.look() == ("slot 1 was taken over", 0.0)


@pytest.mark.parametrize("quick", [True, False])
def test_a_failover_is_one_once_the_new_owner_has_joined(quick):
    """Not before, lest the others be assigned what is to be its own; then some may be theirs."""
    looks = Looks()
    looks.take(1, "n1")
    assert looks.look() is None
    looks.clock.sleep(NEW_OWNER_JOINS / 2)
    assert looks.look() is None
    if quick:
        looks.slots[1] = replace(looks.slots[1], phase=Phase.ACTIVE)
    else:
        looks.clock.sleep(NEW_OWNER_JOINS / 2)
    assert looks.look() == ("slot 1 was taken over", 0.0)
    assert looks.owner._joining is not quick
    looks.clock.sleep(2 * NEW_OWNER_JOINS)
    assert looks.look() is None


def test_a_forced_rebalance_is_one_when_it_is_over():
    looks = Looks()
    looks.targets = replace(looks.targets, rejoin={1: 1})
    assert looks.look() is None
    looks.targets = replace(looks.targets, rejoin={})
    assert looks.look() == ("a forced rebalance", 0.0)


# --- a real KIP-848 group: as many assignments as without, sooner -----------------------------


PARTITIONS = 12
AHEAD = 1.5
_ASSIGNMENT = 6


class Crew:
    """The members of one group, in this process; nothing is written to their topic."""

    def __init__(self, bootstrap: str, folder: Path, group: str, *, hurried: bool) -> None:
        self.group, self.hurried = group, hurried
        self.members: dict[int, Membership] = {}
        self.took: list[float] = []
        """Seconds that each change took."""
        self._began = 0.0
        self._settings = settings_of(
            group_spec(group, worker={"protocol": "consumer"}, topics=[group]), bootstrap=bootstrap
        )
        self._store = SqliteStore(folder / f"{group}.db", cluster="main", clock=CLOCK)
        self._runners = []

    def join(self, *numbers: int) -> None:
        """All of them at one time, a little ahead."""
        opens = time.time() + AHEAD
        for number in numbers:
            self.members[number] = self._member(number, opens)
            self.members[number].start()
        self._change("slots were opened", AHEAD)

    def leave(self, admin: GroupAdmin, *numbers: int) -> None:
        """In one request."""
        gone = {number: self.members.pop(number) for number in numbers}
        for member in gone.values():
            member.become(Life.CLOSING)
        assert all(member.join(20) for member in gone.values())
        named = [(f"{self.group}-{n}", str(m.state.member_id)) for n, m in gone.items()]
        assert admin.leave(self.group, named, reason="test") is None
        self._change("slots were closed", 0.0)

    def settled(self) -> bool:
        """Every partition has one owner, and all have alike many."""
        owned = [member.state.partitions for member in self.members.values()]
        sizes = {len(each) for each in owned}
        whole = len(frozenset().union(*owned)) == sum(map(len, owned)) == PARTITIONS
        if not whole or max(sizes) - min(sizes) > 1:
            return False
        if self._began:
            self.took.append(time.monotonic() - self._began)
            self._began = 0.0
        return True

    def end(self) -> None:
        for member in self.members.values():
            member.become(Life.LOST)
        for member in self.members.values():
            member.join(20)
        for runner in self._runners:
            runner.stop()

    def _change(self, why: str, ahead: float) -> None:
        self._began = time.monotonic() + ahead
        for member in self.members.values():
            member.expect_change(why, self._began)

    def _member(self, number: int, opens: float) -> Membership:
        events = events_of(f"w{number}", FLEET_EVENTS=os.devnull)
        context = worker_context(self._settings, name=f"w{number}", events=events)
        runner = runner_of(connected(), context=context)
        self._runners.append(runner)
        return Membership(
            context,
            Slot(group=self.group, number=number),
            open_at=opens,
            runner=runner,
            marks=StoppedPartitionsView(self._store, context),
            may_join=lambda: True,
            joining=lambda: not all(m.state.assigned for m in self.members.values()),
        )


def has_partitions(admin: AdminClient, topic: str) -> bool:
    """Whether it has its partitions."""
    return len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == PARTITIONS


@pytest.fixture
def crews(
    broker: RunningBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Crew, Crew]]:
    """One that hears at once and one that waits for its heartbeats."""
    bootstrap = broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = []
    for name, hurried in (("hurried", True), ("patient", False)):
        group = f"{name}-{unique}"
        admin.create_topics([NewTopic(group, PARTITIONS, 1)])[group].result(120)
        until(lambda group=group: has_partitions(admin, group), f"topic {group} to be known")
        made.append(Crew(bootstrap, tmp_path, group, hurried=hurried))
    yield made[0], made[1]
    for crew in made:
        crew.end()


@pytest.mark.broker
def test_as_many_assignments_and_sooner(
    crews: tuple[Crew, Crew], broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
):
    marks = [0.0]

    def each(what: str, *numbers: int) -> None:
        for crew in crews:
            monkeypatch.setenv(VARIABLE, "1" if crew.hurried else "0")
            if what == "leave":
                with GroupAdmin(
                    bootstrap=broker.bootstrap_servers, kafka_python_config={}
                ) as admin:
                    crew.leave(admin, *numbers)
            else:
                crew.join(*numbers)
        until(lambda: [crew.settled() for crew in crews] == [True, True], f"{what} to settle")
        marks.append(time.time())

    each("join", 0)
    time.sleep(2.0)  # assignments are a second apart at least
    each("join", 1, 2, 3)
    time.sleep(2.0)
    each("leave", 1, 2, 3)
    found = dump_records(broker.broker, [crew.group for crew in crews])
    told = {}
    for crew in crews:
        at = [
            r.timestamp / 1000
            for r in found
            if r.group == crew.group and r.type == _ASSIGNMENT and r.value is not None
        ]
        told[crew.hurried] = [sum(a < t <= b for t in at) for a, b in itertools.pairwise(marks)]
        print(crew.group, told[crew.hurried], [f"{each:.2f} s" for each in crew.took])
    assert told[True][1:] == told[False][1:] == [2, 1]
    hurried, patient = (crew.took for crew in crews)
    assert hurried[1] < patient[1]
    assert hurried[2] < patient[2]
