"""A fleet without processes, Kafka or Spark: a real store, a real performer, scripted workers.

Workers do what real ones do, by the same rules and the same code where it is pure or only asks the
store (`Looker`, `all_drained`): they warm, take, subscribe when the gate opens, drain when they are
asked, close together. Time is the test's: whoever sleeps lets every worker take its turn. What is
not ours is played: the coordinator counts a generation for each set of members that came or went
at one moment, and keeps whom it was asked to remove.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet.act.performer import Performer
from fleet.clock import ManualClock
from fleet.counted import Counted
from fleet.decide.receipts import judge
from fleet.model import GroupState, Plan, Price, Step, StepKind
from fleet.rebalances import Rebalance
from fleet.slots import Change, Phase, Slot, WorkerProcess, WorkerReport
from fleet.slots.sqlite import SqliteStore
from fleet.spec import GroupSpec
from fleet.worker.holding import Looker
from fleet.worker.leaving import all_drained
from tests.support.rebalances import rebalance

GROUP = "g"
LEASE = 10.0
_TURN = 0.1
"""Seconds between two turns of the workers."""


class StageClock(ManualClock):
    """Whoever sleeps lets the others act."""

    on_turn: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, at: float = 1_000_000.0) -> None:
        super().__init__(at)
        self._acting = False

    def sleep(self, seconds: float) -> None:
        """In turns."""
        end = self.at + seconds
        while not self._acting and end - self.at > 1e-9:
            self.at += min(_TURN, end - self.at)
            self._acting = True
            try:
                self.on_turn()
            finally:
                self._acting = False
        self.at = max(self.at, end)


@dataclass
class Coordinator:
    """Kafka's part, as far as membership is concerned."""

    clock: ManualClock
    members: dict[str, str] = field(default_factory=dict)
    """Instance id → member id."""
    log: list[Rebalance] = field(default_factory=list)
    leaves: list[list[tuple[str | None, str]]] = field(default_factory=list)
    refusal: str | None = None

    def join(self, instance: str, member_id: str) -> None:
        """A static member; one that comes back under its name costs nothing."""
        known = instance in self.members
        self.members[instance] = member_id
        if not known:
            self._changed(joined={instance})

    def leave(
        self, group: str, members: Sequence[tuple[str | None, str]], *, reason: str
    ) -> str | None:
        """One LeaveGroup; the answer names whoever is another process by now (82)."""
        assert (group, reason.startswith("fleet ")) == (GROUP, True)
        self.leaves.append(list(members))
        if self.refusal is not None:
            return self.refusal
        gone = {i for i, m in members if i and self.members.get(i) == m}
        other = {i for i, m in members if i and i in self.members and self.members[i] != m}
        for instance in gone:
            del self.members[instance]
        if gone:
            self._changed(left=gone)
        return f"{', '.join(sorted(other))} belongs to another process (82)" if other else None

    def _changed(self, joined: Iterable[str] = (), left: Iterable[str] = ()) -> None:
        if self.log and self.log[-1].ended_at == self.clock.at:
            last = self.log.pop()
            joined, left = {*last.joined, *joined}, {*last.left, *left}
        self.log.append(rebalance(len(self.log) + 1, self.clock.at, joined=joined, left=left))

    # --- the ledger ---------------------------------------------------------------------------

    def position(self, group: str) -> int | None:
        """How many there were."""
        del group
        return len(self.log)

    def counted(self, group: str, since: int) -> Counted | None:
        """Those after."""
        return Counted(
            group=group,
            generations=tuple(self.log[since:]),
            replacements=0,
            to_generation=len(self.log),
        )

    def state(self, group: str) -> GroupState:
        """Always settled."""
        del group
        return GroupState.STABLE if self.members else GroupState.EMPTY


class Worker:
    """One process, a turn at a time."""

    def __init__(self, stage: "Stage", name: str, revision: str) -> None:
        self.stage, self.name, self.revision = stage, name, revision
        self.wanted, self.alive = True, True
        self.slot: Slot | None = None
        self.member_id: str | None = None
        self.joined_at: float | None = None
        self.turns = 0
        self.looker = Looker(stage.store, group=GROUP, lease=LEASE, clock=stage.clock)
        self._reported = 0

    def turn(self) -> None:
        """What a worker does in a tenth of a second."""
        if not self.alive:
            return
        self.turns += 1
        self.looker.look()
        if self.slot is not None:
            self._hold(self.slot)
        elif not self.wanted:
            self.alive = False
        else:
            self._look_for_a_slot()
        self._report()

    def _look_for_a_slot(self) -> None:
        stage = self.stage
        if self.turns < 5 or self.revision in stage.never_warm | stage.never_take:
            return
        for seen in self.looker.takeable(worker=self.name, revision=self.revision, since=0.0):
            self.slot = self.stage.store.take(
                seen, worker=self.name, revision=self.revision, spark_session=None
            )
            self.member_id = self.joined_at = None
            return

    def _hold(self, slot: Slot) -> None:
        self.looker.forget()
        self.looker.look()
        gate = self.looker.gate
        pin = gate.handover.get(slot.number)
        phase, batches, error = slot.phase, slot.batches, slot.error
        asked = (
            not self.wanted
            or slot.number not in gate.open
            or (pin is not None and pin.token == slot.token)
        )
        if slot.number in gate.leaving:
            if phase is Phase.DRAINED and all_drained(gate, self.looker.slots, self.looker.dead()):
                self._renew(slot, phase=Phase.CLOSED)
                self._release()
                return
            if self.name not in self.stage.never_drain:
                phase = Phase.DRAINED if phase is Phase.DRAINING else Phase.DRAINING
        elif asked:
            self._renew(slot)
            self._release()
            return
        elif self.joined_at is None:
            if self.stage.clock.at >= gate.open_at:
                self.joined_at = self.stage.clock.at
                self.member_id = f"{self.name}-{slot.token}"
                self.stage.coordinator.join(slot.instance_id(), self.member_id)
        elif self.revision in self.stage.failing:
            error = "division by zero"
        else:
            phase, batches = Phase.ACTIVE, batches + 1
        self._renew(slot, phase=phase, batches=batches, error=error)

    def _renew(self, slot: Slot, **fields: Any) -> None:
        member = self.member_id or slot.member_id
        self.slot = self.stage.store.renew(replace(slot, member_id=member, **fields))

    def _release(self) -> None:
        slot, self.slot = self.slot, None
        if slot is not None:
            handed = slot.number in self.looker.gate.handover
            self.stage.store.release(slot, clean=True)
            self.looker.released(slot, handed=handed)

    def _report(self) -> None:
        self._reported += 1
        phase = (
            "starting" if self.turns < 5 or self.revision in self.stage.never_warm else "standby"
        )
        self.stage.store.report(
            WorkerReport(
                worker=self.name,
                group=GROUP,
                revision=self.revision,
                phase=phase if self.slot is None else str(self.slot.phase),
                slot=None if self.slot is None else self.slot.number,
                counter=self._reported,
                http_port=None,
                joined_at=self.joined_at,
            )
        )


class Counting(SqliteStore):
    """Keeps what the gate said after each write."""

    def __init__(self, path: Path, **rest: Any) -> None:
        super().__init__(path, **rest)
        self.opened: list[frozenset[int]] = []

    def write_gate(self, gate, *, by=None):
        """See SlotStore."""
        before = self.gate(gate.group).open
        written = super().write_gate(gate, by=by)
        if written is not None and written.open - before:
            self.opened.append(written.open - before)
        return written


class Stage:
    """A group, its store, its workers and its coordinator; also the runtime."""

    def __init__(self, folder: Path, **keys: Any) -> None:
        self.clock = StageClock()
        self.clock.on_turn = self.turn
        self.store = Counting(folder / "fleet.db", cluster="main", clock=self.clock)
        self.coordinator = Coordinator(self.clock)
        self.crew: dict[str, Worker] = {}
        self.never_warm: set[str] = set()
        self.never_take: set[str] = set()
        self.never_drain: set[str] = set()
        self.failing: set[str] = set()
        self.said: list[str] = []
        self.plans = 0
        self.spec = GroupSpec.model_validate(
            {
                "group": GROUP,
                "topics": ["t"],
                "worker": {"entrypoint": "job:process", "protocol": "classic"},
                "replicas": {"min": 0, "max": 8, "standby": 1},
                "rollout": {
                    "canary_batches": 1,
                    "bake": "5s",
                    "drain_timeout": "5s",
                    "warm_timeout": "10s",
                },
                "runtime": {"kind": "local", "lease": LEASE},
                **keys,
            }
        )

    def turn(self) -> None:
        """Everybody's."""
        for worker in list(self.crew.values()):
            worker.turn()

    # --- the runtime --------------------------------------------------------------------------

    def ensure(self) -> None:
        """Nothing has to run."""

    def rest(self, group: str, *, failed: bool = False, given_up: bool = False) -> None:
        """Nothing is left over."""

    def held(self, group: str) -> str | None:
        """Nothing is."""
        del group

    def published(self, group: str, revision: str) -> str | None:
        """What is wanted is believed."""
        del group, revision

    def start(self, group: str, revision: str, count: int) -> tuple[str, ...]:
        """Under names never used again."""
        assert group == GROUP
        names = tuple(f"w{len(self.crew) + n}" for n in range(count))
        for name in names:
            self.crew[name] = Worker(self, name, revision)
        return names

    def remove(self, names: Sequence[str], *, grace: float) -> None:
        """They end at their next turn."""
        del grace
        for name in names:
            self.crew[name].wanted = False

    def workers(self, group: str | None = None) -> tuple[WorkerProcess, ...]:
        """Those not gone."""
        return tuple(
            WorkerProcess(
                name=w.name,
                group=group or GROUP,
                revision=w.revision,
                wanted=w.wanted,
                running=w.alive,
                restarts=0,
            )
            for w in self.crew.values()
            if w.alive
        )

    # --- what a test does -----------------------------------------------------------------------

    def performer(self) -> Performer:
        """Of one actor."""
        return Performer(
            spec=self.spec,
            store=self.store,
            runtime=self,  # type: ignore[arg-type]  # what a performer asks of one
            ledger=self.coordinator,
            leaver=self.coordinator,
            window=_Window(),  # type: ignore[arg-type]
            judge=judge,
            clock=self.clock,
            progress=self.said.append,
        )

    def begin(self, *steps: Step, actor: str = "ann") -> Change:
        """A change with these steps."""
        self.plans += 1
        plan = Plan(
            id=f"p{self.plans}",
            cluster="main",
            group=GROUP,
            created_at=0.0,
            snapshot_at=0.0,
            wanted=0,
            revision=steps[-1].revision,
            steps=steps,
        )
        change = self.store.begin(plan, actor=actor, started_at=self.clock.now())
        assert change is not None
        return change

    def carry_out(self, *steps: Step) -> Change:
        """From its beginning to its end."""
        return self.performer().perform(self.begin(*steps))

    def slots(self) -> dict[int, Slot]:
        """As stored."""
        return {slot.number: slot for slot in self.store.slots(GROUP)}

    def holders(self) -> dict[int, str | None]:
        """Who has which."""
        return {n: s.holder for n, s in self.slots().items()}

    def alive(self, revision: str | None = None) -> set[str]:
        """Names."""
        return {
            w.name
            for w in self.crew.values()
            if w.alive and w.wanted and revision in {None, w.revision}
        }


class _Window:
    """No group's setting is touched under the classic protocol."""

    def restore(self) -> None:
        """Nothing was widened."""


def step(kind: StepKind, *slots: int, revision: str = "r1", price: int = 1) -> Step:
    """One step of a plan."""
    return Step(
        kind=kind,
        slots=slots,
        revision=revision,
        price=Price(rebalances_min=price, rebalances_max=price),
        sentence=f"{kind} {slots}",
    )
