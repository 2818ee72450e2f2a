"""Scaling other people's consumers: stop the pods together, then one leave for what remains.

Problem: a static member that is stopped stays in its group until its session ends and holds up
every rebalance until then; whom that concerns only its address tells. Choice: who was there, and
at which address, is written to the change before a pod is stopped; once its pods are gone, the
members that remain at an address where no pod lives any more leave in one request, by member id
and instance id together [16, 18]. A live member is never named. Cost: where members reach the
coordinator by another address than their own (NAT, host network), nobody is named, and static
members stay until their session ends; the receipt says so.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from fleet.act.lease import ChangeLease
from fleet.act.steps.work import StepStart
from fleet.clock import Clock
from fleet.decide.adopted import Adopted, address_of, members_of
from fleet.errors import FleetError
from fleet.model import GroupSnapshot, Member, Step, StepKind
from fleet.text import plural

JOIN_SECONDS: Final = 60.0
"""For a ready pod to be a member, which other people's readiness probe may not tell."""

Scale = Callable[[str, int], Adopted]
"""(group, pods) → the Deployment, once its pods are gone or ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleMemory:
    """Where the group's pods were before one of them was stopped."""

    addresses: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Adopting:
    """What it takes to scale a Deployment that is not ours."""

    adopted: Callable[[str], Adopted | None]
    scale: Scale
    look: Callable[[str], GroupSnapshot | None]
    """The group as the coordinator tells it now."""
    leave: Callable[..., str | None]
    clock: Clock

    def perform(self, step: Step, lease: ChangeLease) -> tuple[str, ...]:
        """Do what is missing of the step; sentences for its receipt."""
        plan = lease.change.plan
        if lease.recall(ScaleMemory).addresses is None:
            self._remember(plan.group, lease)
        before = lease.recall(ScaleMemory).addresses or ()
        after = self.scale(plan.group, plan.wanted)
        if step.kind is StepKind.OPEN:
            return self._await_members(after, lease)
        now = self.look(plan.group)
        gone = set(before) - set(after.addresses.values())
        found = now.members if now is not None else ()
        left = [m for m in found if address_of(m) in gone]
        return self._leave(plan.id, plan.group, left)

    def _await_members(self, after: Adopted, lease: ChangeLease) -> tuple[str, ...]:
        """A pod may be ready before it has joined: what it costs to join is the step's."""
        deadline = self.clock.monotonic() + JOIN_SECONDS
        while True:
            lease.check()
            joined = members_of(self.look(lease.change.plan.group), after)
            missing = set(after.addresses.values()) - {address_of(m) for m in joined}
            if not missing or self.clock.monotonic() > deadline:
                break
            self.clock.sleep(1.0)
        known = lease.recall(StepStart).members or ()
        lease.remember(StepStart(members=_names(joined, known)))
        if missing:
            return (f"{plural(len(missing), 'pod')} did not join within {JOIN_SECONDS:.0f} s",)
        return ()

    def _remember(self, group: str, lease: ChangeLease) -> None:
        adopted = self.adopted(group)
        if adopted is None:
            raise FleetError(f"the Deployment of group {group} is gone")
        members = members_of(self.look(group), adopted)
        lease.remember(StepStart(members=_names(members)))
        lease.remember(ScaleMemory(addresses=tuple(sorted(adopted.addresses.values()))))

    def _leave(self, plan_id: str, group: str, left: list[Member]) -> tuple[str, ...]:
        named = [m for m in left if m.instance_id is not None]
        if not named:
            return ()
        members = [(m.instance_id, m.member_id) for m in named]
        why = self.leave(group, members, reason=f"fleet {plan_id}")
        if why is not None:
            return (f"static members stay until their session ends: {why}",)
        return (f"{plural(len(named), 'static member')} of pods that are gone left in one request",)


def _names(members: Iterable[Member], known: Iterable[str] = ()) -> tuple[str, ...]:
    """As records have them, in order; those known before stay."""
    return tuple(sorted({m.instance_id or m.member_id for m in members} | set(known)))
