"""What keeps a home's workers alive: one small process that makes the process table true.

Problem: workers must outlive the command or run that asked for them, come back when they die,
and never run twice; and the supervisor itself may be killed. Choice: a process of its own that
looks at the process table every 0.2 s. It is alone because it holds a file lock that the kernel
gives back when it dies; its successor finds workers by the identity written down, and those
not yet written down by their marks (fleet.system.processes). Cost: about 30 MB per home, and
Linux.

`python -m fleet.act.local.supervisor --home PATH` runs it; `fleet.act.local.local_runtime` starts
it. SIGTERM ends it alone, the workers go on.
"""

import argparse
import fcntl
import logging
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fleet.act import spark_server
from fleet.act.local.fork_servers import ForkServers
from fleet.act.local.process_table import ProcessRow, ProcessTable
from fleet.clock import Clock, SystemClock
from fleet.errors import FleetError
from fleet.slots import STEADY_SECONDS
from fleet.slots.sqlite import DATABASE, SqliteStore
from fleet.system.home import write_whole
from fleet.system.log_files import last_line, set_aside, thin_out
from fleet.system.memory_files import sweep_all
from fleet.system.processes import (
    ProcessId,
    age,
    alive,
    environment,
    exit_code,
    home_processes,
    identify,
    inherit_orphans,
    reap_orphans,
    signal_group,
    spawn,
    wait_ended,
)

# A killed worker's partitions would stand still for a lease, though its supervisor saw it end: so
# its slots are freed (`Store.end_owner`) before its next life starts, and only where nothing of it
# runs, also out of its process group: Spark's Python daemon ends a moment after its JVM [13].


_GRACE: Final = 1.0
"""Seconds for what a worker left behind to be gone."""
_POLL: Final = 0.02
_log = logging.getLogger("fleet.supervisor")


class EndedOwners:
    """Releases the slots of ended processes; opens stores when the first one ends."""

    def __init__(self, home: Path, *, clock: Clock) -> None:
        self._home = home
        self._clock = clock
        self._stores: dict[str, SqliteStore] = {}

    def tell(self, row: ProcessRow) -> None:
        """Releases the slots of an ended worker.

        Raises FleetError where the store does not answer; leases decide then.
        """
        held = [slot for slot in self._of(row).slots(row.group) if slot.owner == row.name]
        if not held:
            return
        if not self._is_gone(row.name):
            _log.warning(
                "%s left processes that do not stop; its slot waits for the lease", row.name
            )
            return
        for slot in held:
            if self._of(row).end_owner(slot):
                _log.info("slot %d of group %s lost %s", slot.number, slot.group, row.name)

    def _of(self, row: ProcessRow) -> SqliteStore:
        store = self._stores.get(row.cluster)
        if store is None:
            store = SqliteStore(self._home / DATABASE, cluster=row.cluster, clock=self._clock)
            self._stores[row.cluster] = store
        return store

    def _is_gone(self, worker: str) -> bool:
        """Whether nothing that carries its mark runs any more, waited for a moment."""
        deadline = self._clock.monotonic() + _GRACE
        while any(found.worker == worker for found in home_processes(self._home)):
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(_POLL)
        return True

    def close(self) -> None:
        """Closes all open stores."""
        for store in self._stores.values():
            store.close()


SPARK_UI: Final = "FLEET_SPARK_UI"
"""In the environment of workers whose shared Spark server shall have its web UI."""
LOOK_SECONDS: Final = 0.2
FIRST_DELAY: Final = 0.5
LONGEST_DELAY: Final = 30.0
LEAST_LIFE: Final = 1.0
"""An orderly end after less than this is treated as a failure, or it would spin."""
_SPARK_GRACE: Final = 5.0


class SupervisorLock:
    """Locks a state directory for one supervisor; the kernel frees the lock at its death."""

    def __init__(self, home: Path) -> None:
        self._path = home / "supervisor" / "lock"
        self._file: int | None = None

    def take(self, *, wait: float, clock: Clock) -> bool:
        """Tries to take the lock for up to `wait` seconds."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = clock.monotonic() + wait
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if clock.monotonic() >= deadline:
                    os.close(handle)
                    return False
                clock.sleep(0.02)
            else:
                self._file = handle
                return True

    def still_there(self) -> bool:
        """Tells whether the state directory still exists; else the lock has no effect."""
        assert self._file is not None
        try:
            return os.fstat(self._file).st_ino == self._path.stat().st_ino
        except OSError:
            return False

    def free(self) -> None:
        """Frees the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def log_of(home: Path, worker: str) -> Path:
    """Returns the log file of a worker."""
    return home / "workers" / f"{worker}.log"


@dataclass(slots=True)
class _Backoff:
    """When something that keeps ending may be started again, on the monotonic clock."""

    failures: int = 0
    not_before: float = 0.0

    @classmethod
    def after(cls, failures: int, *, now: float) -> "_Backoff":
        """Returns the back-off of a new supervisor: the last pause again."""
        before = cls(failures=failures - 1)
        if failures > 0:
            before.ended(lived=0.0, orderly=False, now=now)
        return cls(failures=failures, not_before=before.not_before)

    def ended(self, *, lived: float, orderly: bool, now: float) -> float:
        """Records an end; returns the seconds to wait."""
        if lived >= STEADY_SECONDS:
            self.failures = 0
        if orderly:
            self.not_before = now
            return 0.0
        delay = float(min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(self.failures, 10)))
        self.failures += 1
        self.not_before = now + delay
        return delay


@dataclass(slots=True)
class _Spark:
    """The supervisor's memory of the shared Spark server."""

    backoff: _Backoff = field(default_factory=_Backoff)
    process: ProcessId | None = None
    started_at: float | None = None
    """Monotonic."""
    trouble: str = ""


class Supervisor:
    """Starts and stops processes by the process table. The caller holds the SupervisorLock."""

    def __init__(self, home: Path, *, clock: Clock) -> None:
        self.home = home
        self.table = ProcessTable(home, clock=clock)
        self._clock = clock
        self._rows: tuple[ProcessRow, ...] = ()
        self._stopping = False
        self._version: int | None = None
        self._told: dict[ProcessId, float] = {}
        """Processes that were sent SIGTERM, and when (monotonic)."""
        self._backoffs: dict[str, _Backoff] = {}
        self._spark = _Spark(process=spark_server.process(home))
        self._owners = EndedOwners(home, clock=clock)
        self._fork_servers = ForkServers(home, clock=clock)

    def adopt(self) -> None:
        """Finds unrecorded workers and stops those that are not wanted."""
        rows = {row.name: row for row in self.table.rows()}
        for found in sorted(home_processes(self.home), key=lambda m: m.process.start_time):
            if found.worker is None or not found.leads:
                continue
            row = rows.get(found.worker)
            if row is not None and row.process == found.process:
                _log.info("%s still runs as pid %d", row.name, found.process.pid)
            elif row is not None and (row.process is None or not alive(row.process)):
                _log.info("%s was started as pid %d before", row.name, found.process.pid)
                rows[row.name] = (
                    self.table.started(row.name, found.process, at=self._clock.now()) or row
                )
            else:
                _log.warning(
                    "stopping pid %d (%s), which is not wanted", found.process.pid, found.worker
                )
                self._end_now(found.process)

    def look(self) -> bool:
        """Checks all processes once; False when all have stopped on request."""
        version = self.table.data_version()
        if version != self._version:
            self._rows = self.table.rows()
            self._stopping = self.table.stopping()
            self._version = version
            self._fork_servers.keep(row for row in self._rows if row.wanted)
        if self._stopping and not self._rows:
            spark_server.stop(self.home, grace=_SPARK_GRACE)
            return False
        try:
            self._look_at_spark()
        except (FleetError, OSError) as error:
            self._spark_failed(str(error))
        for row in self._rows:
            try:
                self._look_at(row)
            except (FleetError, OSError) as error:  # the others need their supervisor still
                _log.warning("%s: %s", row.name, error)
        reap_orphans()
        return True

    def end_all(self) -> None:
        """Stops everything at once, since the state directory is gone."""
        for found in list(home_processes(self.home)):
            if found.leads:
                self._end_now(found.process)

    def close(self) -> None:
        """Stops the fork servers and closes the database."""
        self._fork_servers.close()
        self.table.close()
        self._owners.close()

    # --- workers ------------------------------------------------------------------------------

    def _look_at(self, row: ProcessRow) -> None:
        if row.process is not None and alive(row.process):
            if not row.wanted:
                self._let_end(row.process, row)
        elif row.process is not None:
            self._ended(row, row.process)
        elif not row.wanted:
            _log.info("%s is removed", row.name)
            self._remove(row)
        elif self._may_start(row) and self._fork_servers.ready(row) and self._spark_serves(row):
            self._start(row)

    def _may_start(self, row: ProcessRow) -> bool:
        """Whether its pause is over; a person who asks for a restart ends it."""
        now = self._clock.monotonic()
        if row.name not in self._backoffs:
            self._backoffs[row.name] = _Backoff.after(row.failures, now=now)
        return row.restart_asked or now >= self._backoffs[row.name].not_before

    def _start(self, row: ProcessRow) -> None:
        log = log_of(self.home, row.name)
        try:
            set_aside(log)
            process = self._fork_servers.start(row, log=log) or spawn(
                row.launch.argv,
                log=log,
                env=environment(self.home, part="worker", extra=row.launch.env, worker=row.name),
                cwd=self.home,
            )
        except OSError as error:  # no such program, no more processes, no room for its log
            self._failed(row, f"it could not be started: {error}", lived=0.0, orderly=False)
            return
        _log.info("starting %s as pid %d", row.name, process.pid)
        try:
            self.table.started(row.name, process, at=self._clock.now())
        except FleetError:
            # Not written down it would be started again: rather end it and try anew.
            self._end_now(process)
            raise

    def _let_end(self, process: ProcessId, row: ProcessRow) -> None:
        """SIGTERM to the worker alone (its JVM must outlive its drain), SIGKILL to all of it."""
        now = self._clock.monotonic()
        if process not in self._told:
            _log.info("stopping %s within %g s", row.name, row.grace)
            os.kill(process.pid, signal.SIGTERM)
            self._told[process] = now
        elif now - self._told[process] >= row.grace:
            _log.warning("%s did not stop within %g s; killing it", row.name, row.grace)
            signal_group(process, signal.SIGKILL)

    def _ended(self, row: ProcessRow, process: ProcessId) -> None:
        signal_group(process, signal.SIGKILL)  # what it left behind
        sweep_all(os.environ)
        self._told.pop(process, None)
        try:
            self._owners.tell(row)
        except FleetError as error:
            _log.warning("%s: %s", row.name, error)
        row = next((r for r in self.table.rows() if r.name == row.name), row)
        code = exit_code(process)
        reason = _reason(code, last_line(log_of(self.home, row.name)))
        if not row.wanted:
            _log.info("%s stopped (%s) and is removed", row.name, reason)
            self._remove(row)
            return
        lived = age(process)
        orderly = row.restart_asked or (code == 0 and lived >= LEAST_LIFE)
        self._failed(row, reason, lived=lived, orderly=orderly)

    def _failed(self, row: ProcessRow, reason: str, *, lived: float, orderly: bool) -> None:
        """It does not run: who asks is told why, and it is started after its pause."""
        backoff = _Backoff(failures=row.failures)
        delay = backoff.ended(lived=lived, orderly=orderly, now=self._clock.monotonic())
        self._backoffs[row.name] = backoff
        _log.info("%s stopped after %.1f s: %s; restarting in %g s", row.name, lived, reason, delay)
        self.table.ended(
            row.name,
            reason=reason,
            failures=backoff.failures,
            restarts=row.restarts + 1,
        )

    def _remove(self, row: ProcessRow) -> None:
        self.table.delete(row)
        self._backoffs.pop(row.name, None)
        kept = {log_of(self.home, each.name) for each in self._rows if each.name != row.name}
        thin_out(log_of(self.home, row.name).parent, living=kept)

    def _end_now(self, process: ProcessId) -> None:
        signal_group(process, signal.SIGKILL)
        wait_ended(process, timeout=5.0)

    # --- the shared Spark server ------------------------------------------------------------

    def _look_at_spark(self) -> None:
        spark, now = self._spark, self._clock.monotonic()
        if spark.process is not None and not alive(spark.process):
            spark.process = None
            self._spark_failed(last_line(spark_server.log_file(self.home)) or "no last line")
        users = [row for row in self._rows if row.wanted and row.shared_spark]
        wanted, ui = bool(users), any(SPARK_UI in row.launch.env for row in users)
        if wanted and spark.process is None and now >= spark.backoff.not_before:
            spark.process = spark_server.start(self.home, ui=ui)
            spark.started_at = now
            _log.info("starting the Spark server as pid %d", spark.process.pid)

    def _spark_failed(self, why: str) -> None:
        now = self._clock.monotonic()
        lived = now - (self._spark.started_at or now)
        self._spark.started_at = None
        # All partitions wait for it: one that served for a while is started again at once.
        steady = lived >= STEADY_SECONDS
        delay = self._spark.backoff.ended(lived=lived, orderly=steady, now=now)
        self._spark.trouble = f"the Spark server does not run: {why}"
        _log.warning(
            "%s; restarting in %g s; its workers wait 10 to 30 s",
            self._spark.trouble,
            delay,
        )
        for row in self._rows:
            if row.shared_spark and row.process is None:
                self.table.explain(row.name, self._spark.trouble)

    def _spark_serves(self, row: ProcessRow) -> bool:
        """A worker waits for its Spark server here, not in a client's growing retries."""
        return not row.shared_spark or (
            self._spark.process is not None and spark_server.ready(self.home)
        )


def _reason(code: int | None, last: str) -> str:
    if code is None:
        how = "ended"  # not our child: started by a supervisor before this one
    elif code < 0:
        how = f"killed by {_signal_name(-code)}"
        if code == -signal.SIGKILL:
            how += " (kill -9, or the kernel when memory ran out)"
    else:
        how = f"exit code {code}"
    return f"{how}: {last}" if last and code != 0 else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has none
        return f"signal {number}"


def supervise(home: Path, *, clock: Clock, leave: threading.Event) -> None:
    """Supervises `home` until `leave` is set or everything has stopped.

    Returns at once where another process is it.
    """
    lock = SupervisorLock(home)
    if not lock.take(wait=1.0, clock=clock):
        _log.info("another supervisor runs")
        return
    supervisor = Supervisor(home, clock=clock)
    me = identify(os.getpid())
    assert me is not None
    pidfile = home / "supervisor" / "pid"
    write_whole(pidfile, f"{me.pid}\n")
    supervisor.table.enter(me)
    _log.info("supervising %s as pid %d", home, me.pid)
    try:
        supervisor.adopt()
        while not leave.is_set():
            if not lock.still_there():
                supervisor.end_all()
                return
            if not _look(supervisor) and supervisor.table.leave(only_if_stopped=True):
                _log.info("all has stopped")
                return
            leave.wait(LOOK_SECONDS)
        supervisor.table.leave(only_if_stopped=False)
        _log.info("ending; the workers go on")
    finally:
        pidfile.unlink(missing_ok=True)
        supervisor.close()
        lock.free()


def _look(supervisor: Supervisor) -> bool:
    try:
        return supervisor.look()
    except (FleetError, OSError) as error:  # the store is busy: the next look may find it free
        _log.warning("%s", error)
        return True


def main(argv: list[str] | None = None) -> int:
    """Runs the supervisor of one state directory."""
    parser = argparse.ArgumentParser(prog="python -m fleet.act.local.supervisor")
    parser.add_argument("--home", type=Path, required=True)
    home = parser.parse_args(argv).home.resolve()
    logging.raiseExceptions = False  # a log that cannot be written must not end it [40]
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    leave = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    signal.signal(signal.SIGINT, lambda *_: leave.set())
    inherit_orphans()
    supervise(home, clock=SystemClock(), leave=leave)
    return 0


if __name__ == "__main__":
    sys.exit(main())
