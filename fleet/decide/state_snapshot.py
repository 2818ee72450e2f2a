"""Everything a decision about one group may look at, gathered once and frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from fleet.config.settings import WorkerSettings
from fleet.config.spec import GroupSpec
from fleet.decide.storms import Storm
from fleet.model import GroupSnapshot, GroupState, Member, Plan, TopicPartition
from fleet.slots import (
    Change,
    Pause,
    Phase,
    Slot,
    SlotTargets,
    StoppedPartition,
    WorkerProcess,
    WorkerReport,
)

# What a runtime has to say of a plan: the place where workers run is not always ours alone.


@dataclass(frozen=True, slots=True, kw_only=True)
class Vetoes:
    """Reasons against carrying a plan out, and what a person should know of it."""

    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def told_in(self, plan: Plan) -> Plan:
        """The plan with these; an empty plan has nothing to hold up."""
        if not (self.refusals or self.notes):
            return plan
        against = self.refusals if plan.steps else ()
        return replace(plan, refusals=(*plan.refusals, *against), notes=(*plan.notes, *self.notes))


NO_CONCERNS: Final = Vetoes()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """One group: what is declared, what Kafka says, what the slots and the runtime say."""

    spec: GroupSpec
    mode: str
    """observe | plan | act, as FleetSpec.mode_of says."""
    cluster: str
    snapshot_at: float
    """Wall time of the snapshot that `group` and `topics` come from."""
    group: GroupSnapshot | None
    """None = the snapshot holds no such group."""
    topics: Mapping[str, int]
    targets: SlotTargets
    slots: tuple[Slot, ...]
    reports: tuple[WorkerReport, ...]
    processes: tuple[WorkerProcess, ...]
    change: Change | None
    """The running change, or the last one."""
    change_alive: bool | None
    """Whether the running change's actor still renews its lease; None = not known yet."""
    pauses: tuple[Pause, ...]
    """Of any group, and of all."""
    stopped_partitions: tuple[StoppedPartition, ...]
    revision: str
    """What workers shall be."""
    published: Mapping[str, WorkerSettings] = field(default_factory=dict)
    """Settings of the revisions that slots run, by revision."""
    storm: Storm | None = None
    """The group's storm; None where there is none, or nobody can tell."""
    initial_delay: float | None = None
    """Seconds that brokers wait for more members after the first of an empty classic group
    (`group.initial.rebalance.delay.ms`); None: not known, taken to be Kafka's own 3 s."""
    readable_log: bool = True
    """Whether `__consumer_offsets` can be read; without it receipts are unverified."""

    # The rest is reading, in one place so that refusals, expected costs and plans agree.

    def open_slots(self) -> tuple[int, ...]:
        """Numbers of the slots that may be held, lowest first."""
        return tuple(sorted(self.targets.open - self.targets.quarantined))

    def slot(self, number: int) -> Slot:
        """The stored slot, or a free one that was never stored."""
        found = next((s for s in self.slots if s.number == number), None)
        return found or Slot(group=self.spec.group, number=number)

    def members(self) -> tuple[Member, ...]:
        """Members of the group as Kafka tells them; none where the group is not there."""
        return self.group.members if self.group is not None and self.group.exists else ()

    def number_of(self, member: Member) -> int | None:
        """The slot number of a member's instance id; None where the id is not one of ours."""
        head, dash, tail = (member.instance_id or "").rpartition("-")
        is_number = tail.isascii() and tail.isdigit() and str(int(tail)) == tail
        return int(tail) if dash and head == self.spec.group and is_number else None

    def external_members(self) -> tuple[Member, ...]:
        """Members that are no worker of ours: foreign instance ids, and unknown dynamic ones."""
        ours = {s.member_id for s in self.slots if s.member_id is not None}
        return tuple(
            m
            for m in self.members()
            if m.member_id not in ours
            and (self.number_of(m) is None or self.number_of(m) in self.targets.quarantined)
        )

    def owners_of_nothing(self) -> tuple[int, ...]:
        """Slots whose member owns only partitions that are gone, while another has two or more.

        Its return deals them anew: a sticky assignor goes on giving out what a topic had before it
        was recreated with fewer partitions.
        """
        there = {
            m: sum(tp not in gone_partitions(m, self.topics) for tp in m.partitions)
            for m in self.members()
        }
        if max(there.values(), default=0) < 2:
            return ()
        idle = {self.number_of(m) for m, count in there.items() if m.partitions and not count}
        return tuple(number for number in self.open_slots() if number in idle)

    def away(self) -> tuple[int, ...]:
        """Slots whose static member may be gone: they block the join phase of a rebalance.

        Open but held by nobody or by a worker that ended, or a member without an owner.
        """
        ended = {p.name for p in self.processes if not p.running}
        unheld = {n for n in self.open_slots() if self.slot(n).owner in {None, *ended}}
        ghosts = {
            number
            for number in map(self.number_of, self.members())
            if number is not None
            and number not in self.targets.quarantined
            and self.slot(number).owner is None
        }
        return tuple(sorted(unheld | ghosts))

    def joining(self) -> tuple[int, ...]:
        """Slots whose owner has not joined yet, or not shown that it works.

        A member whose entrypoint fails joins no more, nor does a worker that ends again and again:
        to take it out, or to replace it, is what has to be possible.
        """
        failing = {process.name for process in self.processes if process.is_failing}
        here = {member.member_id for member in self.members()}
        slots = [self.slot(n) for n in self.open_slots()]
        joining = [s for s in slots if s.phase is Phase.JOINING and s.owner not in failing]
        return tuple(s.number for s in joining if s.error is None or s.member_id not in here)

    def is_empty(self) -> bool:
        """Whether a join would be the first of a generation: nobody is in the group."""
        if self.group is None or not self.group.exists:
            return True
        return self.group.state in {GroupState.EMPTY, GroupState.DEAD} or not self.group.members


def gone_partitions(member: Member, topics: Mapping[str, int]) -> frozenset[TopicPartition]:
    """What a member owns beyond the partitions that its topics have now."""
    return frozenset(
        tp for tp in member.partitions if tp.partition >= topics.get(tp.topic, tp.partition + 1)
    )
