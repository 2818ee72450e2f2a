"""A consumer as anybody writes it, with confluent-kafka: poll, work, commit, close at SIGTERM.

Arguments: SERVERS GROUP TOPIC, and options of the client as NAME=VALUE. It journals what it read
into $FLEET_JOURNAL, if that is set, as a job of tests does, and works for $RECORD_SECONDS on each
record. A warm one, which has FLEET_INSTANCE_FILE but no GROUP_INSTANCE_ID, subscribes once that
file is there.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException


def _instance_id(ended: list[int]) -> str | None:
    file = os.environ.get("FLEET_INSTANCE_FILE")
    while file is not None and "GROUP_INSTANCE_ID" not in os.environ and not ended:
        if Path(file).exists():
            return Path(file).read_text().strip()
        time.sleep(0.02)
    return os.environ.get("GROUP_INSTANCE_ID")


def _write(journal: Any, group: str, parts: dict[tuple[str, int], list[Any]]) -> None:
    for (topic, partition), part in parts.items():
        line = {
            "group": group,
            "tp": {"topic": topic, "partition": partition},
            "first": part[0].offset(),
            "last": part[-1].offset(),
            "rows": [[int(record.value()), 1, 1] for record in part],
            "worker": str(os.getpid()),
            "attempt": 1,
            "revision": "program",
            "at": time.time(),
        }
        journal.write(json.dumps(line) + "\n")
    journal.flush()


def main() -> None:
    """Until SIGTERM."""
    servers, group, topic, *more = sys.argv[1:]
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ended.append(number))
    instance = _instance_id(ended)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            **({} if instance is None else {"group.instance.id": instance}),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **dict(each.split("=", 1) for each in more),
        }
    )
    journal = None
    if (folder := os.environ.get("FLEET_JOURNAL")) is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        journal = (Path(folder) / f"{os.getpid()}.jsonl").open("a")
    consumer.subscribe([topic])
    work = float(os.environ.get("RECORD_SECONDS", "0"))
    while not ended:
        parts: dict[tuple[str, int], list[Any]] = {}
        for record in consumer.consume(200 if work else 1000, timeout=0.2):
            if (error := record.error()) is None:
                parts.setdefault((str(record.topic()), record.partition() or 0), []).append(record)
            elif error.fatal():
                sys.exit(f"fatal: {error}")
        time.sleep(work * sum(map(len, parts.values())))
        if journal is not None:
            _write(journal, group, parts)
        if parts:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:  # a rebalance came between: it comes again
                sys.stderr.write(f"{error}\n")
    consumer.close()


if __name__ == "__main__":
    main()
