"""Commits of a client that is no member, on a broker that may not have had a group yet."""

import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

_PASSES = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}


def commit(client: Consumer, offsets: Sequence[TopicPartition], *, wait: float = 120.0) -> None:
    """Commit, waiting while the coordinator comes up (the offsets topic is made at first use)."""
    end = time.monotonic() + wait
    while True:
        try:
            client.commit(offsets=list(offsets), asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in _PASSES or time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return
