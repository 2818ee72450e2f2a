"""Real workers, and a store that is read but not written, and a machine that is frozen [38, 39].

Nobody who lives is called dead: no slot changes hands, no record is processed twice; and whoever
dies after that is replaced within a lease as ever.
"""

import signal
import sqlite3
import time
from collections.abc import Callable

import pytest

from fleet.slots.sqlite import _BUSY_SECONDS
from tests.conftest import RunningBroker
from tests.support.kafka_tools import generations
from tests.worker.conftest import SESSION, Group

pytestmark = [pytest.mark.broker, pytest.mark.spark]
LEASE = 2.0


def locked(group: Group) -> None:
    """Somebody's write does not end: others give up waiting for it, and try again."""
    other = sqlite3.connect(group.store.database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    time.sleep(max(2 * LEASE, _BUSY_SECONDS + LEASE))
    other.execute("ROLLBACK")
    other.close()


def frozen(group: Group) -> None:
    """All processes stand still for longer than a lease, twice: owners and standby race."""
    for _ in range(2):
        for process in group.processes.values():
            process.send_signal(signal.SIGSTOP)
        time.sleep(1.2 * LEASE)
        for process in group.processes.values():
            process.send_signal(signal.SIGCONT)
        time.sleep(0.3)


def test_nobody_alive_is_called_dead(group: Group, broker: RunningBroker):
    """Two owners, a standby that looks twenty times a second, records all the while."""
    group.standbys("w1", "w2", "w3", lease=LEASE)
    group.open(0, 1)
    group.produce(100)
    group.drained()
    before = max(generations(broker.broker, group.name))
    held = [group.slot(n) for n in (0, 1)]
    ills: tuple[Callable[[Group], None], ...] = (locked, frozen)
    for unhealthy in ills:
        group.produce(100)
        unhealthy(group)
        time.sleep(1.5 * LEASE)
        now = [group.slot(n) for n in (0, 1)]
        assert [(s.owner, s.token) for s in now] == [(s.owner, s.token) for s in held], (
            f"taken from the living ({unhealthy.__name__})\n{group.logs()}"
        )
        group.drained()
    assert set(group.times_called().values()) == {1}
    assert max(generations(broker.broker, group.name)) == before

    group.processes[str(held[0].owner)].kill()
    died = time.monotonic()
    group.until(lambda: group.slot(0).token > held[0].token, "the standby to take the slot")
    assert time.monotonic() - died < SESSION, "by its lease, not by the end of its session"
