"""A worker whose member is a program of its own: `worker: {command: […]}`, `fleet exec`.

Problem: the care for slots, leases and changes must be the same for a job and for a program.
Choice: everything but the member is `WorkerMain`'s: standby, take, renewal, handover, leave,
report. Only Spark and the batches are missing. Cost: a standby is warm when this process is, not
when the program would be; with `warm` the program runs already, but does not say when it is ready.
"""

import signal
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final

from fleet.errors import FleetError
from fleet.slots.store import Store
from fleet.worker.events import WorkerContext
from fleet.worker.program.launcher import Launcher
from fleet.worker.program.member_view import MemberWatch
from fleet.worker.program.membership import ProgramMembership, exit_named
from fleet.worker.slot.process import SlotTargetsOpener, WorkerMain
from fleet.worker.slot.slot_lease import SlotWatcher
from fleet.worker.slot.slot_owner import SlotOwner

FORWARDED: Final = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals for the program; SIGTERM and SIGINT end the worker, which ends the program."""


class NoBatches:
    """Stands where a job's batches would run."""

    session_id: None = None

    def __init__(self) -> None:
        self.slot: int | None = None

    def end_session(self, session_id: str) -> "Future[str | None]":
        """Leaves the Spark session of a former owner, which ran a job, to its own end."""
        done: Future[str | None] = Future()
        done.set_result(f"session {session_id} is Spark's, which a program does not have")
        return done

    def watch(self) -> str | None:
        """Returns None: no batch is over its time."""
        return None


class ProgramOwner(SlotOwner):
    """One slot, whose member is the program."""

    def __init__(self, *args: Any, launcher: Launcher, watch: MemberWatch, **named: Any) -> None:
        super().__init__(*args, runner=NoBatches(), **named)
        self._launcher = launcher
        self._watch = watch

    def _new_membership(self, open_at: float) -> ProgramMembership:
        return ProgramMembership(
            self._context,
            self._lease.slot,
            open_at=open_at,
            launcher=self._launcher,
            watch=self._watch,
            may_join=self._lease.may_join,
            evict=self._failover.evict,
        )


class ProgramWorker(WorkerMain):
    """The life of a worker with a program."""

    def __init__(self, context: WorkerContext, *, home: Path, code: Path | None) -> None:
        super().__init__(context, home=home, code=code)
        self._launcher = Launcher(context, clean=self._errors.clean)
        self._watch = MemberWatch(context)
        for number in FORWARDED:
            signal.signal(number, lambda number, _: self._launcher.signal(number))

    def run(self) -> tuple[int, str]:
        """Runs it; whatever ends it, the program ends too."""
        try:
            return super().run()
        finally:
            self._watch.end()
            self._launcher.close()

    def _warm(self, watcher: SlotWatcher) -> None:  # noqa: ARG002
        """Starts a warm program; others start with their slot."""
        self._keep_warm()

    def _owners(self) -> Callable[..., SlotOwner]:
        return partial(ProgramOwner, launcher=self._launcher, watch=self._watch)

    def _looks(
        self, store: Store, watcher: SlotWatcher, opener: SlotTargetsOpener
    ) -> Callable[[], tuple[int, str] | None]:
        look = super()._looks(store, watcher, opener)

        def look_at_program_too() -> tuple[int, str] | None:
            self._keep_warm()
            return look()

        return look_at_program_too

    def _keep_warm(self) -> None:
        """Keeps a warm program running while there is no slot; FleetError if it ended."""
        if not self._context.worker.warm:
            return
        if not self._launcher.runs:
            self._launcher.warm_up()
        elif (code := self._launcher.collect()) is not None:
            name, said = self._context.worker.command[0], self._launcher.last_line()
            raise FleetError(f"{name} ended without a slot, with {exit_named(code)}: {said}")
