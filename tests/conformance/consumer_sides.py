"""A story of KIP-848 groups on both sides, and where they differ first.

After each event the answer, the timers that went off, the records (bytes and order), all groups
with their members, targets and epochs, and the timers that are set must be equal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.sim.coordinator.consumer_coordinator import (
    ConsumerCoordinator,
    topic_id_bytes,
    topic_id_text,
)
from fleet.sim.coordinator.consumer_group import BrokenLog, ConsumerMember, EpochGroup, Owned
from fleet.sim.coordinator.consumer_shard import ConsumerGroupSettings, TopicFacts
from fleet.sim.coordinator.requests import Client, GroupRecord
from tests.conformance import kafka_group_manager as kafka
from tests.conformance.consumer_stories import Answer, Setting, Story, Told
from tests.conformance.kafka_json import as_json

START_MS = 1_000
_CONFIG = {
    "consumer.session.timeout.ms": "session_ms",
    "consumer.heartbeat.interval.ms": "heartbeat_ms",
    "consumer.assignment.interval.ms": "assignment_interval_ms",
}
_CONFIG = {
    "group.consumer.assignment.interval.ms": "assignment_interval_ms",
    "group.consumer.max.size": "max_size",
}


@dataclass
class Step:
    """What one event did, in the words of `kafka_group_manager.Played`."""

    at: int
    answer: Answer | None = None
    fired: tuple[tuple[str, int], ...] = ()
    records: tuple[GroupRecord, ...] = ()
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)
    broken: bool = False


class ModelSide:
    """The model, asked events; `steps` is what came of them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        values = {
            name: setting.config[key] for key, name in _CONFIG.items() if key in setting.config
        }
        self.model = ConsumerCoordinator(ConsumerGroupSettings(**values), start_ms=START_MS)
        self.model.set_topics(_facts(setting.topics))
        self.steps: list[Step] = []
        self._pictures: dict[str, dict[str, Any]] = {}

    def ask(self, event: Told) -> Answer | None:
        """Plays one event."""
        step = Step(0)
        before = len(self.model.log)
        try:
            step.answer = self._do(event, step)
        except BrokenLog:
            step.broken = True
        step.at = self.model.now
        written = self.model.log[before:]
        step.records = tuple(GroupRecord(r.key_bytes(), r.value_bytes()) for r in written)
        step.groups = self._groups({record.group for record in written}, event.op)
        step.timers = self.model.shard.timers.deadlines()
        self.steps.append(step)
        return step.answer

    def _do(self, event: Told, step: Step) -> Answer | None:
        model = self.model
        if event.op == "ConsumerGroupHeartbeat":
            return _beat(model.heartbeat(event.message, event.client or Client()))
        if event.op == "LeaveGroup":
            return _left(model.leave_group(event.message))
        if event.op == "advance":
            until = model.now + event.message
            step.fired = tuple((key, model.now) for key in model.advance(until))
        elif event.op == "topics":
            model.set_topics(_facts(event.message))
        else:
            model.fail_over()
        return None

    def _groups(self, written: set[str], op: str) -> dict[str, dict[str, Any]]:
        by_id = self.model.shard.groups.by_id
        pictures = {
            name: picture(group)
            if name in written or op == "failover" or name not in self._pictures
            else self._pictures[name]
            for name, group in by_id.items()
        }
        self._pictures = pictures
        return pictures


def told_by_model(seed: int, length: int) -> tuple[Setting, list[Told], list[Step]]:
    """A story and what the model makes of it."""
    story = Story(seed)
    side = ModelSide(story.setting)
    return story.setting, story.tell(length, side.ask), side.steps


def played(setting: Setting, events: Sequence[Told]) -> list[Step]:
    """What the model makes of events told before."""
    side = ModelSide(setting)
    for event in events:
        side.ask(event)
    return side.steps


def scenario(setting: Setting, events: Sequence[Told]) -> kafka.Scenario:
    """The same for Kafka's side."""
    return kafka.Scenario(
        seed=1,
        events=tuple(_event(event) for event in events),
        config={**setting.config, **kafka.NO_CLEANUP},
        topics=setting.topics,
        start=START_MS,
    )


def difference(
    events: Sequence[Told], steps: Sequence[Step], theirs: Sequence[kafka.Played]
) -> str | None:
    """Where they differ first, and how; None where they do not."""
    ours_by_hash, theirs_by_hash = Hashes(), Hashes()
    for number, (event, ours, other) in enumerate(zip(events, steps, theirs, strict=True)):
        if ours.broken and other.error is not None:
            return None  # both have a log that nobody can take up
        answer = other.answers.get(number)
        pairs: dict[str, tuple[Any, Any]] = {
            "answer": (ours.answer, None if answer is None else _essence(event.op, answer.body)),
            "error": (ours.broken, other.error is not None),
            "at": (ours.at, other.at),
            "fired": (ours.fired, other.fired),
            "records": (
                _ordered(event, ours_by_hash.numbered(ours.records)),
                _ordered(event, theirs_by_hash.numbered(other.records)),
            ),
            "groups": (ours.groups, other.groups),
            "timers": (list(ours.timers.items()), list(other.timers.items())),
        }
        for name, (mine, kafkas) in pairs.items():
            if mine != kafkas:
                return f"event {number} {event}: {name}\n  model {mine}\n  kafka {kafkas}"
    return None


class Hashes(dict[bytes, int]):
    """Hashes of topics by the order in which they come: only their equality counts."""

    def numbered(self, records: tuple[GroupRecord, ...]) -> tuple[GroupRecord, ...]:
        """The records with that number in place of each hash, the last 8 bytes of an epoch's."""
        return tuple(map(self._numbered, records))

    def _numbered(self, record: GroupRecord) -> GroupRecord:
        value = record.value
        if record.key[:2] != b"\0\3" or value is None or len(value) < 8:
            return record
        number = self.setdefault(value[-8:], len(self))
        return record._replace(value=value[:-8] + number.to_bytes(8, "big"))


def _ordered(event: Told, records: tuple[GroupRecord, ...]) -> Any:
    """Where several leave by one request, Java's order differs from run to run."""
    if event.op == "LeaveGroup":
        return sorted(records, key=lambda each: (each.key, each.value or b""))
    return records


def _event(event: Told) -> kafka.Event:
    if event.op == "advance":
        return kafka.advance(event.message)
    if event.op == "topics":
        return kafka.topics(event.message)
    if event.op == "failover":
        return kafka.failover()
    return kafka.request(event.message, client=event.client)


def _essence(op: str, body: Mapping[str, Any]) -> Answer:
    if op == "LeaveGroup":
        members = [(m["memberId"], m["groupInstanceId"], m["errorCode"]) for m in body["members"]]
        return {"errorCode": body["errorCode"], "members": members}
    if body["errorCode"]:
        return {"errorCode": body["errorCode"]}
    names = ("errorCode", "memberId", "memberEpoch", "heartbeatIntervalMs", "assignment")
    return {name: body[name] for name in names}


def _beat(answer: Any) -> Answer:
    if answer.error_code:
        return {"errorCode": answer.error_code}
    return as_json(answer)


def _left(answer: Any) -> Answer:
    return {"errorCode": answer.error_code, "members": [tuple(each) for each in answer.members]}


def _facts(topics: Mapping[str, tuple[str, int]]) -> list[TopicFacts]:
    return [
        TopicFacts(topic_id_bytes(topic), name, count) for name, (topic, count) in topics.items()
    ]


def picture(group: EpochGroup) -> dict[str, Any]:
    """A group in the words of GroupPicture.java."""
    return {
        "type": "consumer",
        "state": group.state.value,
        "epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignment_timestamp": group.computed_ms,
        "topics": sorted(group.topics),
        "members": [_member(group, group.members[each]) for each in sorted(group.members)],
    }


_STATES = {
    "STABLE": "STABLE",
    "UNREVOKED": "UNREVOKED_PARTITIONS",
    "UNRELEASED": "UNRELEASED_PARTITIONS",
}


def _member(group: EpochGroup, member: ConsumerMember) -> dict[str, Any]:
    target = group.targets.get(member.id, {})
    return {
        "id": member.id,
        "instance": member.instance,
        "rack": member.rack,
        "client": member.client,
        "host": member.host,
        "epoch": member.epoch,
        "previous_epoch": member.previous_epoch,
        "state": _STATES[member.state.name],
        "rebalance_timeout": member.rebalance_timeout_ms,
        "topics": sorted(member.topics),
        "assignor": member.assignor,
        "classic": False,
        "assigned": _epochs(member.assigned),
        "pending_revocation": _epochs(member.revoking),
        "target": {topic_id_text(topic): sorted(those) for topic, those in target.items()},
    }


def _epochs(owned: Owned) -> dict[str, dict[str, int]]:
    return {
        topic_id_text(topic): {str(each): those[each] for each in those}
        for topic, those in owned.items()
    }
