"""Gives every kind of step its change, the group's slots and targets, its workers and a wait."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from fleet.act.kafka import JoinWindow
from fleet.act.lease import ChangeLease
from fleet.act.standby_pool import StandbyPool
from fleet.clock import Clock
from fleet.config.spec import GroupSpec
from fleet.errors import FleetError
from fleet.observe.ledger import CoordinatorLedger
from fleet.slots import Handover, Slot, SlotTargets, WorkerReport
from fleet.slots.evidence import LeaseWatch
from fleet.slots.store import Store
from fleet.text import duration, plural, slots_of

# Memories of a step survive its actor. Each dataclass has keys of the change's one JSON object.
# None is unknown and not written; keys of other memories stay until the step ends.


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStart:
    """Remembers the start of counting and the fleet's own members."""

    started_at: float | None = None
    """Wall time."""
    position: int | None = None
    """Position in the coordinator's records; None if they are unreadable."""
    members: tuple[str, ...] | None = None
    """Member ids at the start (of an adopted group: instance ids, else member ids)."""
    errors: tuple[str, ...] | None = None
    """Errors of slots at the start, without numbers; new code is not blamed for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMemory:
    """Remembers, until the last step of a plan that stops all, what it can restore."""

    stopped: tuple[int, ...] | None = None
    """Open slots at the time when the new workers were warm."""
    ran: str | None = None
    """Their revision; empty if unknown."""
    undone: str | None = None
    """Why the old workers are restored; the next manager reads it too."""


Leave = Callable[..., str | None]
"""leave(group, [(instance id or None, member id), …], reason=…) in one request: None if all have
left, else the reason (`fleet.act.kafka.GroupAdmin.leave_all`)."""
Wait = Callable[..., None]
"""wait(predicate, seconds, description, poll=seconds between two checks): FleetError at the end."""


_PARTITIONS: Final = re.compile(r"[\w.-]+-\d+(?:, [\w.-]+-\d+)*")
_TRACEBACK_READS = 5
_PAUSE = 0.1
"""Seconds."""


@dataclass(kw_only=True)
class StepWork:
    """Performs one step of a change of one group."""

    join_limit: ClassVar[float] = 90.0
    """Seconds for a member to get or give up its slot, beyond drain, lease and a first batch."""
    spec: GroupSpec
    store: Store
    pool: StandbyPool
    leave: Leave
    lease: ChangeLease
    wait: Wait
    ledger: CoordinatorLedger
    clock: Clock
    progress: Callable[[str], None]
    window: JoinWindow | None
    """For a KIP-848 group: raised while several slots open, so that they join together."""
    _watch: LeaseWatch = field(init=False)

    def __post_init__(self) -> None:
        lease = self.spec.runtime.lease
        self._watch = LeaseWatch.for_group(
            self.store, group=self.spec.group, lease=lease, clock=self.clock
        )

    @property
    def pass_limit(self) -> float:
        """Returns the longest time for a slot to get its next owner, in seconds."""
        return self.spec.rollout.drain_timeout + self.spec.runtime.lease + self.join_limit

    def await_warm(self, revision: str, count: int) -> None:
        """Waits for `count` warm standbys; FleetError names a worker that cannot start.

        If one takes the slot of a dead owner meanwhile, another starts, if there is room.
        """

        def are_warm() -> bool:
            self.pool.raise_if_unhealthy(revision)
            if len(self.pool.warm(revision)) >= count:
                return True
            self.pool.ensure(revision, count, least=0)
            return False

        limit = self.spec.rollout.warm_timeout
        what = f"{plural(count, 'warm standby')} of revision {revision}"
        self.await_starts(revision, are_warm, limit, what)

    def await_starts(
        self, revision: str, ready: Callable[[], bool], limit: float, what: str
    ) -> None:
        """Waits for what starting workers do, `limit` seconds from when all of them have nodes.

        FleetError names a worker without a node after `rollout.node_timeout`.
        """

        def without_node() -> str | None:
            return self.pool.without_node(revision)

        while True:
            self.wait(lambda: ready() or without_node() is not None, limit, what)
            if ready():
                return
            if (waiting := without_node()) is not None:
                node_limit = self.spec.rollout.node_timeout
                self.wait(lambda: ready() or without_node() is None, node_limit, waiting)

    def await_ready(
        self,
        ready: Callable[[], bool],
        limit: float,
        numbers: Collection[int],
        what: str,
        *,
        revision: str | None = None,
    ) -> None:
        """Waits for members of these slots: `limit` seconds for their joins, then one batch.

        revision: that of the members; None: any.
        """
        end, reported = self.clock.monotonic() + limit, False

        def in_time() -> bool:
            nonlocal reported
            if ready():
                return True
            if not reported and self.clock.monotonic() > end:
                if not self._have_joined(numbers, revision):
                    raise FleetError(f"timed out after {limit:.0f} s waiting for {what}")
                reported = True
                self.progress(
                    f"  {slots_of(sorted(numbers))} joined; first batches may take up to "
                    f"{duration(self.spec.batch_limit)}"
                )
            return False

        self.wait(in_time, limit + self.spec.batch_limit, what)

    def _have_joined(self, numbers: Collection[int], revision: str | None) -> bool:
        """Tells whether the owner of each slot has subscribed without an error."""
        joined = {
            (report.slot, report.worker)
            for report in self.store.reports(self.spec.group)
            if report.joined_at is not None
        }
        slots = self.slots()
        return all(
            (slot := slots.get(number)) is not None
            and slot.error is None
            and revision in {None, slot.revision}
            and (number, slot.owner) in joined
            for number in numbers
        )

    def slots(self) -> dict[int, Slot]:
        """Returns the group's slots by number."""
        return {slot.number: slot for slot in self.store.slots(self.spec.group)}

    def targets(self) -> SlotTargets:
        """Returns the group's slot targets."""
        return self.store.targets(self.spec.group)

    def write_targets(self, change: Callable[[SlotTargets], SlotTargets]) -> None:
        """Changes the slot targets by compare-and-set, if they differ."""
        self.lease.check()
        ours = self.lease.change

        def signed(targets: SlotTargets) -> SlotTargets | None:
            wanted = change(targets)
            return None if wanted == targets else replace(wanted, plan_id=ours.plan.id)

        self.store.change_targets(self.spec.group, signed, by=ours)

    def keep_traceback(self, revision: str) -> None:
        """Stores the traceback of a failing job, since its report goes with the worker.

        The slot has the error a moment before the report.
        """
        for _ in range(_TRACEBACK_READS):
            found = traceback_of(self.store.reports(self.spec.group), revision)
            if found is not None:
                self.lease.update(traceback=found)
                return
            self.clock.sleep(_PAUSE)

    def unpin(self, numbers: Sequence[int]) -> None:
        """Lets workers of any revision take these slots again."""
        self.write_targets(lambda targets: asking(targets, {}, instead_of=numbers))

    def is_dead(self, slot: Slot) -> bool:
        """Tells whether the owner or its lease has ended [13]; observes across calls."""
        if slot.owner is None:
            return False
        mark, now = (slot.owner, slot.token, slot.counter), self.clock.monotonic()
        silent = self._watch.is_expired(str(slot.number), mark, now, lease=slot.lease)
        return silent or slot.owner_ended

    def remove(self, names: Sequence[str]) -> None:
        """Removes these workers, with the time of a drain."""
        self.pool.remove(names, grace=self.spec.rollout.drain_timeout)

    def retire_all(self, revision: str) -> None:
        """Removes the standbys of other revisions."""
        free = set(self.pool.free())
        old = [w.name for w in self.pool.wanted() if w.revision != revision and w.name in free]
        self.remove(sorted(old))

    def keep_standbys(self, revision: str) -> None:
        """Keeps the wanted standbys of one revision, as far as there is room."""
        wanted, grace = self.spec.replicas.standby, self.spec.rollout.drain_timeout
        self.pool.settle_standbys(revision, wanted, grace=grace, least=0)


def traceback_of(reports: Iterable[WorkerReport], revision: str) -> str | None:
    """Returns the first traceback that a worker of the revision reports."""
    found = (r.traceback for r in reports if r.revision == revision and r.traceback is not None)
    return next(found, None)


def asking(
    targets: SlotTargets, asks: dict[int, Handover], *, instead_of: Sequence[int] = ()
) -> SlotTargets:
    """Adds handover requests to slot targets and removes those of some slots."""
    kept = {n: h for n, h in targets.handover.items() if n not in set(instead_of)}
    return replace(targets, handover={**kept, **asks})


def member_ids(slots: Iterable[Slot], numbers: Collection[int]) -> set[str]:
    """Returns Kafka's member ids of these slots."""
    return {s.member_id for s in slots if s.number in numbers and s.member_id}


def errors_of(slots: Iterable[Slot]) -> set[str]:
    """Returns the errors of slots without partitions and numbers."""
    return {re.sub(r"\d+", "#", _PARTITIONS.sub("#", s.error)) for s in slots if s.error}
