"""The last steps of a batched leave, taken by any living worker.

Problem: the actor of a batched leave of k slots may die before the LeaveGroup is sent. The closed
members would stay in the group until their sessions expire, and block every rebalance meanwhile.
Choice: the intent is in the slot targets, the member ids in the slots. Any living worker of the
group completes the leave once the change's actor was silent for one lease and every leaving slot is
closed. It sends the one request and removes the slots from the slot targets [21]. Cost: both steps
may be done twice. A member that left gets 25, and the slot targets are written by compare-and-set.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fleet.errors import FleetError, Unreachable
from fleet.model import Member
from fleet.slots import ChangeState, Phase, Slot, SlotTargets
from fleet.slots.evidence import LeaseWatch
from fleet.slots.store import Store
from fleet.text import slots_of
from fleet.worker.events import WorkerContext
from fleet.worker.group_query import GroupQuery
from fleet.worker.slot.slot_lease import SlotWatcher

Leave = Callable[[str, Sequence[tuple[str | None, str]]], str | None]
"""Sends one LeaveGroup for all (instance id, member id); returns why not all left, or None. A
dynamic member's instance id is None."""


def all_drained(targets: SlotTargets, slots: Sequence[Slot], dead: frozenset[int]) -> bool:
    """Whether every leaving slot has committed what it had: now they may close together."""
    quiet = {Phase.DRAINED, Phase.CLOSED}
    return all(
        slot.phase in quiet or slot.owner is None or slot.number in dead
        for slot in slots
        if slot.number in targets.leaving
    )


def all_closed(targets: SlotTargets, slots: Sequence[Slot], dead: frozenset[int]) -> bool:
    """Whether no living process is a member through a leaving slot, or would join again."""
    return all(
        slot.owner is None or slot.number in dead or slot.phase is Phase.CLOSED
        for slot in slots
        if slot.number in targets.leaving
    )


class LeaveCompleter:
    """Watches one group's change actor, and completes a leave that it left unfinished."""

    def __init__(self, context: WorkerContext, store: Store, *, leave: Leave) -> None:
        self._store = store
        self._group = context.group
        self._static = context.is_static
        self._leave = leave
        self._clock = context.clock
        self._events = context.events
        self._watch = LeaseWatch.for_group(
            store, group=context.group, lease=context.lease, clock=context.clock
        )

    def check(self, watcher: SlotWatcher) -> bool:
        """Reads the store and completes an unfinished leave; True if the store was read.

        A silent store is waited for.
        """
        try:
            read = watcher.refresh()
            if self.step(watcher.targets, watcher.slots, watcher.dead()):
                watcher.forget()
        except Unreachable as error:
            self._events.log_rarely(str(error))
            return False
        return read

    def step(self, targets: SlotTargets, slots: Sequence[Slot], dead: frozenset[int]) -> bool:
        """Completes the leave if it is due and no actor does; True if it was done."""
        if (
            not targets.leaving
            or not all_closed(targets, slots, dead)
            or not self._actor_silent(targets)
        ):
            return False
        going = [slot for slot in slots if slot.number in targets.leaving]
        named = slots_of([slot.number for slot in going])
        self._events.log(f"the actor of the leave of {named} is silent: completing it")
        members = [
            (slot.instance_id() if self._static else None, slot.member_id)
            for slot in going
            if slot.member_id
        ]
        if members:
            try:
                refusal = self._leave(self._group, members)
            except FleetError as error:
                refusal = str(error)
            if refusal is not None:
                self._events.log_rarely(f"the leave of {named} was refused: {refusal}")
                return False
        for slot in going:
            if slot.owner is None or slot.number in dead:  # a living worker clears its own
                self._store.clear(slot)
        written = self._store.write_targets(
            replace(targets, open=targets.open - targets.leaving, leaving=frozenset())
        )
        self._events.emit("leave_completed", slots=sorted(targets.leaving), written=bool(written))
        return written is not None

    def _actor_silent(self, targets: SlotTargets) -> bool:
        now = self._clock.monotonic()
        change = self._store.change(self._group)
        seen, told = None, 0.0
        if change is not None and change.state is ChangeState.RUNNING:
            seen, told = (change.actor, change.token, change.counter), change.lease
        return self._watch.is_expired(
            "actor", (targets.plan_id, targets.leaving, seen), now, lease=told
        )


# Frees an instance id for the new owner of its slot with KIP-848 [16, 17].
#
# Problem: the coordinator refuses a new member (111, fatal) until the session of an owner that did
# not close has expired (45-60 s). Evicting by instance id alone could hit a live successor. Choice:
# the new owner sends the LeaveGroup itself and names member id and instance id together. The slot's
# member id may be outdated, if its owner died before it could write a new one. Then the coordinator
# is asked who has the instance id. That member is evicted only if its client id names a worker that
# the slot's lease has shown dead, or an earlier life of this worker; else it is external and left
# alone. Cost: two requests, once per unclean end (0.3 s).


class ExternalOwner(FleetError):
    """An external process has the instance id of this slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerOwner:
    """The slot's former owner, as far as known: which members may be evicted for it."""

    instance_id: str
    member_ids: tuple[str, ...]
    workers: frozenset[str]
    """Names of dead workers: this worker's earlier lives, and the owner whose lease expired."""


OwnerOf = Callable[[str], Member | None]
"""Returns the member that has an instance id now."""


class Failover:
    """Sends the leave that lets a new member in."""

    def __init__(
        self, context: WorkerContext, *, leave: Leave, owner_of: OwnerOf | None = None
    ) -> None:
        self._context = context
        self._leave = leave
        self._owner_of = owner_of or self._asked

    def evict(self, *members: tuple[str | None, str]) -> str | None:
        """Sends one request for (instance id, member id) each; returns why it was refused."""
        try:
            return self._leave(self._context.group, members)
        except FleetError as error:
            return str(error)

    def free(self, former: FormerOwner) -> str | None:
        """Returns why the instance id is not free now; None if it is.

        Raises ExternalOwner if an external process has it.
        """
        why: str | None = None
        tried = former.member_ids[-1:]  # the last one written: nearly always the one
        try:
            if tried:
                why = self._leave(self._context.group, [(former.instance_id, tried[0])])
                if why is None:
                    self._told(former.instance_id, tried[0])
                    return None
            found = self._owner_of(former.instance_id)
            if found is None:
                return None
            if found.member_id not in former.member_ids and found.client_id not in former.workers:
                raise ExternalOwner(
                    f"the process {found.client_id} at {found.host}, which is no worker of this "
                    f"slot, uses the instance id {former.instance_id}; end it, then reopen the slot"
                )
            if found.member_id not in tried:
                why = self._leave(self._context.group, [(former.instance_id, found.member_id)])
                if why is None:
                    self._told(former.instance_id, found.member_id)
        except ExternalOwner:
            raise
        except FleetError as error:
            return str(error)
        return why

    def _told(self, instance_id: str, member_id: str) -> None:
        self._context.events.log(f"the former member of {instance_id} left: the id is free")
        self._context.events.emit("freed", instance=instance_id, member=member_id)

    def _asked(self, instance_id: str) -> Member | None:
        """Returns its owner by the coordinator; FleetError if it does not answer."""
        members = GroupQuery(self._context.login, group=self._context.group).answer().members
        return next((each for each in members if each.instance_id == instance_id), None)
