"""Admin writes on a real broker: the batched leave and who survives it, topics, groups."""

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer

from fleet.act.kafka import GroupAdmin
from fleet.errors import FleetError, Unreachable
from fleet.worker.member.protocols import is_unreleased
from tests.support.kafka_tools import generations
from tests.support.waiting import until

PARTITIONS = 6


class StaticMembers:
    """Real static members of one group, polled in turn by one thread.

    A KIP-848 member that never hears the answer to its first heartbeat asks again and is refused
    (111) for the sake of the member that it already is: what a worker does about it is done here.
    """

    def __init__(
        self, admin: GroupAdmin, bootstrap: str, group: str, topic: str, protocol: str
    ) -> None:
        self.admin, self.bootstrap = admin, bootstrap
        self.group, self.topic, self.protocol = group, topic, protocol
        self.consumers: dict[int, Consumer] = {}
        self.all: list[Consumer] = []

    def join(self, number: int) -> Consumer:
        """A member with the instance id of that slot; the one before it is left to its fate."""
        settings = {"group.protocol": self.protocol}
        if self.protocol == "classic":
            settings |= {
                "session.timeout.ms": "45000",
                "heartbeat.interval.ms": "500",
                "partition.assignment.strategy": "range",
            }
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "group.instance.id": f"{self.group}-{number}",
                "enable.auto.commit": False,
                **settings,
            }
        )
        consumer.subscribe([self.topic])
        self.consumers[number] = consumer
        self.all.append(consumer)
        return consumer

    def poll_until(self, done: Callable[[], bool]) -> None:
        """Poll all members in turn until something holds."""

        def held() -> bool:
            for number, consumer in list(self.consumers.items()):
                message = consumer.poll(0.02)
                error = message.error() if message is not None else None
                if error and is_unreleased(error):
                    self.admin.leave(self.group, self.leaving(number), reason="refused")
                    self.join(number)
            return done()

        until(held, "the group", every=0.0)

    def settled(self) -> bool:
        """Every partition has an owner and every member has some."""
        owned = [len(consumer.assignment()) for consumer in self.consumers.values()]
        return sum(owned) == PARTITIONS and 0 not in owned

    def leaving(self, *numbers: int) -> list[tuple[str, str]]:
        """Both names of these members."""
        return [(f"{self.group}-{n}", self.consumers[n].memberid()) for n in numbers]

    def generations(self, broker) -> set[int]:
        """As the coordinator recorded them; a KIP-848 group has none."""
        if self.protocol == "consumer":
            return set()
        return set(generations(broker.broker, self.group))

    def close(self, *numbers: int) -> None:
        """Close without leaving, as static members do."""
        for number in numbers:
            self.consumers.pop(number).close()


@pytest.fixture
def admin(broker) -> Iterator[GroupAdmin]:
    with GroupAdmin(bootstrap=broker.bootstrap_servers, kafka_python_config={}) as admin:
        yield admin


@pytest.fixture
def members(broker, admin, unique, request) -> Iterator[StaticMembers]:
    protocol = getattr(request, "param", "classic")
    topic = f"leave-{unique}"
    assert admin.create_topic(topic, PARTITIONS, 1) is True
    members = StaticMembers(admin, broker.bootstrap_servers, f"leavers-{unique}", topic, protocol)
    yield members
    for consumer in members.all:
        consumer.close()


@pytest.mark.parametrize("members", ["classic", "consumer"], indirect=True)
def test_three_closed_members_leave_in_one_request(members, admin, broker):
    """One rebalance for all three; a second request is answered with 25 and costs nothing."""
    for number in range(4):
        members.join(number)
    members.poll_until(members.settled)
    before = members.generations(broker)
    leaving = members.leaving(1, 2, 3)
    members.close(1, 2, 3)
    assert admin.leave(members.group, leaving, reason="three fewer") is None
    members.poll_until(members.settled)
    assert admin.leave(members.group, leaving, reason="three fewer, again") is None
    time.sleep(0.6)  # a second rebalance would have begun by the next heartbeat
    members.poll_until(members.settled)
    after = members.generations(broker)
    assert len(after - before) == (1 if members.protocol == "classic" else 0)


@pytest.mark.parametrize("members", ["classic", "consumer"], indirect=True)
def test_a_stale_leave_is_answered_with_82_and_evicts_nobody(members, admin, broker):
    """Member id and instance id together: the live successor of a slot stays [16]."""
    members.join(0)
    members.join(1)
    members.poll_until(members.settled)
    (stale,) = members.leaving(0)
    members.close(0)
    successor = members.join(0)
    members.poll_until(members.settled)
    before = members.generations(broker)
    why = admin.leave(members.group, [stale], reason="stale")
    assert why == f"{stale[0]} now belongs to another process (82), which stays a member"
    owned = successor.assignment()
    deadline = time.monotonic() + 1.5  # three heartbeats
    members.poll_until(lambda: time.monotonic() > deadline)
    assert successor.assignment() == owned
    assert members.generations(broker) == before


def test_a_leave_by_instance_id_alone_is_refused(admin):
    """Without the member id it could evict a live successor: nothing is sent."""
    with pytest.raises(FleetError, match="must name member id and instance id together"):
        admin.leave("g", [("g-0", "")], reason="")
    assert admin.leave("g", [], reason="nobody") is None


def test_members_of_an_unknown_group_are_gone(admin, unique):
    """A group that does not exist (any more) has no such members."""
    assert admin.leave(f"none-{unique}", [("g-0", "m")], reason="") is None


def test_a_topic_is_created_once(admin, unique):
    """The second creation says so; a refusal carries the broker's reason."""
    assert admin.create_topic(f"once-{unique}", 2, 1) is True
    assert admin.create_topic(f"once-{unique}", 2, 1) is False
    with pytest.raises(FleetError, match=r"INVALID_REPLICATION_FACTOR \(38\)"):
        admin.create_topic(f"thrice-{unique}", 2, 3)


def test_a_groups_own_setting_is_set_and_taken_back(admin, unique):
    """The assignment interval of a KIP-848 group before and after the slot targets [19]."""
    group, name = f"settings-{unique}", "consumer.assignment.interval.ms"
    assert admin.group_setting(group, name) is None
    admin.set_group_setting(group, name, "5000")
    until(lambda: admin.group_setting(group, name) == "5000", "the setting to be read")
    admin.set_group_setting(group, name, None)
    until(lambda: admin.group_setting(group, name) is None, "the default to be back")


def test_no_broker_is_said_within_bounds(monkeypatch):
    """A cluster that does not answer: which address, after a bounded wait."""
    monkeypatch.setattr("fleet.act.kafka.LONGEST_WAIT", 1.0)
    admin = GroupAdmin(bootstrap="127.0.0.1:1", kafka_python_config={})
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 did not answer"):
        admin.group_setting("g", "consumer.assignment.interval.ms")
    assert time.monotonic() - began < 30, "bounded, though not by this machine's speed"


def test_what_is_no_broker_is_said_and_leaves_nothing_behind(monkeypatch):
    """A port that accepts and says nothing: bounded too, no thread stays."""
    monkeypatch.setattr("fleet.act.kafka.LONGEST_WAIT", 1.0)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        admin = GroupAdmin(bootstrap=f"127.0.0.1:{deaf.getsockname()[1]}", kafka_python_config={})
        with pytest.raises(Unreachable, match="did not answer"):
            admin.group_setting("g", "consumer.assignment.interval.ms")
    assert not [t for t in threading.enumerate() if "kafka-io-fleet-admin" in t.name]
