"""Scales external consumers: stops pods together, then removes their static members.

Problem: a stopped static member stays in its group until its session ends and blocks every
rebalance until then; only its address shows its pod. Choice: the members and their addresses are
written to the change before a pod stops. When the pods are gone, one request removes the members at
their addresses, by member id and instance id [16, 18]; it never names a live member. Cost: behind
NAT or on the host network, no member can be named. Static members then stay until their session
ends, and the receipt says so.
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
"""Seconds for a ready pod to join, which an external readiness probe may not check."""

Scale = Callable[[str, int], Adopted]
"""(group, pods) → the Deployment, when its pods are gone or ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleMemory:
    """Remembers the addresses of the group's pods before one stops."""

    addresses: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Adopting:
    """Scales an adopted Deployment."""

    adopted: Callable[[str], Adopted | None]
    scale: Scale
    read: Callable[[str], GroupSnapshot | None]
    """Reads the group from the coordinator."""
    leave: Callable[..., str | None]
    clock: Clock

    def perform(self, step: Step, lease: ChangeLease) -> tuple[str, ...]:
        """Performs what is missing of the step; returns sentences for its receipt."""
        plan = lease.change.plan
        if lease.recall(ScaleMemory).addresses is None:
            self._remember(plan.group, lease)
        before = lease.recall(ScaleMemory).addresses or ()
        after = self.scale(plan.group, plan.wanted)
        if step.kind is StepKind.OPEN:
            return self._await_members(after, lease)
        now = self.read(plan.group)
        gone = set(before) - set(after.addresses.values())
        found = now.members if now is not None else ()
        left = [m for m in found if address_of(m) in gone]
        return self._leave(plan.id, plan.group, left)

    def _await_members(self, after: Adopted, lease: ChangeLease) -> tuple[str, ...]:
        """Waits until ready pods have joined, since their joins are part of the step's cost."""
        deadline = self.clock.monotonic() + JOIN_SECONDS
        while True:
            lease.check()
            joined = members_of(self.read(lease.change.plan.group), after)
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
            raise FleetError(f"group {group} has no Deployment any more")
        members = members_of(self.read(group), adopted)
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
        return (f"one request removed {plural(len(named), 'static member')} of deleted pods",)


def _names(members: Iterable[Member], known: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns sorted names as in records, with those known before."""
    return tuple(sorted({m.instance_id or m.member_id for m in members} | set(known)))
