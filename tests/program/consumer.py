"""A consumer as anybody writes it, with confluent-kafka: poll, work, commit, close at SIGTERM.

It journals what it read, as a job of tests does. FLEET_INSTANCE_FILE alone, without
GROUP_INSTANCE_ID: it is warm, and subscribes once the file is there.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    """Until SIGTERM."""
    from confluent_kafka import Consumer, KafkaException

    servers, group, topic, *more = sys.argv[1:]
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ended.append(number))
    instance = os.environ.get("GROUP_INSTANCE_ID")
    while instance is None and not ended:
        file = Path(os.environ["FLEET_INSTANCE_FILE"])
        instance = file.read_text().strip() if file.exists() else time.sleep(0.02)
    options = dict(each.split("=", 1) for each in more)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "group.instance.id": instance,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **options,
        }
    )
    folder = Path(os.environ["FLEET_JOURNAL"])
    folder.mkdir(parents=True, exist_ok=True)
    journal = (folder / f"{os.getpid()}.jsonl").open("a")
    consumer.subscribe([topic])
    while not ended:
        parts: dict[tuple[str, int], list] = {}
        for record in consumer.consume(1000, timeout=0.2):
            if record.error() is None:
                parts.setdefault((record.topic(), record.partition()), []).append(record)
            elif record.error().fatal():
                sys.exit(f"fatal: {record.error()}")
        for (name, partition), part in parts.items():
            line = {
                "group": group,
                "tp": {"topic": name, "partition": partition},
                "first": part[0].offset(),
                "last": part[-1].offset(),
                "rows": [[int(record.value()), 1, 1] for record in part],
                "worker": str(instance),
                "attempt": 1,
                "revision": "program",
                "at": time.time(),
            }
            print(json.dumps(line), file=journal, flush=True)
        if parts:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:  # a rebalance came between: it comes again
                print(error, flush=True)
    consumer.close()


if __name__ == "__main__":
    main()
