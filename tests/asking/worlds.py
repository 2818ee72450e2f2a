"""Values of rebalances and memberships for pure tests, as short to write as to read."""

from typing import Any

from fleet.model import TopicPartition
from fleet.model.rebalances import Cause, MembershipSpan, Rebalance, TimeSource
from tests.support.rebalances import rebalance as plain

START = 1_795_000_000.0
"""2026-11-18 11:06:40 UTC."""


def rebalance(number: int, at: float, **changed) -> Rebalance:
    """Generation `number` of group orders, completed `at` seconds after START."""
    known: dict[str, Any] = {"group": "orders", "cause": Cause.JOIN, "members": 2}
    if "took" in changed:
        known |= {
            "started_at": START + at - changed.pop("took"),
            "start_source": changed.pop("how", TimeSource.RECORD),
        }
    if isinstance(changed.get("moved"), int):
        changed["moved"] = partitions(changed["moved"])
    return plain(number, START + at, **{**known, **changed})


def membership(event: str, member: str, at: float, owned=0, **changed) -> MembershipSpan:
    """A static member's row, or a dynamic one's where `instance_id=None` is given."""
    owns = partitions(owned) if isinstance(owned, int) else owned
    known = {
        "cluster": "main", "group": "orders", "at": START + at, "number": 1, "event": event,
        "member": member, "member_id": f"{member}-id", "instance_id": member,
        "client_id": "rdkafka", "host": "/127.0.0.1", "owned": owns,
        "log_partition": 7, "log_offset": 1,
    }  # fmt: skip
    return MembershipSpan(**{**known, **changed})


def partitions(count: int, *, first: int = 0) -> tuple[TopicPartition, ...]:
    """So many partitions of topic orders."""
    return tuple(TopicPartition("orders", number) for number in range(first, first + count))
