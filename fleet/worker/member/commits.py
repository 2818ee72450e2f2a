"""Synchronous commits of the consumer thread, and what the coordinator made of them [1, 2]."""

from enum import StrEnum
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.model import TopicPartition
from fleet.worker.events import Events
from fleet.worker.member.crash_search import SuspectRange
from fleet.worker.member.member_state import MemberState
from fleet.worker.member.protocols import RETRIED, VOID, Fenced, is_fenced
from fleet.worker.offsets.commit_metadata import encode_plan, parse_group_metadata
from fleet.worker.offsets.start_positions import Start

_UNKNOWN_TOPIC: Final = 3


class Committed(StrEnum):
    """What became of one commit."""

    DONE = "done"
    RETRY = "retry"
    VOID = "void"


class Committer:
    """Of one consumer; used on its thread."""

    def __init__(self, consumer: Any, *, state: MemberState, clock: Clock, events: Events) -> None:
        self._consumer = consumer
        self._state = state
        self._clock = clock
        self._events = events

    def write(self, entries: list[KafkaPartition]) -> tuple[Committed, frozenset[TopicPartition]]:
        """One commit, and the partitions whose topic is deleted; Fenced or FleetError if fatal."""
        if not entries:
            return Committed.DONE, frozenset()
        try:
            with self._state.waits(self._clock):
                answers = self._consumer.commit(offsets=entries, asynchronous=False) or []
            told = [(each, each.error) for each in answers if each.error is not None]
        except KafkaException as error:  # none of them was written
            told = [(each, error.args[0]) for each in entries]
        deleted = frozenset(
            TopicPartition(each.topic, each.partition)
            for each, error in told
            if error.code() == _UNKNOWN_TOPIC
        )
        errors = [error for _, error in told if error.code() != _UNKNOWN_TOPIC]
        if not errors:
            self._state.last_commit_at = self._clock.now()
            self._state.committed |= {e.topic for e in entries} - {tp.topic for tp in deleted}
            return Committed.DONE, deleted
        if any(each.code() == KafkaError.OFFSET_METADATA_TOO_LARGE for each in errors):
            raise _too_large(entries)
        return self._judged(errors[0]), deleted

    def _judged(self, error: Any) -> Committed:
        if is_fenced(error):
            raise Fenced(error.str())
        self._events.log_rarely(
            f"commit: {error.str()} ({error.code()})", key=f"commit {error.code()}"
        )
        if error.code() in VOID:
            return Committed.VOID
        if error.code() in RETRIED or error.retriable():
            return Committed.RETRY
        raise FleetError(f"the coordinator refuses the commit: {error.str()} ({error.code()})")

    def member(self) -> str | None:
        """The member id as librdkafka knows it; None where it is unknown."""
        known = self._group_metadata()
        return known[1] if known else None

    def generation(self) -> int | None:
        """The member's generation as librdkafka knows it; None where it is unknown."""
        known = self._group_metadata()
        return known[0] if known else None

    def _group_metadata(self) -> tuple[int, str, str] | None:
        try:
            return parse_group_metadata(self._consumer.consumer_group_metadata())
        except (KafkaException, RuntimeError):
            return None


def _too_large(entries: list[KafkaPartition]) -> FleetError:
    sizes = {len(each.metadata or ""): f"{each.topic}-{each.partition}" for each in entries}
    size = max(sizes)
    return FleetError(
        f"the coordinator refuses the commit: the metadata of {sizes[size]} has {size} bytes, more "
        "than the brokers' offset.metadata.max.bytes: raise that (Kafka's own value is 4096)"
    )


def entry_of(
    start: Start, offset: int, piece: SuspectRange | None, revision: str
) -> KafkaPartition:
    """What a commit of `offset` says of a partition; piece: what is planned to begin there."""
    end, tries, until = (None, 1, None) if piece is None else piece.planned
    plan = encode_plan(
        end,
        revision,
        start.known_id,
        cluster=start.cluster,
        parts=start.parts,
        tries=tries,
        until=until,
    )
    return KafkaPartition(start.tp.topic, start.tp.partition, offset, metadata=plan)
