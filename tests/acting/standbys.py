"""Workers in memory: what an owner and a standby do between two looks of a manager.

They go by the store alone, as real ones do, and every turn of the clock is a turn of each of them.
What they cost is kept: a generation for each joint subscribe, for each leave.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fleet.act.runtime import RolloutStatus
from fleet.errors import NoRoom
from fleet.model import GroupState
from fleet.model.rebalances import Rebalance, RebalanceCounts
from fleet.slots import Phase, Slot, WorkerProcess
from fleet.slots.store import Store
from fleet.worker.slot.leave_completion import all_drained
from fleet.worker.slot.slot_lease import SlotWatcher, candidates
from tests.support.clocks import Turning
from tests.support.rebalances import rebalance
from tests.support.slot_records import report_of

GROUP = "orders"
LEASE = 10.0


@dataclass(slots=True, kw_only=True)
class Worker:
    """One process and what it knows."""

    name: str
    revision: str
    born: float
    wanted: bool = True
    alive: bool = True
    frozen: bool = False
    """Stopped by a signal: its process runs, and does nothing."""
    slot: Slot | None = None
    counter: int = 0
    phase: str = "starting"
    joined_at: float | None = None
    restarts: int = 0


@dataclass(slots=True, kw_only=True)
class Behaviour:
    """How workers of one revision are."""

    node_after: float = 0.0
    """Seconds until it has a node; it starts then."""
    warm_after: float = 1.0
    error: str | None = None
    """What its batches end with."""
    joins: bool = True
    first_batch: float = 0.0
    """Seconds that it takes: before its end a member is not active."""
    commits: bool = True
    late_batch: tuple[float, float] | None = None
    """Seconds after its join from which to which its first batch is in hand; idle before."""
    gap: str | None = None
    """What it says of deleted commits."""
    ends: int = 0
    """How often it ended before it was warm."""


@dataclass
class Crowd:
    """All workers of one group: its runtime, and its coordinator's records."""

    store: Store
    clock: Turning
    group: str = GROUP
    lease: float = LEASE
    static: bool = True
    people: dict[str, Worker] = field(default_factory=dict)
    like: dict[str, Behaviour] = field(default_factory=dict)
    generations: list[Rebalance] = field(default_factory=list)
    left: list[list[tuple[str | None, str]]] = field(default_factory=list)
    """Each LeaveGroup request."""
    removed: list[str] = field(default_factory=list)
    rested: int = 0
    stands: GroupState = GroupState.STABLE
    refusal: str | None = None
    room: int | None = None
    """Of workers, in all; None: for any number."""
    deployment: Callable[[str], RolloutStatus] | None = None
    asked: list[int] = field(default_factory=list)
    """How many were to be started, each time."""

    def __post_init__(self) -> None:
        self.clock.turn = self.turn
        self.watcher = SlotWatcher(self.store, group=self.group, lease=self.lease, clock=self.clock)

    # --- as a Runtime -----------------------------------------------------------------------

    def ensure(self) -> None:
        """Nothing else runs."""

    def start(self, group: str, revision: str, count: int) -> tuple[str, ...]:
        assert group == self.group
        self.asked.append(count)
        room = count if self.room is None else max(0, self.room - len(self.workers()))
        names = tuple(f"w{len(self.people) + n}" for n in range(min(count, room)))
        for name in names:
            self.people[name] = Worker(name=name, revision=revision, born=self.clock.monotonic())
        if len(names) < count:
            raise NoRoom("exceeded quota", started=names)
        return names

    def remove(self, names: Sequence[str], *, grace: float) -> None:
        """See Runtime.remove: it hands over what it holds."""
        assert grace > 0
        for name in names:
            self.removed.append(name)
            self.people[name].wanted = False

    def workers(self, group: str | None = None) -> tuple[WorkerProcess, ...]:
        return tuple(
            WorkerProcess(
                name=each.name,
                group=self.group,
                revision=each.revision,
                wanted=each.wanted,
                running=each.alive,
                restarts=each.restarts,
                waits_for_node=not self.has_node(each),
                exit_reason=None if self.has_node(each) else "has no node: 0/1 are available",
            )
            for each in self.people.values()
            if each.wanted or each.slot is not None
        )

    def published(self, group: str, revision: str) -> str | None:
        return None

    def finish_removals(self, group: str, *, failed: bool = False, given_up: bool = False) -> None:
        self.rested += 1

    @property
    def replaces_workers(self) -> bool:
        return self.deployment is not None

    def rollout(self, group: str, revision: str) -> RolloutStatus:
        """Of a Deployment that replaces workers here."""
        assert self.deployment is not None
        return self.deployment(revision)

    # --- as a Ledger and a Leaver -------------------------------------------------------------

    def position(self, group: str) -> int | None:
        """As many as there are."""
        return len(self.generations)

    def counted(self, group: str, since: int) -> RebalanceCounts | None:
        return RebalanceCounts(
            group=self.group,
            generations=tuple(self.generations[since:]),
            replacements=0,
            to_generation=len(self.generations),
        )

    def state(self, group: str) -> GroupState:
        return self.stands

    def leave(
        self, group: str, members: Sequence[tuple[str | None, str]], *, reason: str
    ) -> str | None:
        """One request, one generation."""
        if self.refusal is not None:
            return self.refusal
        self.left.append(list(members))
        self.generation(left={i or m for i, m in members})
        return None

    def generation(self, *, joined: set[str] | None = None, left: set[str] | None = None) -> None:
        """One more is recorded."""
        self.generations.append(
            rebalance(len(self.generations) + 1, self.clock.now(), joined=joined, left=left)
        )

    # --- living -------------------------------------------------------------------------------

    def turn(self) -> None:
        joining: set[str] = set()
        self.watcher.refresh()
        for each in list(self.people.values()):
            if each.alive and not each.frozen and (each.wanted or each.slot is not None):
                self.live(each, joining)
        if joining:
            self.generation(joined=joining)

    def live(self, who: Worker, joining: set[str]) -> None:
        """One look of one worker."""
        how = self.like.setdefault(who.revision, Behaviour())
        if who.slot is None:
            if how.ends:
                who.restarts = how.ends
            elif self.clock.monotonic() - who.born >= how.node_after + how.warm_after:
                who.phase = "standby"
                self.stand_by(who)
        else:
            self.hold(who, how, joining)
        self.report(who, how)

    def has_node(self, who: Worker) -> bool:
        """A pod waits for one; a process has it at once."""
        how = self.like.setdefault(who.revision, Behaviour())
        return self.clock.monotonic() - who.born >= how.node_after

    def stand_by(self, who: Worker) -> None:
        """Take what may be taken."""
        if not who.wanted:
            return
        targets, slots = self.store.targets(self.group), self.store.slots(self.group)
        self.watcher.takeable_slots(worker=who.name, revision=who.revision, since=0.0)
        void = self.watcher.void
        for seen in candidates(
            targets,
            slots,
            worker=who.name,
            revision=who.revision,
            dead=self.watcher.dead(),
            waited=frozenset(s.number for s in slots),
            newest=True,
            void=void,
        ):
            who.slot = self.store.take(
                seen,
                worker=who.name,
                revision=who.revision,
                spark_session=None,
                void=void.get(seen.number),
            )
            if who.slot is not None:
                who.joined_at = None
                return

    def in_hand(self, who: Worker, how: Behaviour) -> bool:
        """Whether its first batch is."""
        if how.late_batch is None or who.slot is None or who.joined_at is None:
            return False
        begins, ends = how.late_batch
        return begins <= self.clock.now() - who.joined_at < ends

    def hold(self, who: Worker, how: Behaviour, joining: set[str]) -> None:
        """Join, commit, and answer what the slot targets asks."""
        assert who.slot is not None
        targets, now = self.store.targets(self.group), self.clock.now()
        n, held = who.slot.number, who.slot
        if who.joined_at is None:
            if now < targets.open_at or not how.joins:
                self.renew(who)
                return
            who.joined_at = now
            if not self.known(held):
                joining.add(self.name_of(who))
            self.renew(who, member_id=f"m-{who.name}")
            return
        pin = targets.handover.get(n)
        if n in targets.leaving:
            self.renew(who, phase=Phase.DRAINED)
            if all_drained(targets, self.store.slots(self.group), self.watcher.dead()):
                self.renew(who, phase=Phase.CLOSED)
                if self.static:
                    self.release(who)
        elif (
            n not in targets.open or not who.wanted or (pin is not None and pin.token == held.token)
        ):
            self.release(who)
        elif targets.rejoin.get(n) == held.token:
            self.generation(left={self.name_of(who)})
            self.store.write_targets(replace(targets, rejoin={}))
        elif now - who.joined_at < how.first_batch:
            self.renew(who, phase=Phase.JOINING)
        elif how.late_batch is not None and now - who.joined_at < how.late_batch[1]:
            self.renew(who, phase=Phase.ACTIVE)
        else:
            batches = held.batches + (1 if how.commits and how.error is None else 0)
            self.renew(who, phase=Phase.ACTIVE, batches=batches, error=how.error)

    def known(self, held: Slot) -> bool:
        """A static member comes back under its name without a rebalance."""
        return self.static and held.member_id is not None

    def name_of(self, who: Worker) -> str:
        """As records have it."""
        assert who.slot is not None
        return who.slot.instance_id() if self.static else f"m-{who.name}"

    def renew(self, who: Worker, **fields: object) -> None:
        """Write what it does; another owner ends it."""
        assert who.slot is not None
        stored = self.store.renew(replace(who.slot, **fields))
        who.slot, who.phase = stored, str(stored.phase) if stored else "standby"

    def release(self, who: Worker) -> None:
        """Give the slot up."""
        assert who.slot is not None
        self.store.release(who.slot, clean=True)
        who.slot, who.phase = None, "standby"

    def report(self, who: Worker, how: Behaviour) -> None:
        """What it says of itself."""
        who.counter += 1
        self.store.report(
            report_of(
                who.name,
                self.group,
                revision=who.revision,
                phase=who.phase,
                slot=None if who.slot is None else who.slot.number,
                counter=who.counter,
                joined_at=who.joined_at,
                error=how.error if who.slot is not None else None,
                in_hand=self.in_hand(who, how),
                gap=f"{who.name}: {how.gap}" if how.gap and who.slot is not None else None,
            )
        )
