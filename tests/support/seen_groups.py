"""Groups as the coordinator shows them: a test says only what matters to it."""

from collections.abc import Iterable
from typing import Any

from fleet.model import GroupSnapshot, GroupState, LagCase, Member, PartitionState, TopicPartition


def member_seen(
    member_id: str = "m1", partitions: Iterable[TopicPartition] = (), **fields: Any
) -> Member:
    """A dynamic one at 10.0.0.1."""
    usual: dict[str, Any] = {"instance_id": None, "client_id": "rdkafka", "host": "/10.0.0.1"}
    owned = frozenset(partitions)
    return Member(member_id=member_id, partitions=owned, **{**usual, **fields})


def partition_seen(
    number: int = 0, lag: int | None = 0, *, topic: str = "orders", **fields: Any
) -> PartitionState:
    """So many records wait since its beginning; None: nothing was ever committed."""
    usual: dict[str, Any] = {
        "committed": None if lag is None else 0,
        "log_start": 0,
        "log_end": lag,
        "lag": lag,
        "lag_seconds": None,
        "case": LagCase.OK,
    }
    return PartitionState(tp=TopicPartition(topic, number), **{**usual, **fields})


def group_seen(
    group: str = "orders",
    *,
    members: Iterable[Member] = (),
    partitions: Iterable[PartitionState] = (),
    **fields: Any,
) -> GroupSnapshot:
    """A classic one that is stable."""
    usual: dict[str, Any] = {
        "exists": True,
        "state": GroupState.STABLE,
        "type": "classic",
        "assignor": "range",
    }
    parts = tuple(partitions)
    known = {**usual, **fields}
    return GroupSnapshot(group=group, members=tuple(members), partitions=parts, **known)
