"""The local runtime: workers are processes of this machine, kept by the home's supervisor.

Problem: `fleet up` on a laptop must behave as a cluster does: workers outlive the command,
come back, and go when told. Choice: this side only writes wishes (the process table, a revision's
settings) and makes sure that the supervisor runs. `down` alone acts itself where the
supervisor is dead or stuck: it kills it, takes its lock and does its work to the end. Cost:
workers see the environment of whoever started the supervisor, so after a change of exported
credentials run `fleet down` and `fleet up`.
"""

import contextlib
import hashlib
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import fleet
from fleet.act import spark_server
from fleet.act.local.fork_servers import PART as FORK_SERVER
from fleet.act.local.process_table import Launch, ProcessRow, ProcessTable
from fleet.act.local.supervisor import SPARK_UI, log_of, supervise
from fleet.act.runtime import Runtime, RuntimeKind
from fleet.clock import Clock, SystemClock
from fleet.config.references import plain_environment
from fleet.config.settings import WorkerSettings, settings_to_start
from fleet.config.spec import FleetSpec, GroupSpec
from fleet.errors import FleetError, Refused
from fleet.extras import need
from fleet.model import Finding, ok, warn
from fleet.slots import STEADY_SECONDS, WorkerProcess
from fleet.slots.sqlite import DATABASE, SqliteStore
from fleet.system.code import snapshot_code
from fleet.system.home import write_whole
from fleet.system.log_files import LogPart, last_line, read_log, set_aside
from fleet.system.processes import (
    ProcessId,
    age,
    alive,
    end,
    environment,
    home_processes,
    spawn,
    wait_ended,
)

_KEPT_REVISIONS: Final = 10
"""Revisions of a group kept beside those in use: a way back needs no new copy."""
_START_SECONDS: Final = 15.0
_SUPERVISOR_SECONDS: Final = 5.0
"""What a supervisor may take to end alone."""
_SLACK_SECONDS: Final = 15.0
"""What `down` allows beyond the workers' grace, for the Spark server and a busy machine."""
_PLAIN: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")

WorkerArguments = Callable[[Path, str], Sequence[str]]
"""(settings file, worker name) → the arguments of a worker's process."""


def worker_arguments(settings: Path, name: str) -> Sequence[str]:
    """Returns the arguments of a worker; a name with a leading dash is not an option."""
    return (sys.executable, "-m", "fleet.worker", "--settings", str(settings), f"--name={name}")


class LocalRuntime(Runtime):
    """Implements `fleet.act.runtime.Runtime` on this machine."""

    def __init__(
        self,
        home: Path,
        *,
        cluster: str,
        clock: Clock,
        arguments: WorkerArguments = worker_arguments,
    ) -> None:
        self.home = home.resolve()
        self.cluster = cluster
        self._clock = clock
        self._arguments = arguments
        self._store = SqliteStore(self.home / DATABASE, cluster=cluster, clock=clock)
        self._table = ProcessTable(self.home, clock=clock)

    @property
    def store(self) -> SqliteStore:
        """Returns the store of slots."""
        return self._store

    def close(self) -> None:
        """Closes the database; workers and supervisor go on."""
        self._store.close()
        self._table.close()

    def ensure(self) -> None:
        """Makes sure that the supervisor runs, which starts the Spark server if needed.

        One whose own Python was removed under it (another installation is in use since) can start
        nobody any more: it ends, its workers go on, and ours follows.

        Raises FleetError where it does not start within 15 s, with its last line, and ConfigError
        where workers could not run here.
        """
        need("pyspark", "pyarrow")
        log = self.home / "supervisor" / "log"
        deadline = self._clock.monotonic() + _START_SECONDS
        started: ProcessId | None = None
        while True:
            known = self._table.call_up()
            if known is not None and alive(known):
                if _has_its_python(known):
                    return
                end(known, grace=_SUPERVISOR_SECONDS)
            if started is None:
                set_aside(log)
                started = spawn(
                    (sys.executable, "-m", "fleet.act.local.supervisor", "--home", str(self.home)),
                    log=log,
                    env=environment(self.home, part="supervisor"),
                    cwd=self.home,
                )
            elif self._clock.monotonic() >= deadline:
                raise FleetError(
                    f"the supervisor of {self.home} did not start; last line of {log}: "
                    f"{last_line(log) or 'none'}"
                )
            elif not alive(started):
                started = None  # it left the place to another one, which may have ended since
            self._clock.sleep(0.05)

    def supervisor(self) -> ProcessId | None:
        """Returns the live supervisor; None if none runs."""
        known = self._table.supervisor()
        return known if known is not None and alive(known) else None

    # --- revisions --------------------------------------------------------------------------

    def revision_dir(self, group: str, revision: str) -> Path:
        """Returns the folder of one revision of a group."""
        return self.home / "revisions" / _folder(self.cluster, group) / revision

    def code_dir(self, group: str, revision: str) -> Path:
        """Returns the folder for a revision's code, first on its workers' path."""
        return self.revision_dir(group, revision) / "code"

    def keep_code(self, spec: GroupSpec, revision: str) -> str:
        """Copies the entrypoint's code for the revision's workers; returns its digest."""
        return snapshot_code(spec, self.code_dir(spec.group, revision))

    def publish(self, group: str, revision: str, settings: str) -> None:
        """Stores a revision's settings atomically and deletes the oldest unused ones."""
        need("pyspark", "pyarrow")  # before a change begins that nobody could end here
        write_whole(self._settings_file(group, revision), settings)
        used = {row.revision for row in self._table.rows() if row.group == group}
        used |= {slot.revision for slot in self._store.slots(group) if slot.revision}
        others = [
            found
            for found in self._settings_file(group, revision).parents[1].glob("*/settings.json")
            if found.parent.name not in {revision, *used}
        ]
        for old in sorted(others, key=lambda found: found.stat().st_mtime)[:-_KEPT_REVISIONS]:
            shutil.rmtree(old.parent, ignore_errors=True)

    def published(self, group: str, revision: str) -> str | None:
        """Returns the settings of a revision; None if it was never published."""
        try:
            return self._settings_file(group, revision).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def _settings_file(self, group: str, revision: str) -> Path:
        return self.revision_dir(group, revision) / "settings.json"

    # --- workers ------------------------------------------------------------------------------

    def start(self, group: str, revision: str, count: int) -> tuple[str, ...]:
        """Ask for `count` more workers; their names. Refused where the revision is unpublished, or
        of a release that this one cannot read.
        """
        text = self.published(group, revision)
        if text is None:
            raise Refused(
                f"revision {revision} of group {group} is not published in {self.home}; run "
                f"`fleet apply {group}`"
            )
        worker = settings_to_start(text, group=group, revision=revision).group.worker
        if worker is None:
            raise Refused(f"group {group} declares no worker; its consumers are external")
        paths = [str(self.code_dir(group, revision))]
        paths += [str(Path(path).absolute()) for path in worker.python_path]
        # What refers to the environment the worker takes itself: nothing of it is written down.
        plain = plain_environment(worker.env)
        paths += [path for path in (plain.get("PYTHONPATH"),) if path]
        # The supervisor may be another installation's, and puts its own on the path.
        paths.append(str(Path(fleet.__file__).parents[1]))
        env = {**plain, "PYTHONPATH": os.pathsep.join(paths)}
        if worker.spark_ui and worker.shares_spark:
            env[SPARK_UI] = "1"
        settings = self._settings_file(group, revision)
        readable = _readable(group).strip("-") or "worker"
        rows = []
        for number in self._table.numbers(count):
            name = f"{readable}-{revision[:4]}-{number}"
            rows.append(
                ProcessRow(
                    name=name,
                    cluster=self.cluster,
                    group=group,
                    revision=revision,
                    launch=Launch(argv=tuple(self._arguments(settings, name)), env=env),
                    shared_spark=worker.shares_spark,
                )
            )
        self._table.add(rows)
        return tuple(row.name for row in rows)

    def remove(self, names: Sequence[str], *, grace: float) -> None:
        """Removes workers: SIGTERM, `grace` seconds, SIGKILL; no restart. Returns at once."""
        self._table.unwant(frozenset(names), grace=grace)

    def read_log(self, worker: str, place: str | None = None) -> LogPart:
        """Reads the log file in `workers`, and the one before it."""
        return read_log(log_of(self.home, worker), place)

    def restart(self, name: str) -> None:
        """Stops the worker's process by SIGTERM; the supervisor starts it again."""
        row = self._table.ask_restart(name)
        if row is None:
            known = ", ".join(r.name for r in self._table.rows()) or "none"
            raise Refused(f"no worker {name} exists; existing workers: {known}")
        if row.process is not None and alive(row.process):
            os.kill(row.process.pid, signal.SIGTERM)

    def workers(self, group: str | None = None) -> tuple[WorkerProcess, ...]:
        """Returns all existing workers of this cluster, by name."""
        found = []
        for row in self._table.rows():
            if row.cluster != self.cluster or group not in {None, row.group}:
                continue
            running = row.process is not None and alive(row.process)
            found.append(
                WorkerProcess(
                    name=row.name,
                    group=row.group,
                    revision=row.revision,
                    wanted=row.wanted,
                    running=running,
                    restarts=row.restarts,
                    pid=row.process.pid if running and row.process is not None else None,
                    exit_reason=row.exit_reason,
                    failures=_failures(row),
                )
            )
        return tuple(found)

    # --- beside a change ------------------------------------------------------------------------

    def examine(self) -> Iterator[Finding]:
        """Yields findings on the supervisor, the Spark server and orphaned processes."""
        wanted = [row for row in self._table.rows() if row.wanted]
        supervisor = self.supervisor()
        if supervisor is not None:
            yield ok("supervisor", f"runs, pid {supervisor.pid}")
        elif wanted:
            yield warn("supervisor", "does not run: nothing restarts a worker", "fleet up")
        if spark_server.alive(self.home):
            yield ok("spark", f"the shared server runs at {spark_server.connect_url(self.home)}")
        elif any(row.shared_spark for row in wanted):
            remedy = "fleet up; its log says why it ended"
            yield warn("spark", "the shared server does not run", remedy)
        for orphan in find_orphans(self.home):
            told = f"pid {orphan.pid} belongs to no known worker"
            yield warn("orphans", told, "fleet down ends it")

    # --- the end --------------------------------------------------------------------------------

    def down(self, *, grace: float) -> None:
        """Stops all workers, the Spark server and the supervisor, and waits for their end.

        Workers get SIGTERM and `grace` seconds. Raises FleetError naming what cannot be ended.
        """
        self._table.stop_all(grace=grace)
        running = self.supervisor()
        if running is not None and not wait_ended(running, timeout=grace + _SLACK_SECONDS):
            end(running, grace=0.0)  # stuck: its work is done below
        if any(True for _ in home_processes(self.home)) or self._table.rows():
            self._table.stop_all(grace=grace)
            supervise(self.home, clock=self._clock, leave=threading.Event())
        for found in list(home_processes(self.home)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(found.process.pid, signal.SIGKILL)  # a child too, whose leader is gone
            wait_ended(found.process, timeout=5.0)
        left = [f"{m.process.pid} ({m.worker or m.part})" for m in home_processes(self.home)]
        if left:
            raise FleetError(
                f"cannot stop processes of {self.home}: {', '.join(left)}; stop them by hand"
            )

    def purge(self) -> tuple[str, ...]:
        """Deletes all files of workers after `down`."""
        self.close()
        for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
            (self.home / name).unlink(missing_ok=True)
        for folder in ("revisions", "workers", "supervisor", "spark"):
            shutil.rmtree(self.home / folder, ignore_errors=True)
        return ()


class LocalKind(RuntimeKind):
    """Implements `fleet.act.runtime.RuntimeKind` for this machine."""

    def open(
        self, spec: FleetSpec, *, home: Path, environ: Mapping[str, str], clock: Clock
    ) -> LocalRuntime:
        """Opens the runtime of the state directory."""
        del environ  # workers see their supervisor's
        return LocalRuntime(home, cluster=spec.cluster.name, clock=clock)

    def store(
        self, settings: WorkerSettings, *, home: Path, environ: Mapping[str, str], clock: Clock
    ) -> SqliteStore:
        """Opens the slots of the state directory."""
        del environ
        return SqliteStore(home / DATABASE, cluster=settings.cluster.name, clock=clock)


KIND: Final = LocalKind()


def _failures(row: ProcessRow) -> int:
    """Ends in a row, unless the process that runs has outlived them."""
    steady = row.process is not None and alive(row.process) and age(row.process) >= STEADY_SECONDS
    return 0 if steady else row.failures


def _has_its_python(supervisor: ProcessId) -> bool:
    """Whether the program by which it starts others is still there."""
    try:
        told = Path(f"/proc/{supervisor.pid}/cmdline").read_bytes().partition(b"\0")[0]
    except OSError:
        return True  # it has just ended: the next look tells
    program = Path(os.fsdecode(told))
    return program.exists() or not program.is_absolute()  # a person's `python` may be anywhere


def find_orphans(home: Path) -> list[ProcessId]:
    """Finds unknown processes of the state directory.

    A worker started in this very moment may appear until its start is written down.
    """
    home = home.resolve()
    # A fork server is nobody's worker, and ends with its supervisor.
    found = [each for each in home_processes(home) if each.part != FORK_SERVER]
    if not (home / DATABASE).exists():
        return [each.process for each in found]
    table = ProcessTable(home, clock=SystemClock())
    try:
        known = {row.process for row in table.rows()}
        known |= {table.supervisor(), spark_server.process(home)}
    finally:
        table.close()
    sessions = {process.pid for process in known if process is not None and alive(process)}
    return [each.process for each in found if each.session not in sessions]


def _readable(group: str) -> str:
    """A group's name as a file name's part: itself where that is plain, else cleaned."""
    return group if _PLAIN.fullmatch(group) else re.sub(r"[^a-z0-9]+", "-", group.lower())[:40]


def _folder(cluster: str, group: str) -> str:
    """A folder name that no other group of any cluster has."""
    digest = hashlib.sha256(f"{cluster}\0{group}".encode()).hexdigest()[:8]
    return f"{_readable(group)}-{digest}"
