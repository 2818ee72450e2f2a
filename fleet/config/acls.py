"""The least ACLs of each part of Fleet and each mode: one list that doc, doctor and tests share.

Problem: a table of ACLs in a manual is wrong after the next change, and nobody notices before
a production cluster refuses something. Choice: the table is data; docs/reference/acls.md is checked
against it, `fleet doctor` asks the cluster what it allows and names what is missing, and the
tests give exactly these to a user of a real authorizer, then one less. Kafka's own implications
hold: Read, Write, Delete and Alter imply Describe; AlterConfigs implies DescribeConfigs.
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
    """One thing that a principal must be allowed to do (Kafka's own names).

    name is a resource's own, or {group} and {topic}: each one that fleet.yaml declares, or for
    looking at everything `*`.
    """

    resource: Resource
    name: str
    operation: str
    why: str
    without: str
    """What happens where it is missing."""
    only: Literal["consumer", "create", "letters"] | None = None
    """Needed only for `protocol: consumer`, for topics that Fleet creates, for dead letters."""


_LOOK: Final = (
    Acl("group", _GROUP, "Describe", "state, members, committed offsets", "the group is missing"),
    Acl("topic", _TOPIC, "Describe", "partitions, log ends, lag", "no lag of that topic"),
)
_RECORDS: Final = (
    Acl(
        "topic",
        OFFSETS,
        "Read",
        "recorded rebalances",
        "no rebalances, and receipts say `unverified`",
    ),
    Acl(
        "group",
        _GROUP,
        "DescribeConfigs",
        "`protocol: consumer` only: sessions, to separate a leave from an expiry",
        "both have the cause removal",
        only="consumer",
    ),
)
_JOIN: Final = (
    Acl(
        "group",
        _GROUP,
        "Read",
        "join, heartbeat, commit, leave for dead workers",
        "the worker exits with that message",
    ),
    Acl("topic", _TOPIC, "Read", "fetch records", "the worker exits with that message"),
    Acl(
        "topic",
        _LETTERS,
        "Write",
        "`dead_letter_topic` only: poison records",
        "the partition stops, as without a dead-letter topic",
        only="letters",
    ),
)
_CHANGE: Final = (
    Acl(
        "group",
        _GROUP,
        "Read",
        "the batched leave",
        "the leave is refused; members stay until their session ends",
    ),
    Acl(
        "group",
        _GROUP,
        "AlterConfigs",
        "`protocol: consumer` only: delays assignments during a synchronized join",
        "more assignments per change",
        only="consumer",
    ),
    Acl(
        "topic",
        _TOPIC,
        "Create",
        "`create:` only: topics that are missing",
        "you create the topics",
        only="create",
    ),
)

_DELETED: Final = Acl(
    "topic",
    OFFSETS,
    "Read",
    "deleted positions, for `start_from: latest`",
    "such a group counts as new",
)
TABLE: Final[dict[Part, tuple[Acl, ...]]] = {
    "observe": _LOOK,
    "history": _RECORDS,
    "plan": (*_LOOK, *_RECORDS),
    "act": (*_LOOK, *_RECORDS, *_CHANGE),
    "worker": (*_JOIN, _DELETED),
}
"""What each part needs; `mode: observe|plan|act` are the manager's."""

_IMPLIES: Final = {
    "Read": "Describe",
    "Write": "Describe",
    "Delete": "Describe",
    "Alter": "Describe",
    "AlterConfigs": "DescribeConfigs",
}


@dataclass(frozen=True, slots=True)
class Grant:
    """An Acl for one resource."""

    resource: Resource
    name: str
    operation: str
    acl: Acl

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.name}"


def grants(
    part: Part, *, groups: Iterable[str], topics: Iterable[str], dead_letters: Iterable[str] = ()
) -> tuple[Grant, ...]:
    """What a principal of that part needs for these groups and topics, without repetition."""
    named = {_GROUP: tuple(groups), _TOPIC: tuple(topics), _LETTERS: tuple(dead_letters)}
    found = {
        (acl.resource, name, acl.operation): Grant(acl.resource, name, acl.operation, acl)
        for acl in TABLE[part]
        for name in named.get(acl.name, (acl.name,))
    }
    return tuple(found.values())


def needed(spec: GroupSpec, mode: Part) -> tuple[Grant, ...]:
    """What one group needs in this mode of the login in fleet.yaml, without the offsets topic.

    Where workers run on this machine they use the same login. Left out is what a login can do
    without (the offsets topic: receipts are unverified) or what cannot be asked (Create, of a
    topic that is not there).
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
    """Whether one of the allowed operations is the wanted one, or implies it."""
    held = set(operations)
    return wanted in held or "All" in held or any(_IMPLIES.get(each) == wanted for each in held)


def markdown() -> str:
    """Renders the table of docs/reference/acls.md: of each part what the ones before it lack."""
    lines = ["| part | resource | operation | for | without it |", "|---|---|---|---|---|"]
    shown: set[Acl] = set()
    for part, acls in TABLE.items():
        new = [acl for acl in acls if part == "worker" or acl not in shown]
        shown.update(acls)
        for acl in new:
            name = acl.name if acl.name.startswith("{") else f"`{acl.name}`"
            lines.append(
                f"| {part} | {acl.resource} {name} | {acl.operation} | {acl.why} | {acl.without} |"
            )
    return "\n".join(lines)
