"""Share and streams groups' records in the shape of KIP-848's, as far as rebalances need them.

Problem: their values are not taken apart by the decoder, but their groups rebalance too.
Choice: their epochs, members and states are the first fields of values that begin like
KIP-848's; they are read here, and what follows is left. A streams member's states count from 1
(KIP-1071: 1 stable, 2 unrevoked, 3 unreleased), those of the others from 0. Cost: no
assignments, so nothing is said to move.
"""

from fleet.log.record_types import (
    AssignmentEpoch,
    ConsumerGroupEpoch,
    ConsumerGroupMember,
    CurrentAssignment,
    Raw,
    Record,
)
from fleet.log.wire import Cursor, Malformed


def typed(record: Record) -> Record | None:
    """A record that says something of epochs or members; None for any other."""
    if not isinstance(record, Raw):
        return record
    try:
        return _typed(record)
    except Malformed:
        return None


def _typed(record: Raw) -> Record | None:
    data = Cursor(record.value)
    if data.i16() != 0:
        return None
    kind, place = record.type, (record.offset, record.timestamp_ms, record.type)
    offset, at, _ = place
    if kind in {11, 17}:
        return ConsumerGroupEpoch(
            offset=offset,
            timestamp_ms=at,
            type=kind,
            group=record.group,
            epoch=data.i32(),
            metadata_hash=data.i64(),
        )
    if kind in {12, 20}:
        return AssignmentEpoch(
            offset=offset,
            timestamp_ms=at,
            type=kind,
            group=record.group,
            epoch=data.i32(),
            assignment_timestamp_ms=None,
        )
    if kind == 15:
        return record
    if kind in {10, 19}:
        return _member(record, data)
    if kind in {14, 22}:
        return CurrentAssignment(
            offset=offset,
            timestamp_ms=at,
            type=kind,
            group=record.group,
            member_id=_member_id(record),
            epoch=data.i32(),
            previous_epoch=data.i32(),
            state=data.i8() - (1 if kind == 22 else 0),
            assigned={},
            revoking={},
        )
    return None


def _member(record: Raw, data: Cursor) -> Record:
    streams = record.type == 19
    instance_id = data.text_or_none(flexible=True) if streams else None
    rack_id = data.text_or_none(flexible=True)
    client_id, host = data.text(flexible=True), data.text(flexible=True)
    topics = () if streams else data.items(lambda: data.text(flexible=True), flexible=True)
    return ConsumerGroupMember(
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        type=record.type,
        group=record.group,
        member_id=_member_id(record),
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=host,
        topics=topics,
        regex=None,
        rebalance_timeout_ms=data.i32() if streams else -1,
        server_assignor=None,
    )


def _member_id(record: Raw) -> str:
    key = Cursor(record.key)
    key.i16()
    key.text()
    return key.text()
