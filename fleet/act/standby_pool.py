"""Manages standbys: workers without a slot, started ahead, warmed and removed by name.

A standby runs Spark and has finished a dummy batch, so that taking a slot costs only the join. This
module counts and requests; the runtime keeps processes alive.
"""

from collections.abc import Callable, Collection
from typing import Final

from fleet.act.runtime import RolloutStatus, Runtime
from fleet.clock import Clock
from fleet.config.settings import settings_if_readable
from fleet.errors import FleetError, NoRoom
from fleet.slots import WorkerProcess, WorkerReport
from fleet.slots.store import Store
from fleet.text import plural

_LEAST_SILENCE: Final = 3.0
"""Seconds without a report that are normal on a busy machine, for any lease."""
_GAP: Final = 1 / 3
"""Part of that time; a manager that stood still for longer cannot judge silence [39]."""
_UNUSED_GRACE = 10.0
"""Seconds for a worker to stop that has only just started."""


class HeardReports:
    """Tracks when standbys reported last, over all steps of a change.

    A frozen process still runs, and its last report says that it is warm; only its next report
    shows that it can take a slot. Standbys report three times per lease. A manager that was frozen
    itself counts their silence anew [39].
    """

    def __init__(self, *, lease: float, clock: Clock) -> None:
        self._limit = max(lease / 2, _LEAST_SILENCE)
        self._clock = clock
        self._awake_at = self._awake_since = clock.monotonic()
        self.silent: frozenset[str] = frozenset()
        """Standbys that did not report for too long, at the last reading."""
        self._seen: dict[str, tuple[int, float, bool]] = {}
        """Worker → its report's counter, when it was first seen, whether it followed another."""

    def awake(self) -> float:
        """Records that this process runs and returns the monotonic time; called in all waits."""
        now = self._clock.monotonic()
        if now - self._awake_at > _GAP * self._limit:
            self._awake_since = now
        self._awake_at = now
        return now

    def read(self, ask: Callable[[], tuple[WorkerReport, ...]]) -> tuple[WorkerReport, ...]:
        """Reads all reports and updates `silent`, by the time before the reading."""
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
        """Tells whether a worker has just reported."""
        _, since, followed = self._seen.get(worker, (0, 0.0, False))
        return followed and self._clock.monotonic() - since <= self._limit


class StandbyPool:
    """Counts, starts and removes the workers of one group."""

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        group: str,
        *,
        heard: HeardReports | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """heard: None: every running standby counts as answering."""
        self._heard = heard
        self._runtime = runtime
        self._store = store
        self._group = group
        self._say = say
        self._room: int | None = None
        """Workers without a slot that had room when more had none."""

    def owners(self) -> dict[int, str]:
        """Returns the owner of each slot, by slot number.

        An ended owner of a slot that is no longer open is left out: its name may be another
        worker's now.
        """
        owned = [s for s in self._store.slots(self._group) if s.owner]
        if any(s.owner_ended for s in owned):
            opened = self._store.targets(self._group).open
            owned = [s for s in owned if not s.owner_ended or s.number in opened]
        return {s.number: str(s.owner) for s in owned}

    def wanted(self) -> tuple[WorkerProcess, ...]:
        """Returns workers that are not being removed."""
        return tuple(w for w in self._runtime.workers(self._group) if w.wanted)

    def is_static(self, revision: str | None, *, otherwise: bool) -> bool:
        """Tells whether members of a revision have instance ids; `otherwise` if its settings are
        missing or unreadable.
        """
        text = None if revision is None else self._runtime.published(self._group, revision)
        kept = settings_if_readable(text) if text else None
        worker = None if kept is None else kept.group.worker
        return otherwise if worker is None else worker.membership == "static"

    def free(self, revision: str | None = None) -> tuple[str, ...]:
        """Returns wanted workers without a slot, of one revision or of any."""
        held = set(self.owners().values())
        return tuple(
            w.name
            for w in self.wanted()
            if w.name not in held and (revision is None or w.revision == revision)
        )

    def warm(self, revision: str) -> tuple[str, ...]:
        """Returns standbys of a revision that are ready to take a slot and have just reported."""
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
        """Returns standbys that run but do not report: frozen, or without the store."""
        self._reports()
        return frozenset() if self._heard is None else self._heard.silent

    def _reports(self) -> tuple[WorkerReport, ...]:
        if self._heard is None:
            return self._store.reports(self._group)
        return self._heard.read(lambda: self._store.reports(self._group))

    def ensure(self, revision: str, count: int, *, least: int | None = None) -> int:
        """Starts workers until `count` have no slot; returns how many there can be.

        least: how many suffice without room for `count` (None: all). If even these cannot start,
        the started ones are removed and NoRoom is raised.
        """
        enough = count if least is None else min(least, count)
        if self._room is not None:  # ask again only if more are needed
            count = max(enough, min(count, self._room))
        missing = count - len(set(self.free(revision)) - self.silent())
        if missing <= 0:
            return count
        try:
            self._runtime.start(self._group, revision, missing)
        except NoRoom as error:
            have = len(set(self.free(revision)) - self.silent())
            if have < enough:
                self.remove(error.started, grace=_UNUSED_GRACE)
                raise
            self._say(f"  {plural(have, 'worker')} without a slot instead of {count}: {error}")
            self._room = have
            return have
        return count

    def without_node(self, revision: str) -> str | None:
        """Names a worker of the revision that has no node yet, and why."""
        waiting = (w for w in self.wanted() if w.revision == revision and w.waits_for_node)
        return next((f"worker {w.name}, which {w.exit_reason}" for w in waiting), None)

    def raise_if_unhealthy(self, revision: str) -> None:
        """Raises FleetError if workers of the revision do not get warm."""
        warm = {r.worker: r for r in self._reports()}
        for worker in self.wanted():
            report = warm.get(worker.name)
            if worker.revision != revision or not worker.is_unhealthy:
                continue
            if report is None or report.phase in {"starting", "failed"}:
                reported = report.error if report else None
                reason = reported or worker.exit_reason or "no reason given"
                what = (
                    "cannot be started"
                    if worker.stuck
                    else f"stopped {worker.restarts} times before it was warm"
                )
                raise FleetError(f"worker {worker.name} of revision {revision} {what}: {reason}")

    @property
    def replaces_workers(self) -> bool:
        """Tells whether the place replaces workers of another revision by itself."""
        return self._runtime.replaces_workers

    def rollout(self, revision: str) -> RolloutStatus:
        """Returns how far the place has replaced workers by the revision's."""
        return self._runtime.rollout(self._group, revision)

    def remove(self, names: Collection[str], *, grace: float) -> None:
        """Removes these workers."""
        if names:
            self._runtime.remove(tuple(names), grace=grace)

    def settle_standbys(
        self, revision: str, count: int, *, grace: float, least: int | None = None
    ) -> None:
        """Keeps exactly `count` reporting standbys of `revision` (see `ensure`) and removes the
        others.
        """
        spare = set(self.free(revision)) - self.silent()
        for name in self.free():
            if name not in spare:
                self.remove((name,), grace=grace)
        warm = set(self.warm(revision))
        ranked = sorted(spare, key=lambda name: (name not in warm, name))
        self.remove(ranked[count:], grace=grace)
        self.ensure(revision, count, least=least)
