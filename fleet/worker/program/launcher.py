"""Starts the program of a worker with its instance id, and lets it live while this process moves.

A warm program starts without a slot, and reads its instance id from a file once it has one.
"""

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fleet.system.child_guard import GuardedProgram
from fleet.system.home import write_whole
from fleet.system.log_files import last_line
from fleet.system.processes import PART, WORKER, carrying, end_all
from fleet.worker.events import WorkerContext

INSTANCE_ID: Final = "GROUP_INSTANCE_ID"
INSTANCE_FILE: Final = "FLEET_INSTANCE_FILE"
_PLACEHOLDER: Final = "{instance_id}"
_SILENCE: Final = 0.5
"""Part of the lease after which a program without a sign of its worker is killed: the last renewal
is at most a third of the lease older, so that it is dead before the lease expires."""


class Launcher:
    """The program of one worker: at most one run of it at a time."""

    def __init__(self, context: WorkerContext, *, clean: Callable[[str], str]) -> None:
        """clean: removes secrets from a line."""
        self._context = context
        self._clean = clean
        self._limit = context.lease * _SILENCE
        self._folder = tempfile.TemporaryDirectory(prefix="fleet-")
        self._file = Path(self._folder.name) / "instance"
        self._program: GuardedProgram | None = None
        self._given = False
        self._ended = threading.Event()
        self.began = context.clock.monotonic()
        """Monotonic time at which the last run began."""
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    @property
    def runs(self) -> bool:
        """Whether a run was started and not yet collected."""
        return self._program is not None

    def warm_up(self) -> None:
        """Starts the program without an instance id."""
        self._start({})

    def give(self, instance_id: str) -> None:
        """Lets the program subscribe with this id; starts it unless it is warm."""
        if self._program is None:
            self._start({INSTANCE_ID: instance_id})
        write_whole(self._file, f"{instance_id}\n")

    def signal(self, number: int) -> None:
        """Sends it a signal, if it runs."""
        if self._program is not None:
            self._program.signal(number)

    def collect(self) -> int | None:
        """Returns the exit code, once, when nothing of the run is left; None before."""
        program = self._program
        code = None if program is None else program.ended()
        if program is not None and code is not None:
            self.stop()
        return code

    def last_line(self) -> str:
        """Returns the last line of the worker's log, which is the program's when it has ended.

        Empty where the log is no file: on Kubernetes it is the container's.
        """
        here = Path("/proc/self/fd/2")
        return self._clean(last_line(here)) if here.is_file() else ""

    def stop(self) -> None:
        """Kills what runs of it."""
        program, self._program = self._program, None
        self._file.unlink(missing_ok=True)
        if program is not None:
            program.close()
            # Its guard may have been killed, and left what is in no process group of ours.
            end_all(carrying(WORKER, self._context.name), grace=0.0)

    def close(self) -> None:
        """Kills it and removes its file."""
        self._ended.set()
        self.stop()
        with contextlib.suppress(OSError):
            self._folder.cleanup()

    def _start(self, given: dict[str, str]) -> None:
        told = self._context.worker
        instance_id = given.get(INSTANCE_ID, "")
        env = {**os.environ, **given, WORKER: self._context.name, INSTANCE_FILE: str(self._file)}
        if PART in os.environ and "PYTHONPATH" not in told.env:
            env.pop("PYTHONPATH", None)  # the runtime's own
        argv = [word.replace(_PLACEHOLDER, instance_id) for word in told.command]
        self.began = self._context.clock.monotonic()
        self._program = GuardedProgram(argv, env=env, limit=self._limit)

    def _beat(self) -> None:
        while not self._ended.wait(min(1.0, self._limit / 8)):
            program = self._program
            if program is not None:
                program.beat()
