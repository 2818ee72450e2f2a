"""What every kind of step works with: its change, the group's slots and slot targets, workers, a
wait.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from fleet.act.kafka import JoinWindow
from fleet.act.lease import ChangeLease
from fleet.act.standby_pool import StandbyPool, Wait
from fleet.clock import Clock
from fleet.config.spec import GroupSpec
from fleet.errors import FleetError
from fleet.observe.ledger import CoordinatorLedger
from fleet.slots import Handover, Slot, SlotTargets, WorkerReport
from fleet.slots.evidence import LeaseWatch
from fleet.slots.store import Store
from fleet.text import duration, slots_of

# What a step remembers across the death of its actor: each kind's dataclass has the keys of the
# change's one JSON object. None is not known yet and not written; what others wrote beside stays.
# Nothing is forgotten before the step ends.


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStart:
    """Of every kind: from when and where a step's rebalances count, and whose members are ours."""

    started_at: float | None = None
    """Wall time."""
    position: int | None = None
    """In the coordinator's records; None where they cannot be read."""
    members: tuple[str, ...] | None = None
    """Member ids (of an adopted group: instance ids, else member ids) that were there."""
    errors: tuple[str, ...] | None = None
    """What slots told then, numbers aside: new code is not blamed for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMemory:
    """Of a plan that stops all and opens again, kept until its last step: what it can put back."""

    stopped: tuple[int, ...] | None = None
    """The slots that were open, once the new workers were warm."""
    ran: str | None = None
    """The revision of those; empty where it is not known."""
    undone: str | None = None
    """Why what ran is put back; the next manager reads it too."""


Leave = Callable[..., str | None]
"""leave(group, [(instance id or None, member id), …], reason=…) in one request: None = all are
gone, else why not (`fleet.act.kafka.GroupAdmin.leave_all`)."""


_PARTITIONS: Final = re.compile(r"[\w.-]+-\d+(?:, [\w.-]+-\d+)*")
_LOOKS_FOR_TRACEBACK = 5
_PAUSE = 0.1
"""Seconds."""


@dataclass(kw_only=True)
class StepWork:
    """One step of a change of one group."""

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
    """Of a KIP-848 group: raised while several slots open, so that their joins are one."""
    _watch: LeaseWatch = field(init=False)

    def __post_init__(self) -> None:
        lease = self.spec.runtime.lease
        self._watch = LeaseWatch.for_group(
            self.store, group=self.spec.group, lease=lease, clock=self.clock
        )

    @property
    def pass_limit(self) -> float:
        """Seconds for a slot to pass from its owner, dead or alive, to the next, who joins."""
        return self.spec.rollout.drain_timeout + self.spec.runtime.lease + self.join_limit

    def await_ready(
        self,
        ready: Callable[[], bool],
        limit: float,
        numbers: Collection[int],
        what: str,
        *,
        revision: str | None = None,
    ) -> None:
        """Wait for members of these slots: `limit` seconds until all have joined, and as long
        for their first batches as a batch may take.

        revision: theirs; None: any.
        """
        end, told = self.clock.monotonic() + limit, False

        def in_time() -> bool:
            nonlocal told
            if ready():
                return True
            if not told and self.clock.monotonic() > end:
                if not self._have_joined(numbers, revision):
                    raise FleetError(f"timed out after {limit:.0f} s waiting for {what}")
                told = True
                self.progress(
                    f"  {slots_of(sorted(numbers))} joined; first batches may take up to "
                    f"{duration(self.spec.batch_limit)}"
                )
            return False

        self.wait(in_time, limit + self.spec.batch_limit, what)

    def _have_joined(self, numbers: Collection[int], revision: str | None) -> bool:
        """Whether each is held by one that has subscribed, and tells no error."""
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
        """The group's slots as they stand now, by number."""
        return {slot.number: slot for slot in self.store.slots(self.spec.group)}

    def targets(self) -> SlotTargets:
        """The group's slot targets as it stands now."""
        return self.store.targets(self.spec.group)

    def write_targets(self, change: Callable[[SlotTargets], SlotTargets]) -> None:
        """Change the slot targets by compare-and-set, in the change's name; nothing where it is
        so.
        """
        self.lease.check()
        ours = self.lease.change

        def signed(targets: SlotTargets) -> SlotTargets | None:
            wanted = change(targets)
            return None if wanted == targets else replace(wanted, plan_id=ours.plan.id)

        self.store.change_targets(self.spec.group, signed, by=ours)

    def keep_traceback(self, revision: str) -> None:
        """Keep the traceback of a job that fails: its worker's report goes with the worker.

        A slot tells an error a moment before the report does.
        """
        for _ in range(_LOOKS_FOR_TRACEBACK):
            found = traceback_of(self.store.reports(self.spec.group), revision)
            if found is not None:
                self.lease.update(traceback=found)
                return
            self.clock.sleep(_PAUSE)

    def unpin(self, numbers: Sequence[int]) -> None:
        """Let anybody take these again."""
        self.write_targets(lambda targets: asking(targets, {}, instead_of=numbers))

    def is_dead(self, slot: Slot) -> bool:
        """Its owner has ended, or its lease [13]; looks on from one call to the next."""
        if slot.owner is None:
            return False
        mark, now = (slot.owner, slot.token, slot.counter), self.clock.monotonic()
        silent = self._watch.is_expired(str(slot.number), mark, now, lease=slot.lease)
        return silent or slot.owner_ended

    def remove(self, names: Sequence[str]) -> None:
        """Ask for the end of these workers, in the time that a drain may take."""
        self.pool.remove(names, grace=self.spec.rollout.drain_timeout)

    def retire_all(self, revision: str) -> None:
        """Remove the standbys of other revisions."""
        free = set(self.pool.free())
        old = [w.name for w in self.pool.wanted() if w.revision != revision and w.name in free]
        self.remove(sorted(old))

    def keep_standbys(self, revision: str) -> None:
        """As many of the revision as are wanted and there is room for, and none of another."""
        wanted, grace = self.spec.replicas.standby, self.spec.rollout.drain_timeout
        self.pool.settle_standbys(revision, wanted, grace=grace, least=0)


def traceback_of(reports: Iterable[WorkerReport], revision: str) -> str | None:
    """The first traceback that a worker of the revision tells."""
    told = (r.traceback for r in reports if r.revision == revision and r.traceback is not None)
    return next(told, None)


def asking(
    targets: SlotTargets, asks: dict[int, Handover], *, instead_of: Sequence[int] = ()
) -> SlotTargets:
    """The slot targets with these asks for handover, and without those of some slots; others'
    stay.
    """
    kept = {n: h for n, h in targets.handover.items() if n not in set(instead_of)}
    return replace(targets, handover={**kept, **asks})


def member_ids(slots: Iterable[Slot], numbers: Collection[int]) -> set[str]:
    """Kafka's, of those slots that have had a member."""
    return {s.member_id for s in slots if s.number in numbers and s.member_id}


def errors_of(slots: Iterable[Slot]) -> set[str]:
    """What is wrong in slots, whichever their partitions and figures are."""
    return {re.sub(r"\d+", "#", _PARTITIONS.sub("#", s.error)) for s in slots if s.error}
