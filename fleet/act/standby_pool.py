"""Workers without a slot: started ahead, waited for until warm, removed by name.

A standby has Spark up and a dummy batch behind it, so that taking a slot costs only the
join. This module counts and asks; the runtime keeps processes alive.
"""

from collections.abc import Callable, Collection
from typing import Final

from fleet.act.runtime import Runtime
from fleet.clock import Clock
from fleet.config.settings import settings_if_readable
from fleet.errors import FleetError, NoRoom
from fleet.slots import WorkerProcess, WorkerReport
from fleet.slots.store import Store
from fleet.text import plural

Wait = Callable[..., None]
"""wait(predicate, seconds, what is awaited, poll=seconds between two looks): FleetError in the
end."""
_LEAST_SILENCE: Final = 3.0
"""Seconds without a report that prove nothing on a busy machine, however short the lease."""
_GAP: Final = 1 / 3
"""Of that time: a manager that stood still for longer has no evidence of silence [39]."""
_UNUSED_GRACE = 10.0
"""Seconds for a worker to end that has only just been started."""


class HeardReports:
    """When standbys reported last, as one manager sees it over all steps of a change.

    A process that is frozen runs, and its last report says that it is warm: nothing but its next
    report shows that it could take a slot now. Standbys report thrice a lease. A manager that was
    frozen itself counts a standby's silence anew [39].
    """

    def __init__(self, *, lease: float, clock: Clock) -> None:
        self._limit = max(lease / 2, _LEAST_SILENCE)
        self._clock = clock
        self._awake_at = self._awake_since = clock.monotonic()
        self.silent: frozenset[str] = frozenset()
        """Standbys that did not report for long enough, as of the last reading."""
        self._seen: dict[str, tuple[int, float, bool]] = {}
        """Worker → its report's counter, since when that is seen, and whether it followed another
        one that was seen."""

    def awake(self) -> float:
        """Note that this process runs, and return the monotonic time: wherever it waits."""
        now = self._clock.monotonic()
        if now - self._awake_at > _GAP * self._limit:
            self._awake_since = now
        self._awake_at = now
        return now

    def read(self, ask: Callable[[], tuple[WorkerReport, ...]]) -> tuple[WorkerReport, ...]:
        """Read all reports, and judge them by the time before the reading."""
        now = self.awake()
        reports = ask()
        for report in reports:
            counter, _, _ = self._seen.get(report.worker, (None, now, False))
            if report.counter != counter:
                self._seen[report.worker] = (report.counter, now, counter is not None)
        self.silent = frozenset(
            each.worker
            for each in reports
            if each.phase == "standby"
            and each.slot is None
            and now - max(self._seen[each.worker][1], self._awake_since) > self._limit
        )
        return reports

    def answers(self, worker: str) -> bool:
        """Whether it was seen to report just now."""
        _, since, followed = self._seen.get(worker, (0, 0.0, False))
        return followed and self._clock.monotonic() - since <= self._limit


class StandbyPool:
    """The workers of one group, seen through its runtime and store."""

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        group: str,
        *,
        heard: HeardReports | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """heard: None: every standby that runs is believed to answer."""
        self._heard = heard
        self._runtime = runtime
        self._store = store
        self._group = group
        self._say = say
        self._room: int | None = None
        """Workers without a slot that there was room for when there was none for more."""

    def owners(self) -> dict[int, str]:
        """The worker that holds each slot, by slot number.

        Not one whose process has ended with a slot that is shut since: nobody will take that, and
        who has its name now is another.
        """
        held = [s for s in self._store.slots(self._group) if s.owner]
        if any(s.owner_ended for s in held):
            opened = self._store.targets(self._group).open
            held = [s for s in held if not s.owner_ended or s.number in opened]
        return {s.number: str(s.owner) for s in held}

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
        held = set(self.owners().values())
        return tuple(
            w.name
            for w in self.wanted()
            if w.name not in held and (revision is None or w.revision == revision)
        )

    def warm(self, revision: str) -> tuple[str, ...]:
        """Standbys of a revision that are ready to take a slot, and answered just now."""
        free = set(self.free(revision))
        running = {w.name for w in self.wanted() if w.running}
        return tuple(
            r.worker
            for r in self._reports()
            if r.phase == "standby"
            and r.slot is None
            and r.worker in free & running
            and (self._heard is None or self._heard.answers(r.worker))
        )

    def silent(self) -> frozenset[str]:
        """Standbys that run and do not report: frozen, or cut off from the store."""
        self._reports()
        return frozenset() if self._heard is None else self._heard.silent

    def _reports(self) -> tuple[WorkerReport, ...]:
        if self._heard is None:
            return self._store.reports(self._group)
        return self._heard.read(lambda: self._store.reports(self._group))

    def ensure(self, revision: str, count: int, *, least: int | None = None) -> int:
        """Have at least `count` workers without a slot; how many of them there can be.

        least: how many will do where there is no room for `count` (None: all of them). Where
        not even these can be had, those that were started for it go again, and NoRoom is raised.
        """
        enough = count if least is None else min(least, count)
        if self._room is not None:  # it was said; asked again when somebody needs more than that
            count = max(enough, min(count, self._room))
        missing = count - len(set(self.free(revision)) - self.silent())
        if missing <= 0:
            return count
        try:
            self._runtime.start(self._group, revision, missing)
        except NoRoom as error:
            have = len(set(self.free(revision)) - self.silent())
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

        One that takes the slot of an owner that dies meanwhile is made up for, if there is room.
        """

        def ready() -> bool:
            self.raise_if_unhealthy(revision)
            if len(self.warm(revision)) >= count:
                return True
            self.ensure(revision, count, least=0)
            return False

        wait(ready, timeout, f"{plural(count, 'warm standby')} of revision {revision}")

    def raise_if_unhealthy(self, revision: str) -> None:
        """FleetError where workers of the revision cannot start, or end before they are warm."""
        warm = {r.worker: r for r in self._reports()}
        for worker in self.wanted():
            report = warm.get(worker.name)
            if worker.revision != revision or not worker.is_unhealthy:
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
        """Leave exactly `count` standbys of `revision` (see `ensure`), and none of another, nor
        one that does not report.
        """
        spare = set(self.free(revision)) - self.silent()
        for name in self.free():
            if name not in spare:
                self.remove((name,), grace=grace)
        warm = set(self.warm(revision))
        ranked = sorted(spare, key=lambda name: (name not in warm, name))
        self.remove(ranked[count:], grace=grace)
        self.ensure(revision, count, least=least)
