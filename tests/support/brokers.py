"""A real broker for tests, that ends with them.

A broker makes the 50 partitions of `__consumer_offsets` with its first group, and every reader
of that topic fetches all of them: a third of what a short-lived broker costs. Five are as many
as tests need to have groups beside each other and apart; tests/broker has the default. Its
controller writes no record of its own twice a second: half of what a broker costs that nobody asks.
Each of its 24 threads for requests wakes three times a second, and a session has ten brokers: 8 do.
Records stay however old the times are that a test writes them with.

All processes of a session share one, at rest a fiftieth of a core and 5 s of it to start: other
groups and topics come and go on it while a test runs. A test that counts all that is there, or
harms the broker, starts its own.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.broker import Broker
from tests.support import dying
from tests.support.session_home import SessionHome

OFFSETS_PARTITIONS = 5
HOME = SessionHome("FLEET_TEST_BROKER", "fleet-broker")


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
    broker = _light(folder, overrides, **options)
    try:
        yield _started(broker)
    finally:
        broker.purge()


def begin_session() -> None:
    """Choose where the shared one would be."""
    chosen = HOME.begin()
    if chosen is not None:  # of a session that was killed, whose process had the same number
        shutil.rmtree(chosen, ignore_errors=True)


def shared_broker() -> RunningBroker:
    """The session's: started by the first of its processes that asks."""
    with dying.for_the_run():
        return _started(_light(HOME.path))


def end_session() -> None:
    """End the shared one where this process chose it; nothing of it is left."""
    home = HOME.own()
    if home is not None and home.exists():
        Broker(home).purge()
        shutil.rmtree(home)


def _light(folder: Path, overrides: Mapping[str, str] | None = None, **options: Any) -> Broker:
    light = {
        "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
        "log.retention.ms": "-1",
        "metadata.max.idle.interval.ms": "0",
        "num.io.threads": "2",
        "num.network.threads": "1",
        **(overrides or {}),
    }
    return Broker(folder, overrides=light, **options)


def _started(broker: Broker) -> RunningBroker:
    return RunningBroker(broker.start(wait=300).bootstrap_servers, broker)
