"""Workers without a slot: started ahead, waited for until warm, removed by name.

A standby has Spark up and a dummy batch behind it, so that taking a slot costs only the
join. This module counts and asks; the runtime keeps processes alive.
"""

from collections.abc import Callable, Collection

from fleet.act.runtime import Runtime
from fleet.config.settings import settings_if_readable
from fleet.errors import FleetError, NoRoom
from fleet.slots import SlotStore, WorkerProcess
from fleet.text import plural

Wait = Callable[..., None]
"""wait(predicate, seconds, what is awaited, poll=seconds between two looks): FleetError in the
end."""
_UNUSED_GRACE = 10.0
"""Seconds for a worker to end that has only just been started."""


class StandbyPool:
    """The workers of one group, seen through its runtime and store."""

    def __init__(
        self,
        runtime: Runtime,
        store: SlotStore,
        group: str,
        *,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._group = group
        self._say = say
        self._room: int | None = None
        """Workers without a slot that there was room for when there was none for more."""

    def holders(self) -> dict[int, str]:
        """The worker that holds each slot, by slot number.

        Not one whose process has ended with a slot that is shut since: nobody will take that, and
        who has its name now is another.
        """
        held = [s for s in self._store.slots(self._group) if s.holder]
        if any(s.holder_ended for s in held):
            opened = self._store.gate(self._group).open
            held = [s for s in held if not s.holder_ended or s.number in opened]
        return {s.number: str(s.holder) for s in held}

    def wanted(self) -> tuple[WorkerProcess, ...]:
        """Workers that are not on their way out."""
        return tuple(w for w in self._runtime.workers(self._group) if w.wanted)

    def is_static(self, revision: str | None, *, otherwise: bool) -> bool:
        """Whether members of a revision have instance ids; `otherwise` where nothing is kept
        that can be read.
        """
        text = None if revision is None else self._runtime.published(self._group, revision)
        kept = settings_if_readable(text) if text else None
        worker = None if kept is None else kept.group.worker
        return otherwise if worker is None else worker.membership == "static"

    def free(self, revision: str | None = None) -> tuple[str, ...]:
        """Wanted workers without a slot, of one revision or of any."""
        held = set(self.holders().values())
        return tuple(
            w.name
            for w in self.wanted()
            if w.name not in held and (revision is None or w.revision == revision)
        )

    def warm(self, revision: str) -> tuple[str, ...]:
        """Standbys of a revision that are ready to take a slot."""
        free = set(self.free(revision))
        running = {w.name for w in self.wanted() if w.running}
        return tuple(
            r.worker
            for r in self._store.reports(self._group)
            if r.phase == "standby" and r.slot is None and r.worker in free & running
        )

    def ensure(self, revision: str, count: int, *, least: int | None = None) -> int:
        """Have at least `count` workers without a slot; how many of them there can be.

        least: how many will do where there is no room for `count` (None: all of them). Where
        not even these can be had, those that were started for it go again, and NoRoom is raised.
        """
        enough = count if least is None else min(least, count)
        if self._room is not None:  # it was said; asked again when somebody needs more than that
            count = max(enough, min(count, self._room))
        missing = count - len(self.free(revision))
        if missing <= 0:
            return count
        try:
            self._runtime.start(self._group, revision, missing)
        except NoRoom as error:
            have = len(self.free(revision))
            if have < enough:
                self.remove(error.made, grace=_UNUSED_GRACE)
                raise
            self._say(
                f"  {plural(have, 'worker')} without a slot where {count} were wanted: {error}"
            )
            self._room = have
            return have
        return count

    def await_warm(self, revision: str, count: int, *, timeout: float, wait: Wait) -> None:
        """Wait for `count` warm standbys; FleetError names a worker that cannot start.

        One that takes the slot of a holder that dies meanwhile is made up for, if there is room.
        """

        def ready() -> bool:
            self.raise_if_ill(revision)
            if len(self.warm(revision)) >= count:
                return True
            self.ensure(revision, count, least=0)
            return False

        wait(ready, timeout, f"{plural(count, 'warm standby')} of revision {revision}")

    def raise_if_ill(self, revision: str) -> None:
        """FleetError where workers of the revision cannot start, or end before they are warm."""
        warm = {r.worker: r for r in self._store.reports(self._group)}
        for worker in self.wanted():
            report = warm.get(worker.name)
            if worker.revision != revision or not worker.ill:
                continue
            if report is None or report.phase in {"starting", "failed"}:
                told = report.error if report else None
                reason = told or worker.exit_reason or "no reason given"
                what = (
                    "cannot be started"
                    if worker.stuck
                    else f"ended {worker.restarts} times before it was warm"
                )
                raise FleetError(f"worker {worker.name} of revision {revision} {what}: {reason}")

    def remove(self, names: Collection[str], *, grace: float) -> None:
        """Ask for the removal of exactly these."""
        if names:
            self._runtime.remove(tuple(names), grace=grace)

    def settle_standbys(
        self, revision: str, count: int, *, grace: float, least: int | None = None
    ) -> None:
        """Leave exactly `count` standbys of `revision` (see `ensure`), and none of another."""
        for name in self.free():
            if name not in self.free(revision):
                self.remove((name,), grace=grace)
        spare = self.free(revision)
        warm = set(self.warm(revision))
        ranked = sorted(spare, key=lambda name: (name not in warm, name))
        self.remove(ranked[count:], grace=grace)
        self.ensure(revision, count, least=least)
