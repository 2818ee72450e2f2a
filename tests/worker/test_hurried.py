"""A real KIP-848 group whose members hear at once: as many assignments as without, sooner [41].

Two groups go through the same on one broker: a member, three more through a gate, and those
three leave in one request. Assignments are counted by Kafka's own tool (type 6).
"""

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.act.kafka import GroupAdmin
from fleet.clock import SystemClock
from fleet.slots import Slot
from fleet.slots.sqlite import SqliteStore
from fleet.worker.member.losses import QuarantinedPartitions
from fleet.worker.member.membership import VARIABLE, Membership
from fleet.worker.slot.slot_life import Life
from tests.conftest import RunningBroker
from tests.support.batch_parts import connected, events_of, runner_of, worker_context
from tests.support.declared import group_spec, settings_of
from tests.support.kafka_tools import dump_records
from tests.support.waiting import until

pytestmark = pytest.mark.broker

CLOCK = SystemClock()
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
            member.hear(why, self._began)

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
            marks=QuarantinedPartitions(self._store, context),
            may_join=lambda: True,
            joining=lambda: not all(m.state.assigned for m in self.members.values()),
        )


def known(admin: AdminClient, topic: str) -> bool:
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
        until(lambda group=group: known(admin, group), f"topic {group} to be known")
        made.append(Crew(bootstrap, tmp_path, group, hurried=hurried))
    yield made[0], made[1]
    for crew in made:
        crew.end()


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
