"""Real members of a group: each polls in a thread of its own until it leaves."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer


class Member:
    """One consumer that reads a topic; it leaves when it is closed."""

    def __init__(self, bootstrap: str, group: str, topic: str, **config: Any) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
                "heartbeat.interval.ms": 500,
                "session.timeout.ms": 10_000,
                "log_level": 0,
                **config,
            }
        )
        self._topic = topic
        self._ended = threading.Event()
        self.assigned = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=lambda *_: self.assigned.set())
        while not self._ended.is_set():
            self._consumer.poll(0.1)
        self._consumer.close()

    def leave(self) -> None:
        """Close the consumer, which sends its LeaveGroup."""
        self._ended.set()
        self._thread.join(timeout=30)


@contextlib.contextmanager
def member(bootstrap: str, group: str, topic: str, **config: Any) -> Iterator[Member]:
    """A member for a while."""
    joined = Member(bootstrap, group, topic, **config)
    try:
        yield joined
    finally:
        joined.leave()
