"""What a commit carries and may name: planned ends, group metadata, tokens of ownership.

Problem: Kafka accepts a late commit for a partition that somebody else owns by now, because it
checks member and generation, not ownership [2]; and a successor should repeat exactly the
batch in hand, not another cut of it [4]. Choice: every assignment of a partition gives it a
token; a commit names only partitions whose token still holds. Its metadata is a small JSON
string with the next planned end and the topic's id, since a topic made again under its name is
another one; the cluster's id stands beside it, since tools copy offsets with their metadata from
one cluster to another, where every topic has another id. Readers leave out keys that they do not
know, and believe what is not told. Cost: about 110 bytes per commit record.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet.model import TopicPartition

_HEAD = b"CGMDv2:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A range [start, next) as its last owner left it: begun `tries` times, without an end."""

    start: int
    next: int
    tries: int
    revision: str
    until: int | None = None
    """How far its partition was run in pieces; None: it was run as a whole."""


def encode_plan(
    planned_end: int | None,
    revision: str,
    topic_id: str | None = None,
    *,
    cluster: str | None = None,
    parts: int | None = None,
    tries: int = 1,
    until: int | None = None,
) -> str:
    """Commit metadata; planned_end None = no batch is planned for the partition.

    topic_id, cluster = whose offsets these are; None = not known. parts = how many partitions
    the topic had when the group began it at its end; None = it began elsewhere, or long ago.
    tries = how often the range will have been begun with this plan; until = how far its partition
    is run in pieces.
    """
    plan: dict[str, object] = {"v": 1}
    if planned_end is not None:
        plan["next"] = planned_end
        if tries != 1:
            plan["tries"] = tries
        if until is not None:
            plan["until"] = until
    plan["rev"] = revision
    if topic_id is not None:
        plan["topic"] = topic_id
    if cluster is not None:
        plan["cluster"] = cluster
    if parts is not None:
        plan["parts"] = parts
    return json.dumps(plan, separators=(",", ":"))


def decode_plan(metadata: str | None) -> int | None:
    """The planned end of commit metadata; None where there is none (or it is not ours)."""
    planned, until = _number(_plan(metadata).get("next")), _number(_plan(metadata).get("until"))
    return planned if planned is None or until is None else max(planned, until)


def decode_begun(metadata: str | None, start: int) -> Begun | None:
    """How often the planned range was begun from `start`; None where none is planned."""
    plan = _plan(metadata)
    planned, tries = _number(plan.get("next")), _number(plan.get("tries"))
    if planned is None:
        return None
    return Begun(
        start=start,
        next=planned,
        tries=1 if tries is None else tries,
        revision=str(plan.get("rev", "")),
        until=_number(plan.get("until")),
    )


def decode_topic(metadata: str | None) -> str | None:
    """The id of the topic that the offset belongs to; None where it was not told."""
    return _name(_plan(metadata).get("topic"))


def decode_cluster(metadata: str | None) -> str | None:
    """The id of the cluster that the offset belongs to; None where it was not told."""
    return _name(_plan(metadata).get("cluster"))


def decode_parts(metadata: str | None) -> int | None:
    """How many partitions the topic had when the group began it at its end; None: not told."""
    return _number(_plan(metadata).get("parts"))


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _plan(metadata: str | None) -> dict[str, object]:
    if not metadata:
        return {}
    try:
        plan = json.loads(metadata)
    except ValueError:
        return {}
    return plan if isinstance(plan, dict) and plan.get("v") == 1 else {}


def parse_group_metadata(raw: bytes | None) -> tuple[int, str, str] | None:
    """(generation, member id, group) of `consumer_group_metadata()`; None where it is unknown.

    Format (librdkafka 2.16): `CGMDv2:`, int32 generation, group NUL member NUL instance NUL. The
    four bytes are the machine's own order on librdkafka's side; only equality is of interest.
    """
    if not raw or not raw.startswith(_HEAD) or len(raw) < len(_HEAD) + 4:
        return None
    (generation,) = struct.unpack_from("=i", raw, len(_HEAD))
    parts = raw[len(_HEAD) + 4 :].split(b"\0")
    if len(parts) < 2:
        return None
    return generation, parts[1].decode("utf-8", "replace"), parts[0].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One partition of a batch that Spark has written."""

    tp: TopicPartition
    token: int
    end: int


class Ownership:
    """Tokens of the partitions that are ours now; every assignment gives new ones."""

    def __init__(self) -> None:
        self._tokens: dict[TopicPartition, int] = {}
        self._last = 0

    def gain(self, tp: TopicPartition) -> int:
        """A new token for a newly assigned partition."""
        self._last += 1
        self._tokens[tp] = self._last
        return self._last

    def lose(self, tps: Iterable[TopicPartition]) -> None:
        """Revoked or lost: what was started under the old token may not be committed."""
        for tp in tps:
            self._tokens.pop(tp, None)

    def holds(self, tp: TopicPartition, token: int) -> bool:
        """Whether the partition has been ours without a break since `token` was given."""
        return self._tokens.get(tp) == token

    @property
    def tokens(self) -> Mapping[TopicPartition, int]:
        """All of ours."""
        return dict(self._tokens)


def commitable(
    finished: Iterable[Finished],
    owned: Ownership,
    *,
    member_then: str | None,
    member_now: str | None,
) -> tuple[Finished, ...]:
    """What of a finished batch may be committed: nothing where the member id has changed [2].

    The generation may have grown: a cooperative rebalance leaves kept partitions ours.
    """
    if member_then is not None and member_now != member_then:
        return ()
    return tuple(each for each in finished if owned.holds(each.tp, each.token))
