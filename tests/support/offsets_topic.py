"""`__consumer_offsets` of a new broker, which the first question for a coordinator makes."""

import contextlib
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

TOPIC = "__consumer_offsets"


def offsets_partitions(bootstrap: str, *, grace: float = 90) -> int:
    """How many partitions it has; it is made where it is not there.

    Asked by a Consumer: on a new broker the admin's questions wait in vain, or end the process.
    """
    asker = Consumer({"bootstrap.servers": bootstrap, "group.id": "asks", "log_level": 0})
    until = time.monotonic() + grace
    try:
        while time.monotonic() < until:
            with contextlib.suppress(KafkaException):  # its partition has no leader yet
                asker.committed([TopicPartition("t", 0)], timeout=20)
            found = asker.list_topics(TOPIC, timeout=10).topics.get(TOPIC)
            if found is not None and found.error is None and found.partitions:
                return len(found.partitions)
            time.sleep(0.2)
    finally:
        asker.close()
    raise TimeoutError(f"{bootstrap} made no {TOPIC} within {grace:g} s")
