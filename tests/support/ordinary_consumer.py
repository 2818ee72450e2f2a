"""A consumer as anybody writes it; it runs in the pods of the ordinary Deployment.

Poll, work, commit; leave the group at SIGTERM. It journals what it was called with, as the
managed fleet's entrypoint does, and is ready while it owns partitions.
"""

import json
import os
import signal
import time
from pathlib import Path

READY = Path("/tmp/ready")


def parts(records) -> dict[tuple[str, int], list]:
    """(topic, partition) → what was polled of it, in order."""
    found: dict[tuple[str, int], list] = {}
    for record in records:
        found.setdefault((record.topic(), record.partition()), []).append(record)
    return found


def main() -> None:
    """Until SIGTERM."""
    from confluent_kafka import Consumer, KafkaException, Producer

    servers, group, pod = (os.environ[key] for key in ("SERVERS", "GROUP", "HOSTNAME"))
    journal = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 0})
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": os.environ["ASSIGNOR"],
        }
    )
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ended.append(number))
    consumer.subscribe([os.environ["TOPIC"]], on_assign=lambda _consumer, _given: READY.touch())
    while not ended:
        polled = [r for r in consumer.consume(1000, timeout=0.5) if r.error() is None]
        for (topic, partition), part in parts(polled).items():
            rows = [[int(record.value()), 1, 1] for record in part]
            line = {"group": group, "topic": topic, "partition": partition,
                    "first": part[0].offset(), "last": part[-1].offset(), "rows": rows,
                    "worker": pod, "attempt": 1, "revision": "ordinary",
                    "at": time.time()}  # fmt: skip
            journal.produce(os.environ["JOURNAL_TOPIC"], json.dumps(line))
        journal.flush(120)
        if polled:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:  # a rebalance came between: it comes again
                print(error, flush=True)
    consumer.close()


if __name__ == "__main__":
    main()
