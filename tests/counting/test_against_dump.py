"""What we count equals what Kafka's own DumpLogSegments shows, on a scripted group [33]."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import groupby

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka.admin import KafkaAdminClient, MemberToRemove

from fleet.clock import SystemClock
from fleet.log.readers.group_log import GroupLog
from fleet.log.records import partition_for
from fleet.log.replay.counting import count
from fleet.model.rebalances import RebalanceCounts
from fleet.worker.member.protocols import fatal_of
from tests.support import kafka_tools
from tests.support.commits import commit
from tests.support.waiting import until

PARTITIONS = 8


class GivenUp(Exception):
    """A consumer of the test has ended with a fatal error of librdkafka's own."""


class Reports:
    """Plain static consumers of one group, polled in turn; they commit every record."""

    def __init__(self, bootstrap: str, group: str, topic: str, extra: dict[str, object]) -> None:
        self.bootstrap, self.group, self.topic, self.extra = bootstrap, group, topic, extra
        self.members: dict[int, Consumer] = {}
        self.producer = Producer({"bootstrap.servers": bootstrap})
        self.produced_at = 0.0

    def start(self, *numbers: int) -> None:
        """Build all, connect all, then subscribe together."""
        fresh = {}
        for number in numbers:
            fresh[number] = Consumer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "group.id": self.group,
                    "group.instance.id": f"{self.group}-{number}",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "log_level": 0,
                    **self.extra,
                }
            )
            fresh[number].list_topics(self.topic, timeout=5)
        for consumer in fresh.values():
            consumer.subscribe([self.topic])
        self.members |= fresh

    def stop(self, *numbers: int) -> dict[int, str]:
        """Close without leaving, as static members do; their member ids."""
        ids = {number: self.members[number].memberid() for number in numbers}
        for number in numbers:
            self.members.pop(number).close()
        return ids

    def leave(self, ids: dict[int, str]) -> None:
        """One LeaveGroup request for all."""
        admin = KafkaAdminClient(bootstrap_servers=[self.bootstrap])
        try:
            answer = admin.remove_group_members(
                self.group,
                [
                    MemberToRemove(member_id=member, group_instance_id=f"{self.group}-{number}")
                    for number, member in ids.items()
                ],
            )
        finally:
            admin.close()
        assert set(answer), answer

    def run(self, condition: Callable[[], bool], *, quiet: float = 0.8) -> None:
        """Poll until the condition has held for `quiet` seconds."""
        held_since: float | None = None

        def held() -> bool:
            nonlocal held_since
            self._produce()
            for consumer in self.members.values():
                for message in consumer.consume(50, timeout=0.02):
                    error = message.error()
                    if error is None:
                        consumer.commit(message=message, asynchronous=True)
                    elif fatal_of(error) is not None:
                        raise GivenUp(str(error))
            held_since = (held_since or time.monotonic()) if condition() else None
            return held_since is not None and time.monotonic() - held_since >= quiet

        until(held, "the group", progress=lambda: str(self.shares()), every=0.0)

    def _produce(self) -> None:
        if time.monotonic() - self.produced_at > 0.2:
            for partition in range(PARTITIONS):
                self.producer.produce(self.topic, b"x", partition=partition)
            self.producer.flush()
            self.produced_at = time.monotonic()

    def shares(self) -> dict[int, int]:
        """Partitions per member."""
        return {number: len(each.assignment()) for number, each in self.members.items()}

    def even(self) -> bool:
        """Every partition has an owner, and shares differ by one at most."""
        shares = self.shares().values()
        return sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1

    def close(self) -> None:
        """Close the consumers that are left."""
        self.stop(*self.members)


@pytest.fixture
def reports_of(broker, unique) -> Iterator[Callable[..., Reports]]:
    made: list[Reports] = []

    def make(**extra: object) -> Reports:
        topic, group = f"t-{unique}-{len(made)}", f"g-{unique}-{len(made)}"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(120)
        if extra.get("group.protocol") == "consumer":
            entry = ConfigEntry(
                "consumer.heartbeat.interval.ms",
                "500",
                incremental_operation=AlterConfigOpType.SET,
            )
            resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
            admin.incremental_alter_configs([resource])[resource].result(120)
        made.append(Reports(broker.bootstrap_servers, group, topic, extra))
        return made[-1]

    yield make
    for reports in made:
        reports.close()


CLASSIC = {"session.timeout.ms": 20_000, "heartbeat.interval.ms": 300}


class Script:
    """Steps of a worker reports, each counted by Fleet and by DumpLogSegments from the same
    position.
    """

    def __init__(self, broker, reports: Reports) -> None:
        self.broker, self.reports = broker, reports
        config = {"bootstrap.servers": broker.bootstrap_servers}
        self.log = GroupLog(config, clock=SystemClock())

    def step(self, act: Callable[[], object], until: Callable[[], bool]) -> RebalanceCounts:
        """Act, wait until it holds, and count what was recorded in between."""
        since = self.log.position(self.reports.group)
        before = self.log.last_state(self.reports.group, since)
        act()
        self.reports.run(until)
        end = self.log.position(self.reports.group)
        records = self.log.read(self.reports.group, since, until=end)
        found = count(records, before=before)
        assert [g.number for g in found.generations] == self.dumped(since, end)
        assert found.undecoded == 0
        return found

    def dumped(self, since: int, end: int) -> list[int]:
        """New generations (assignment epochs) in a stretch, as Kafka decodes them."""
        numbers: list[int] = []
        last = 0
        for record in kafka_tools.dump_group_records(self.broker.broker, self.reports.group):
            if record.type not in (2, 6) or record.value is None or record.offset >= end:
                continue
            number = int(record.value.get("generation", record.value.get("assignmentEpoch", 0)))
            if number != last and record.offset >= since:
                numbers.append(number)
            last = number
        return numbers


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize(
    ("assignor", "a_join", "a_leave"),
    [
        pytest.param("range", (1, 1), (1, 1), id="range"),
        # 3: a bare member that rejoins within milliseconds of its revocation makes another learn
        # only a round later what to give up; workers wait for that, these members do not.
        pytest.param("cooperative-sticky", (1, 3), (1, 2), id="cooperative-sticky"),
    ],
)
def test_a_scripted_classic_group_counts_as_dumped(broker, reports_of, assignor, a_join, a_leave):
    """Join 2, join 2 more, replace one, let two leave together: the promised numbers."""
    reports = reports_of(**CLASSIC, **{"partition.assignment.strategy": assignor})
    script = Script(broker, reports)
    first = script.step(
        lambda: reports.start(0, 1), lambda: len(reports.members) == 2 and reports.even()
    )
    assert set(first.owners.values()) == {f"{reports.group}-0", f"{reports.group}-1"}

    more = script.step(
        lambda: reports.start(2, 3), lambda: len(reports.members) == 4 and reports.even()
    )
    joined = {who for g in more.generations for who in g.joined}
    assert joined == {f"{reports.group}-2", f"{reports.group}-3"}
    # The promise is for joins that fall into one round; on a busy machine they may take two.
    rounds = sum(1 for g in more.generations if g.joined)
    assert a_join[0] <= more.rebalances <= rounds * a_join[1] + (1 if more.aborted else 0)
    assert 4 <= more.moved <= PARTITIONS

    def replace() -> None:
        reports.stop(1)
        reports.start(1)

    same = script.step(replace, reports.even)
    assert (same.rebalances, same.replacements, same.moved) == (0, 1, 0)
    assert same.longest_downtime_s is not None
    assert same.longest_downtime_s < 10.0

    fewer = script.step(lambda: reports.leave(reports.stop(2, 3)), reports.even)
    assert a_leave[0] <= fewer.rebalances <= a_leave[1]
    assert set(fewer.generations[0].left) == {f"{reports.group}-2", f"{reports.group}-3"}
    assert set(fewer.owners.values()) == {f"{reports.group}-0", f"{reports.group}-1"}
    assert len(fewer.owners) == PARTITIONS
    script.log.close()


@pytest.mark.broker
@pytest.mark.slow
def test_a_scripted_kip_848_group_counts_as_dumped(broker, reports_of):
    """Join 2, join 1, replace it, let it leave: assignment epochs by both readers.

    On a starved machine a first heartbeat is sent twice, under two member ids; the member that the
    first one made has the instance id, and librdkafka gives up. Then another group is looked at.
    """
    for left in (2, 1, 0):
        try:
            scripted_kip_848(broker, reports_of(**{"group.protocol": "consumer"}))
        except GivenUp:
            if not left:
                raise
        else:
            return


def scripted_kip_848(broker, reports: Reports) -> None:
    script = Script(broker, reports)
    with closing(script.log):
        _played_kip_848(script, reports)


def _played_kip_848(script: Script, reports: Reports) -> None:
    script.step(lambda: reports.start(0, 1), lambda: len(reports.members) == 2 and reports.even())
    more = script.step(
        lambda: reports.start(2), lambda: len(reports.members) == 3 and reports.even()
    )
    assert set(more.generations[0].joined) == {f"{reports.group}-2"}
    assert 2 <= more.moved <= 4

    def replace() -> None:
        reports.stop(2)
        reports.start(2)

    same = script.step(replace, reports.even)
    assert (same.rebalances, same.replacements, same.moved) == (0, 1, 0)
    fewer = script.step(lambda: reports.leave(reports.stop(2)), reports.even)
    assert fewer.rebalances == 1
    assert set(fewer.generations[0].left) == {f"{reports.group}-2"}
    assert {tp.topic for tp in fewer.owners} == {reports.topic}


def committed(records: Sequence[object]) -> list[int]:
    """What was committed. librdkafka sends a commit again that the coordinator could not finish in
    time, and both are written.
    """
    return [offset for offset, _ in groupby(getattr(each, "committed", -1) for each in records)]


@pytest.mark.broker
def test_a_repeated_read_gives_the_same_and_leaves_no_trace(broker, unique):
    """Reading does not write to the log it reads, nor join, nor commit."""
    group, topic = f"read-{unique}", f"t-{unique}"
    config = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(config)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(120)
    consumer = Consumer({**config, "group.id": group, "enable.auto.commit": False})
    before = listed(admin)
    with GroupLog(config, clock=SystemClock()) as log:
        assert log.read(group, log.position(group)) == ()
        since = log.position(group)
        for offset in (3, 5):
            commit(consumer, [KafkaPartition(topic, 0, offset)])
        records = log.read(group, since)
        assert committed(records) == [3, 5]
        position = log.position(group)
        assert log.read(group, since) == records
        assert log.read(group, since, until=since + 1) == records[:1]
        commit(consumer, [KafkaPartition(topic, 0, 9)])
        later = log.read(group, since)
        assert (later[: len(records)], committed(later)) == (records, [3, 5, 9])
        assert log.position(group) == position + len(later) - len(records)
        assert log.position_at(group, 0.0) == 0
        assert log.position_at(group, time.time() + 60) == log.position(group)
        assert committed(log.last_state(group, position)) == [3, 5]
    consumer.close()
    assert listed(admin) <= before | {group}


def listed(admin: AdminClient) -> set[str]:
    """All groups of the cluster."""
    return {each.group_id for each in admin.list_consumer_groups().result(120).valid}


@pytest.mark.parametrize(
    "group", ["", "g", "orders-enrichment", "ünïcode-größe", "emoji-\U0001f680", "a" * 249]
)
@pytest.mark.parametrize("partitions", [1, 7, 50])
def test_the_partition_of_a_group_is_javas(group, partitions):
    """Kafka's `partitionFor`; the second implementation is the test support's."""
    assert partition_for(group, partitions) == kafka_tools.partition_of(group, partitions)


def test_the_one_hash_without_an_absolute_value_is_partition_zero():
    """`abs(Integer.MIN_VALUE)` is 0 in Kafka's Utils."""
    assert partition_for("polygenelubricants", 50) == 0
