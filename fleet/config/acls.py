"""Lists the least ACLs of each part of Fleet and each mode, for docs, doctor and tests.

Problem: a table of ACLs in a manual becomes wrong unnoticed, until a production cluster refuses a
request. Choice: the table is data. The docs are checked against it, and `fleet doctor` reports what
the cluster does not allow. Tests give exactly these ACLs to a user of a real authorizer, then one
less. Kafka's implications hold: Read, Write, Delete and Alter imply Describe; AlterConfigs implies
DescribeConfigs. Cost: a new request of Fleet needs an entry here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from fleet.config.spec import ConsumerWorker, GroupSpec, LocalRuntimeSpec
from fleet.config.topic_patterns import is_pattern

Resource = Literal["topic", "group"]
Part = Literal["observe", "history", "plan", "act", "worker"]

OFFSETS: Final = "__consumer_offsets"
_GROUP: Final = "{group}"
_TOPIC: Final = "{topic}"
_LETTERS: Final = "{dead_letter_topic}"


@dataclass(frozen=True, slots=True)
class Acl:
    """Describes one operation that a principal needs, by Kafka's names.

    name is a resource's name, or {group} or {topic}: each one that fleet.yaml declares, or `*` for
    observing all.
    """

    resource: Resource
    name: str
    operation: str
    why: str
    without: str
    """Effect if it is missing."""
    only: Literal["consumer", "create", "letters"] | None = None
    """Needed only for `protocol: consumer`, for topics that Fleet creates, for dead letters."""


_LOOK: Final = (
    Acl(
        "group", _GROUP, "Describe", "state, members, committed offsets", "the group is not visible"
    ),
    Acl("topic", _TOPIC, "Describe", "partitions, log ends, lag", "no lag of that topic"),
)
_RECORDS: Final = (
    Acl(
        "topic",
        OFFSETS,
        "Read",
        "rebalances as the coordinator recorded them",
        "no count of rebalances; receipts are unverified",
    ),
    Acl(
        "group",
        _GROUP,
        "DescribeConfigs",
        "`protocol: consumer` only: session timeouts, to tell a leave from an expiry",
        "both are reported as removal",
        only="consumer",
    ),
)
_JOIN: Final = (
    Acl(
        "group",
        _GROUP,
        "Read",
        "join, heartbeat, commit, leave for dead workers",
        "the worker stops with that message",
    ),
    Acl("topic", _TOPIC, "Read", "fetch records", "the worker stops with that message"),
    Acl(
        "topic",
        _LETTERS,
        "Write",
        "`dead_letter_topic` only: poison records",
        "the partition stops, as without the key",
        only="letters",
    ),
)
_CHANGE: Final = (
    Acl(
        "group",
        _GROUP,
        "Read",
        "the batched leave",
        "the broker refuses the leave; members stay until their session ends",
    ),
    Acl(
        "group",
        _GROUP,
        "AlterConfigs",
        "`protocol: consumer` only: delay assignments during a synchronized join",
        "more assignments per change",
        only="consumer",
    ),
    Acl(
        "topic",
        _TOPIC,
        "Create",
        "`create:` only: create missing topics",
        "you create the topics yourself",
        only="create",
    ),
)

_DELETED: Final = Acl(
    "topic",
    OFFSETS,
    "Read",
    "offsets that Kafka deleted, for `start_from: latest`",
    "a group whose commits Kafka deleted counts as new",
)
TABLE: Final[dict[Part, tuple[Acl, ...]]] = {
    "observe": _LOOK,
    "history": _RECORDS,
    "plan": (*_LOOK, *_RECORDS),
    "act": (*_LOOK, *_RECORDS, *_CHANGE),
    "worker": (*_JOIN, _DELETED),
}
"""ACLs by part; the manager's are those of its mode (observe, plan, act)."""

_IMPLIES: Final = {
    "Read": "Describe",
    "Write": "Describe",
    "Delete": "Describe",
    "Alter": "Describe",
    "AlterConfigs": "DescribeConfigs",
}


@dataclass(frozen=True, slots=True)
class Grant:
    """Applies an Acl to one resource."""

    resource: Resource
    name: str
    operation: str
    acl: Acl

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.name}"


def grants(
    part: Part, *, groups: Iterable[str], topics: Iterable[str], dead_letters: Iterable[str] = ()
) -> tuple[Grant, ...]:
    """Returns the ACLs of a part for these groups and topics, without duplicates."""
    named = {_GROUP: tuple(groups), _TOPIC: tuple(topics), _LETTERS: tuple(dead_letters)}
    found = {
        (acl.resource, name, acl.operation): Grant(acl.resource, name, acl.operation, acl)
        for acl in TABLE[part]
        for name in named.get(acl.name, (acl.name,))
    }
    return tuple(found.values())


def needed_grants(spec: GroupSpec, mode: Part) -> tuple[Grant, ...]:
    """Returns the ACLs that the login of fleet.yaml needs for a group in this mode.

    Workers on this machine use the same login. Optional ACLs are left out (the offsets topic), and
    so are those that cannot be checked (Create of a missing topic).
    """
    local = mode == "act" and isinstance(spec.runtime, LocalRuntimeSpec)
    topics = [topic for topic in spec.topics if not is_pattern(topic)]
    parts: tuple[Part, ...] = (mode, "worker") if local else (mode,)
    found = {
        str(grant): grant
        for part in parts
        for grant in grants(part, groups=[spec.group], topics=topics)
        if grant.name != OFFSETS
        and (
            grant.acl.only is None
            or (grant.acl.only == "consumer" and isinstance(spec.worker, ConsumerWorker))
        )
    }
    return tuple(found.values())


def allows(operations: Iterable[str], wanted: str) -> bool:
    """Tells whether one of the allowed operations is the wanted one, or implies it."""
    allowed = set(operations)
    return bool(allowed & {wanted, "All"}) or wanted in {_IMPLIES.get(each) for each in allowed}
