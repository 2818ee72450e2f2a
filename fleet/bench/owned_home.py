"""Whose home a benchmark's is, and what one leaves behind that is killed with -9.

Problem: a benchmark that is killed ends nothing, and its broker, workers, Spark and exporter would
disturb every later one. Choice: as the demo does. What a benchmark starts carries its id in the
environment, and a file in its home says which process it is; where that is gone, the next
benchmark and `fleet down` end what is left and delete the home. Cost: until then it runs on.
"""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fleet.broker import Broker
from fleet.errors import FleetError
from fleet.system.carried_ids import carrying, end_all
from fleet.system.home import read_state, write_state
from fleet.system.processes import ProcessId, alive, identify

ID_VARIABLE: Final = "FLEET_BENCH_ID"
MARK: Final = "benchmark.json"
SCHEMA: Final = 1
_GRACE: Final = 5.0


def homes(home: Path) -> Path:
    """Where the benchmarks of a `$FLEET_HOME` have theirs."""
    return home.absolute() / "bench"


@contextlib.contextmanager
def owned(home: Path) -> Iterator[None]:
    """The home, one of `homes`, is this process's meanwhile; what others left is ended before."""
    end_left(home.parent)
    name, before = uuid.uuid4().hex, os.environ.get(ID_VARIABLE)
    me = identify(os.getpid())
    assert me is not None
    write_state(home / MARK, {"id": name, "process": me.as_json()}, schema=SCHEMA)
    os.environ[ID_VARIABLE] = name  # every process from here on carries it
    try:
        yield
    finally:
        os.environ.pop(ID_VARIABLE)
        if before is not None:
            os.environ[ID_VARIABLE] = before
        (home / MARK).unlink(missing_ok=True)


def end_left(folder: Path) -> None:
    """End what benchmarks left that were killed, and delete their homes; of others nothing."""
    for mark in sorted(folder.glob(f"*/{MARK}")):
        # One that cannot be read or ended hinders no other.
        with contextlib.suppress(FleetError, OSError, KeyError, TypeError, ValueError):
            state = read_state(mark, schema=SCHEMA)
            if state is None or alive(ProcessId.from_json(state["process"])):
                continue
            for _ in range(2):  # again: a supervisor may have been starting a worker
                end_all(carrying(ID_VARIABLE, str(state["id"])), grace=_GRACE)
            Broker(mark.parent).purge()
            shutil.rmtree(mark.parent)
