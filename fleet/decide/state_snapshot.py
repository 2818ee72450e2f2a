"""Holds all that a decision about one group may use, read once and frozen."""

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

# A runtime's objections to a plan: others may also change the place where workers run.


@dataclass(frozen=True, slots=True, kw_only=True)
class Vetoes:
    """Holds a runtime's refusals and notes on a plan."""

    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def add_to(self, plan: Plan) -> Plan:
        """Adds them to a plan; an empty plan gets no refusals."""
        if not (self.refusals or self.notes):
            return plan
        against = self.refusals if plan.steps else ()
        return replace(plan, refusals=(*plan.refusals, *against), notes=(*plan.notes, *self.notes))


NO_CONCERNS: Final = Vetoes()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """Describes one group: its declaration, and what Kafka, the slots and the runtime report."""

    spec: GroupSpec
    mode: str
    """observe | plan | act, from FleetSpec.mode_of."""
    cluster: str
    snapshot_at: float
    """Wall time of the snapshot of `group` and `topics`."""
    group: GroupSnapshot | None
    """None: the snapshot has no such group."""
    topics: Mapping[str, int]
    targets: SlotTargets
    slots: tuple[Slot, ...]
    reports: tuple[WorkerReport, ...]
    processes: tuple[WorkerProcess, ...]
    change: Change | None
    """The running change, or the last one."""
    change_alive: bool | None
    """Whether the running change's actor still renews its lease; None: not known yet."""
    pauses: tuple[Pause, ...]
    """Pauses of single groups and of all."""
    stopped_partitions: tuple[StoppedPartition, ...]
    revision: str
    """Wanted revision of workers."""
    published: Mapping[str, WorkerSettings] = field(default_factory=dict)
    """Settings of the revisions that slots run, by revision."""
    storm: Storm | None = None
    """The group's storm; None if there is none, or if it is unknown."""
    initial_delay: float | None = None
    """Seconds that brokers wait for more members of an empty classic group
    (`group.initial.rebalance.delay.ms`); None: unknown, assumed to be Kafka's default of 3 s."""
    readable_log: bool = True
    """Whether `__consumer_offsets` is readable; if not, receipts are unverified."""

    # Derived facts, in one place so that refusals, expected costs and plans agree.

    def open_slots(self) -> tuple[int, ...]:
        """Returns the open slots that a worker may own, lowest first."""
        return tuple(sorted(self.targets.open - self.targets.quarantined))

    def slot(self, number: int) -> Slot:
        """Returns the stored slot, or a free one that was never stored."""
        found = next((s for s in self.slots if s.number == number), None)
        return found or Slot(group=self.spec.group, number=number)

    def members(self) -> tuple[Member, ...]:
        """Returns the members that Kafka reports; none if the group does not exist."""
        return self.group.members if self.group is not None and self.group.exists else ()

    def number_of(self, member: Member) -> int | None:
        """Returns the slot number of a member's instance id; None for an external id."""
        head, dash, tail = (member.instance_id or "").rpartition("-")
        is_number = tail.isascii() and tail.isdigit() and str(int(tail)) == tail
        return int(tail) if dash and head == self.spec.group and is_number else None

    def external_members(self) -> tuple[Member, ...]:
        """Returns members that are not workers of this fleet, by instance id or member id."""
        ours = {s.member_id for s in self.slots if s.member_id is not None}
        return tuple(
            m
            for m in self.members()
            if m.member_id not in ours
            and (self.number_of(m) is None or self.number_of(m) in self.targets.quarantined)
        )

    def owners_of_nothing(self) -> tuple[int, ...]:
        """Returns slots that own only deleted partitions, while another member has two or more.

        A sticky assignor keeps assigning the partitions of a topic from before it was recreated
        with fewer. A rejoin assigns them anew.
        """
        there = {
            m: sum(tp not in deleted_partitions(m, self.topics) for tp in m.partitions)
            for m in self.members()
        }
        if max(there.values(), default=0) < 2:
            return ()
        idle = {self.number_of(m) for m, count in there.items() if m.partitions and not count}
        return tuple(number for number in self.open_slots() if number in idle)

    def away(self) -> tuple[int, ...]:
        """Returns slots whose static member may be dead; they block the join phase of a rebalance.

        Such a slot is open without a live owner, or it has a member without an owner.
        """
        ended = {p.name for p in self.processes if not p.running}
        unowned = {n for n in self.open_slots() if self.slot(n).owner in {None, *ended}}
        ghosts = {
            number
            for number in map(self.number_of, self.members())
            if number is not None
            and number not in self.targets.quarantined
            and self.slot(number).owner is None
        }
        return tuple(sorted(unowned | ghosts))

    def joining(self) -> tuple[int, ...]:
        """Returns slots whose owner has not joined yet, or has not shown that it works.

        A member whose entrypoint fails and a worker that keeps stopping do not count, since a
        change must be able to remove or replace them.
        """
        failing = {process.name for process in self.processes if process.is_failing}
        here = {member.member_id for member in self.members()}
        slots = [self.slot(n) for n in self.open_slots()]
        joining = [s for s in slots if s.phase is Phase.JOINING and s.owner not in failing]
        return tuple(s.number for s in joining if s.error is None or s.member_id not in here)

    def is_empty(self) -> bool:
        """Tells whether the group has no members, so that a join begins a generation."""
        if self.group is None or not self.group.exists:
            return True
        return self.group.state in {GroupState.EMPTY, GroupState.DEAD} or not self.group.members


def deleted_partitions(member: Member, topics: Mapping[str, int]) -> frozenset[TopicPartition]:
    """Returns a member's partitions that its topics no longer have."""
    return frozenset(
        tp for tp in member.partitions if tp.partition >= topics.get(tp.topic, tp.partition + 1)
    )
