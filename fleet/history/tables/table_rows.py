"""Rebalances and memberships as rows of their tables, and back."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fleet.model import TopicPartition
from fleet.model.rebalances import Cause, Confidence, Known, MembershipSpan, Rebalance

Row = dict[str, Any]


def _tps(partitions: Iterable[TopicPartition]) -> list[Row]:
    return [{"topic": tp.topic, "partition": tp.partition} for tp in partitions]


def _tps_back(rows: Sequence[Mapping[str, Any]] | None) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(str(r["topic"]), int(r["partition"])) for r in rows or ())


def rebalance_row(made: Rebalance) -> Row:
    """A row of `rebalances`."""
    return {
        "cluster": made.cluster,
        "group_id": made.group,
        "protocol": made.protocol,
        "number": made.number,
        "before": made.before,
        "incarnation": made.incarnation,
        "started_at": made.started_at,
        "start_known": made.start_known.value,
        "ended_at": made.ended_at,
        "end_known": made.end_known.value,
        "seconds": made.seconds,
        "cause": made.cause.value,
        "confidence": made.confidence.value,
        "also": [cause.value for cause in made.also],
        "joined": list(made.joined),
        "departed": list(made.left),
        "replaced": list(made.replaced),
        "members": made.members,
        "moved": _tps(made.moved),
        "aborted": made.aborted,
        "assignor": made.assignor,
        "log_partition": made.log_partition,
        "log_offset": made.log_offset,
    }


def rebalance_of(row: Mapping[str, Any]) -> Rebalance:
    """The value of a row."""
    return Rebalance(
        cluster=row["cluster"],
        group=row["group_id"],
        protocol=row["protocol"],
        number=row["number"],
        before=row["before"],
        incarnation=row["incarnation"],
        started_at=row["started_at"],
        start_known=Known(row["start_known"]),
        ended_at=row["ended_at"],
        end_known=Known(row["end_known"]),
        cause=Cause(row["cause"]),
        confidence=Confidence(row["confidence"]),
        also=tuple(Cause(cause) for cause in row["also"] or ()),
        joined=tuple(row["joined"] or ()),
        left=tuple(row["departed"] or ()),
        replaced=tuple(row["replaced"] or ()),
        members=row["members"],
        moved=_tps_back(row["moved"]),
        aborted=row["aborted"],
        assignor=row["assignor"],
        log_partition=row["log_partition"],
        log_offset=row["log_offset"],
    )


def membership_row(made: MembershipSpan) -> Row:
    """A row of `memberships`."""
    return {
        "cluster": made.cluster,
        "group_id": made.group,
        "changed_at": made.at,
        "number": made.number,
        "event": made.event,
        "member": made.member,
        "member_id": made.member_id,
        "instance_id": made.instance_id,
        "client_id": made.client_id,
        "host": made.host,
        "owned": _tps(made.owned),
        "log_partition": made.log_partition,
        "log_offset": made.log_offset,
    }


def membership_of(row: Mapping[str, Any]) -> MembershipSpan:
    """The value of a row."""
    told = dict(row)
    group, at, owned = (told.pop(name) for name in ("group_id", "changed_at", "owned"))
    return MembershipSpan(**told, group=group, at=at, owned=_tps_back(owned))
