"""Every kind of group is seen with its type, state, members and offsets, by old brokers, too."""

import time
from contextlib import closing

from confluent_kafka import Consumer, Producer, ShareConsumer

from fleet.clock import SystemClock
from fleet.log.readers.tail import Tail
from fleet.model import GroupState, TopicPartition
from fleet.observe.admin import Observer
from fleet.observe.watcher import GroupWatcher
from tests.observe.foreign_member import ForeignMember
from tests.observe.test_snapshot import commit, config, observer, topic_of
from tests.support.streams_member import StreamsMember, settle
from tests.support.waiting import until

__all__ = ["config", "topic_of"]


def kip_848_member(config: dict[str, str], group: str, topic: str) -> Consumer | None:
    """A static member with all partitions; None where its join was refused (111).

    A busy broker may answer the first heartbeat too late, and refuses the repeated one, for the
    instance id is that of the member that it made for the first.
    """
    client = Consumer(
        {
            **config,
            "group.id": group,
            "group.protocol": "consumer",
            "group.instance.id": f"{group}-0",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 1000,  # the topic is this moment's
            "log_level": 0,
        }
    )
    client.subscribe([topic])
    end = time.monotonic() + 120
    while len(client.assignment()) < 2:
        assert time.monotonic() < end, client.assignment()
        message = client.poll(0.1)
        error = None if message is None else message.error()
        if error is not None and "instance ID is still used" in error.str():
            client.close()
            return None
    return client


def test_a_kip_848_group_is_seen_with_its_members(config, topic_of, unique):
    """Type, server assignor, instance id and owners; also where it was of another type before."""
    topic = topic_of("t", 2, 1)
    names = [f"new-{unique}", f"again-{unique}"]
    before = observer(config)
    for name in names:
        commit(config, name, topic, 0)
    assert [before.state(name) for name in names] == [GroupState.EMPTY] * 2
    group, client = next(
        (name, made) for name in names if (made := kip_848_member(config, name, topic))
    )
    found = observer(config).snapshot([group]).groups[group]
    assert (found.type, found.assignor) == ("consumer", "uniform")
    assert found.state in {GroupState.STABLE, GroupState.REBALANCING}
    assert [member.instance_id for member in found.members] == [f"{group}-0"]
    assert {state.owner for state in found.partitions} == {found.members[0].member_id}
    assert before.state(group) in {GroupState.STABLE, GroupState.REBALANCING}
    client.close()


def test_every_kind_of_group_is_seen(broker, config, topic_of, unique):
    """Share and streams groups with type, state, members and what these read; Connect's, too."""
    topic = topic_of("t", 3, 4)
    shared, streams, connect = (f"{each}-{unique}" for each in ("share", "streams", "connect"))
    client = ShareConsumer({**config, "group.id": shared, "log_level": 0})
    client.subscribe([topic])
    member = StreamsMember(broker.bootstrap_servers, streams, topic)
    settle([member], 3)
    external = ForeignMember(broker.bootstrap_servers, connect, protocol_type="connect")
    look = observer(config)
    end = time.monotonic() + 120
    found = look.snapshot()
    while not found.members.get(shared) and time.monotonic() < end:
        client.poll(0.2)
        found = look.snapshot()
    assert found.problems == ()
    seen = {name: found.groups[name] for name in (shared, streams, connect)}
    assert {name: (each.exists, each.type, each.state) for name, each in seen.items()} == {
        shared: (True, "share", GroupState.STABLE),
        streams: (True, "streams", GroupState.STABLE),
        connect: (True, "connect", GroupState.STABLE),
    }
    assert [len(each.members) for each in seen.values()] == [1, 1, 1]
    everything = frozenset(TopicPartition(topic, number) for number in range(3))
    assert seen[streams].members[0].partitions == everything
    assert seen[connect].members[0].partitions == frozenset()
    assert seen[shared].assignor == "simple"
    # With the offsets topic's help, as the exporter looks.
    clock = SystemClock()
    with (
        Tail(config, cluster="test", clock=clock).start() as tail,
        closing(GroupWatcher(cluster="test", config=config, clock=clock, tail=tail)) as watching,
    ):
        assert tail.catch_up(60)
        facts = watching.refresh().facts
    assert {name: (facts[name].type, facts[name].state, facts[name].members) for name in seen} == {
        name: (each.type, each.state, 1) for name, each in seen.items()
    }
    # By name, as a plan asks; and by an observer that never listed.
    assert look.snapshot([shared]).groups[shared].type == "share"
    assert [observer(config).state(name) for name in seen] == [GroupState.STABLE] * 3
    client.close()
    member.leave()
    external.close()


def test_a_damaged_assignment_costs_its_member_only(broker, config, unique):
    """The coordinator takes any bytes; the group is there, and the member owns nothing."""
    group = f"damaged-{unique}"
    member = ForeignMember(
        broker.bootstrap_servers, group, protocol_type="consumer", assignment=b"\0\1\0\0\xff"
    )
    seen = observer(config).snapshot([group])
    assert seen.groups[group].state is GroupState.STABLE
    assert [each.partitions for each in seen.groups[group].members] == [frozenset()]
    (problem,) = seen.problems
    assert "assignment is damaged" in problem
    assert f"{member.member_id} of {group}" in problem
    member.close()


def test_what_a_share_group_has_done_is_its_offset(config, topic_of, unique):
    """Lag is what the coordinator counts, to a command and to the exporter: 0 once all is done."""
    topic, group = topic_of("t", 1, 0), f"done-{unique}"
    client = ShareConsumer({**config, "group.id": group, "log_level": 0})
    client.subscribe([topic])
    look, producer = observer(config), Producer(config)
    until(lambda: (client.poll(0.2), look.state(group))[1] is GroupState.STABLE, "a member")

    def lag() -> int | None:
        producer.produce(topic, b"x", partition=0)
        producer.flush(120)
        client.poll(0.5)  # what it gave before is done with
        return look.snapshot([group]).groups[group].lag

    until(lambda: lag() is not None, "an offset")
    for _ in range(30):
        producer.produce(topic, b"x", partition=0)
    producer.flush(120)
    watcher = GroupWatcher(cluster="test", config=config, clock=SystemClock(), tail=None)

    def drained() -> bool:
        client.poll(0.5)
        return lags_of(group, look, watcher) == [0, 0]

    until(drained, "all to be done with")
    (state,) = watcher.refresh().groups[group].partitions
    assert (state.committed is not None, state.lag_seconds) == (True, 0.0)
    client.close()
    for _ in range(7):
        producer.produce(topic, b"x", partition=0)
    producer.flush(120)
    until(lambda: lags_of(group, look, watcher) == [7, 7], "what nobody has done")
    watcher.close()
    look.close()


def lags_of(group: str, *looking: Observer) -> list[int | None]:
    """What a command and the exporter see waiting."""
    return [
        (each.refresh() if isinstance(each, GroupWatcher) else each.snapshot([group]))
        .groups[group].lag
        for each in looking
    ]  # fmt: skip


def test_brokers_of_long_ago_are_asked_one_group_at_a_time(config, topic_of, unique):
    """Kafka 2.4 knows neither many groups in a request nor a group's type: the same figures."""
    topic = topic_of("t", 1, 5)
    groups = [f"old-{unique}-{number}" for number in range(3)]
    for group in groups:
        commit(config, group, topic, 2)
    look = observer(config)
    look._net._config["api_version"] = (2, 4)  # it speaks no newer version then
    seen = look.snapshot(groups)
    assert seen.problems == ()
    assert [(seen.groups[g].type, seen.groups[g].lag) for g in groups] == [("classic", 3)] * 3
    assert {seen.groups[g].state for g in groups} == {GroupState.EMPTY}
    assert [look.state(g) for g in (groups[0], f"none-{unique}")] == [
        GroupState.EMPTY,
        GroupState.DEAD,
    ]
    assert "Read" in look.allowed_operations([f"none-{unique}"], [])["group", f"none-{unique}"]
