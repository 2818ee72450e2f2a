"""Many groups side by side on a real broker: their members play tales, and what was recorded."""

import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka.admin import KafkaAdminClient, MemberToRemove

from fleet.log.records import Record, decode
from tests.scenarios.cast import Cast, lives
from tests.scenarios.generated import CRASHES, END, PARTITIONS, Tale
from tests.scenarios.outcomes import Seen, seen
from tests.support.offsets_topic import TOPIC, offsets_partitions

BEFORE = 3.0
"""Seconds that processes have to come up."""


class _Leave(NamedTuple):
    at: int
    group: str
    instances: tuple[str, ...]


def played(tales: Sequence[Tale], servers: str) -> dict[str, Seen]:
    """By the tale's name, what the coordinator recorded."""
    run = uuid.uuid4().hex[:6]
    groups = {tale.name: f"{tale.name}-{run}" for tale in tales}
    admin = AdminClient({"bootstrap.servers": servers})
    _prepare(admin, tales, groups, run)
    ends = _ends(servers)
    remover = KafkaAdminClient(bootstrap_servers=servers)
    began, wall = time.monotonic() + BEFORE, time.time() + BEFORE
    parts = [
        life
        for tale in tales
        for life in lives(
            groups[tale.name], f"{run}-{tale.scenario.partitions}", servers, tale.scenario
        )
    ]
    cast = Cast(parts, began)
    try:
        _direct(cast, _leaves(tales, groups), remover, began)
    finally:
        for at in (*CRASHES, None):
            cast.kill(at)
        remover.close()
    found = _recorded(servers, ends, set(groups.values()), round(wall * 1000))
    return {tale.name: seen(found[groups[tale.name]], tale) for tale in tales}


def _prepare(
    admin: AdminClient, tales: Sequence[Tale], groups: Mapping[str, str], run: str
) -> None:
    made = admin.create_topics([NewTopic(f"{run}-{count}", count, 1) for count in PARTITIONS])
    for each in made.values():
        each.result(120)
    resources = []
    for tale in tales:
        if tale.scenario.protocol != "consumer":
            continue
        settings = {
            "consumer.heartbeat.interval.ms": tale.scenario.heartbeat_interval,
            "consumer.session.timeout.ms": tale.scenario.session_timeout,
        }
        entries = [
            ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resources.append(
            ConfigResource(ResourceType.GROUP, groups[tale.name], incremental_configs=entries)
        )
    if resources:
        for done in admin.incremental_alter_configs(resources).values():
            done.result(120)


def _leaves(tales: Sequence[Tale], groups: Mapping[str, str]) -> list[_Leave]:
    """Requests that take members out, in order."""
    return sorted(
        _Leave(
            each.at + each.lasts,
            groups[tale.name],
            tuple(f"member-{each.member + n:05d}" for n in range(each.together)),
        )
        for tale in tales
        for each in tale.scenario.events
        if each.do == "batched-leave"
    )


def _direct(cast: Cast, leaves: Sequence[_Leave], remover: KafkaAdminClient, began: float) -> None:
    """Kill and take out, each at its time, to the end."""
    todo: list[tuple[int, _Leave | None]] = [(at, None) for at in CRASHES]
    todo += [(each.at, each) for each in leaves]
    for at, leave in sorted(todo, key=lambda each: each[0]):
        _sleep_until(began + at / 1000)
        if leave is None:
            cast.kill(at)
        else:
            gone = [MemberToRemove(group_instance_id=name) for name in leave.instances]
            remover.remove_group_members(leave.group, gone)
    _sleep_until(began + END / 1000)


def _sleep_until(at: float) -> None:
    if (left := at - time.monotonic()) > 0:
        time.sleep(left)


def _reader(servers: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reads-outcomes",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )


def _ends(servers: str) -> list[TopicPartition]:
    """Where the coordinators' logs end now."""
    reader = _reader(servers)
    try:
        return [
            TopicPartition(TOPIC, n, reader.get_watermark_offsets(TopicPartition(TOPIC, n))[1])
            for n in range(offsets_partitions(servers))
        ]
    finally:
        reader.close()


def _recorded(
    servers: str, ends: Sequence[TopicPartition], groups: set[str], wall_ms: int
) -> dict[str, list[Record]]:
    """Records of these groups from there on, with times from the start of all."""
    # Not to where a log ends while it is read: other tests write there all the time.
    left = {each.partition: each.offset for each in _ends(servers)}
    reader = _reader(servers)
    found: dict[str, list[Record]] = defaultdict(list)
    try:
        reader.assign(list(ends))
        while left:
            for message in reader.consume(1000, 1.0):
                at_end = message.error() is not None
                if at_end or message.offset() + 1 >= left.get(message.partition(), 0):
                    left.pop(message.partition(), None)
                if at_end:
                    continue
                at = message.timestamp()[1] - wall_ms
                record = decode(message.key(), message.value(), offset=0, timestamp=at)
                if getattr(record, "group", None) in groups:
                    found[record.group].append(record)  # type: ignore[attr-defined]
    finally:
        reader.close()
    return found
