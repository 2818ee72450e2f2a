"""What a leader told of one partition's start or end.

Problem: *seen* (librdkafka 2.16.1): a question to a leader that was killed a moment before is
answered after its whole timeout, without an error, by the offset -1001. Taken for an offset it is
a log that ends before every position: a plan is given up, and records are called lost. Choice: no
offset is an error like any other; whoever asks ListOffsets reads its answers here.
"""

from typing import Any

from confluent_kafka import KafkaError, KafkaException


def listed_offset(future: Any) -> int:
    """The offset that ListOffsets was answered with, at once; KafkaException where with none."""
    offset = int(future.result().offset)
    if offset < 0:
        raise KafkaException(
            KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "its leader does not answer")
        )
    return offset


def listed_or_none(future: Any) -> int | None:
    """The same; None where no leader answered."""
    try:
        return listed_offset(future)
    except KafkaException:
        return None
