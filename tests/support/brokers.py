"""A real broker for tests, that ends with them.

A broker makes the 50 partitions of `__consumer_offsets` with its first group, and every reader
of that topic fetches all of them: a third of what a short-lived broker costs. Five are as many
as tests need to have groups beside each other and apart; tests/broker has the default. Its
controller writes no record of its own twice a second: half of what a broker costs that nobody asks.
Each of its 24 threads for requests wakes three times a second, and a session has ten brokers: 8 do.
Records stay however old the times are that a test writes them with.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.broker import Broker

OFFSETS_PARTITIONS = 5


@dataclass(frozen=True)
class RunningBroker:
    """A real broker of this test session."""

    bootstrap_servers: str
    broker: Broker


@contextmanager
def running_broker(
    folder: Path, overrides: Mapping[str, str] | None = None, **options: Any
) -> Iterator[RunningBroker]:
    """Started, and purged at the end. `options` are Broker's; `overrides` beside those here."""
    light = {
        "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
        "log.retention.ms": "-1",
        "metadata.max.idle.interval.ms": "0",
        "num.io.threads": "2",
        "num.network.threads": "1",
        **(overrides or {}),
    }
    broker = Broker(folder, overrides=light, **options)
    try:
        yield RunningBroker(broker.start(wait=300).bootstrap_servers, broker)
    finally:
        broker.purge()
