"""Commits of a client that is no member, on a broker that may not have had a group yet."""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.support.waiting import until

_PASSES = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # made a moment ago: the broker has not heard of it yet
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


def commit_groups(admin: AdminClient, groups: Iterable[str], offsets: list[TopicPartition]) -> None:
    """The same offsets for Empty groups, side by side.

    What a coordinator refuses while it comes up, or has not heard of the topic yet, is an error of
    a partition in an answer that succeeds.
    """
    left = list(groups)

    def done() -> bool:
        asked = {
            group: admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, offsets)]
            )
            for group in left
        }
        left[:] = [group for group, answers in asked.items() if _refused(answers[group])]
        return not left

    until(done, "committed offsets")


def _refused(answer: Future[ConsumerGroupTopicPartitions]) -> bool:
    try:
        return any(each.error for each in answer.result(120).topic_partitions)
    except KafkaException:
        return True
