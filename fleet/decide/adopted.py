"""Plans the scaling of an adopted Deployment, which runs external consumers.

Problem: external consumers have no slots, no slot targets and no handover, so that Fleet's
guarantees do not hold for them, but they need scaling too. Choice: one step changes all pods at
once. Removed pods stop together, and their static members leave in one request [18]. The expected
cost is a range, from one rebalance to one for each pod. Fleet does not roll such a Deployment; a
note of every plan says what a roll costs. Cost: a wide range, because their protocol decides.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fleet.config.spec import GroupSpec
from fleet.decide.slugs import slug
from fleet.model import ExpectedCost, GroupSnapshot, Member, Plan, Step, StepKind
from fleet.text import plural

# A plan's id is the group, the second of planning, and a hash of its inputs and steps: Fleet does
# exactly what a person approved, and A→B→A gives three ids [35].


HASH = 12
"""Hex digits."""


def plan_id(
    cluster: str,
    group: str,
    *,
    now: float,
    seen: tuple[object, ...],
    wanted: int,
    steps: Iterable[Step],
) -> str:
    """Returns a plan's id; `seen` are its inputs, whose repr must be distinct."""
    at = datetime.fromtimestamp(now, tz=UTC).strftime("%Y%m%dT%H%M%S")
    does = [(s.kind.value, s.slots, s.revision, str(s.expected_cost)) for s in steps]
    digest = hashlib.sha256(repr((group, wanted, seen, does)).encode()).hexdigest()
    return f"{slug(cluster, group)}-{at}-{digest[:HASH]}"


def approval_mismatch(approved: str, plan: Plan) -> str | None:
    """Returns how `plan` differs from the approved one; None if it does not."""
    ours, _, _ = _parts(plan.id)
    if _parts(approved)[0] != ours:
        return f"{approved!r} is not a plan of group {plan.group}: its ids begin with {ours}-"
    if _parts(approved)[2] == _parts(plan.id)[2]:
        return None
    steps = "; ".join(step.sentence for step in plan.steps) or "nothing"
    return (
        f"group {plan.group} has changed since plan {approved}, so nothing was done. The plan is "
        f"now: {steps}. To approve it, name plan {plan.id}"
    )


def _parts(name: str) -> tuple[str, str, str]:
    """Returns the group, the time and the hash of an id; empty if it is not an id."""
    head, _, digest = name.rpartition("-")
    whose, _, at = head.rpartition("-")
    return whose, at, digest


MEMBERS = "external"
"""Revision of external members in plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """Describes an adopted Deployment as its runtime sees it."""

    name: str
    replicas: int
    """Wanted pods."""
    ready: int
    addresses: dict[str, str]
    """Addresses by pod name; pods without an address are left out."""
    one_by_one: bool
    """True for RollingUpdate; False for Recreate, which stops all pods first."""


def make_adopted_plan(
    *,
    spec: GroupSpec,
    cluster: str,
    group: GroupSnapshot | None,
    adopted: Adopted,
    wanted: int | None,
    snapshot_at: float,
    now: float,
    why: str = "",
) -> Plan:
    """Returns the plan that scales a Deployment to `wanted` pods; None keeps its number.

    why: the policy's reason for this number; empty if a person named it. `fleet.decide.refusals`
    adds the refusals.
    """
    aim = adopted.replicas if wanted is None else wanted
    notes = [*([why] if why else []), roll_note(group, adopted)]
    steps: tuple[Step, ...] = ()
    if aim != adopted.replicas:
        steps = (_step(group, adopted, aim),)
    else:
        pods = plural(aim, "pod")
        notes.insert(0, f"nothing to do: Deployment {adopted.name} has the wanted {pods}")
    seen = (adopted.name, adopted.replicas, None if group is None else group.state.value)
    return Plan(
        id=plan_id(cluster, spec.group, now=now, seen=seen, wanted=aim, steps=steps),
        cluster=cluster,
        group=spec.group,
        created_at=now,
        snapshot_at=snapshot_at,
        wanted=aim,
        revision=MEMBERS,
        steps=steps,
        notes=tuple(notes),
    )


def _step(group: GroupSnapshot | None, adopted: Adopted, aim: int) -> Step:
    count = abs(aim - adopted.replicas)
    pods = plural(count, "pod")
    if aim > adopted.replicas:
        return Step(
            kind=StepKind.OPEN,
            slots=(),
            revision=MEMBERS,
            expected_cost=ExpectedCost(
                rebalances_min=1,
                rebalances_max=max(2, 2 * count),
                note=(
                    "each pod joins when it has started; external consumers have no synchronized "
                    "join"
                ),
            ),
            sentence=f"Deployment {adopted.name} gets {pods} more, which join as they start",
        )
    named = static_members(group, adopted)
    least = "the static members of these pods leave in one request" if named else ""
    return Step(
        kind=StepKind.LEAVE,
        slots=(),
        revision=MEMBERS,
        expected_cost=ExpectedCost(
            rebalances_min=1,
            rebalances_max=2 if named else max(2, count),
            note=least or "each dynamic member leaves when it closes",
        ),
        sentence=(
            f"{pods} of Deployment {adopted.name} {'stops' if count == 1 else 'stop together'}"
            + ("; one request then removes their static members" if named else "")
        ),
    )


def roll_note(group: GroupSnapshot | None, adopted: Adopted) -> str:
    """Returns a note on the cost of rolling such a Deployment."""
    count = adopted.replicas
    named = static_members(group, adopted)
    if not adopted.one_by_one:
        cost = "2 rebalances and a standstill, since all pods stop first"
    else:
        cost = f"up to {2 * count} rebalances (each pod joins and leaves)"
    if named and adopted.one_by_one:
        cost = (
            f"0 rebalances if each pod keeps its instance id and comes back within the session "
            f"timeout, else up to {2 * count}"
        )
    return (
        f"Deployment {adopted.name} runs external consumers. A roll of its {plural(count, 'pod')} "
        f"costs {cost}; workers of Fleet roll with 0 rebalances"
    )


def static_members(group: GroupSnapshot | None, adopted: Adopted) -> tuple[Member, ...]:
    """Returns the static members in its pods."""
    return tuple(m for m in members_of(group, adopted) if m.instance_id is not None)


def members_of(group: GroupSnapshot | None, adopted: Adopted) -> tuple[Member, ...]:
    """Returns the members in its pods, by address."""
    addresses = set(adopted.addresses.values())
    found = group.members if group is not None and group.exists else ()
    return tuple(m for m in found if address_of(m) in addresses)


def is_member_of(member: Member, adopted: Adopted) -> bool:
    """Tells whether a member runs in its pods, by address or by a pod's name in one of its ids.

    That is enough to propose a Deployment; only the address decides which member may be removed.
    """
    if address_of(member) in adopted.addresses.values():
        return True
    ids = [each for each in (member.instance_id, member.client_id) if each]
    return any(
        each == pod or each.startswith(f"{pod}-") for each in ids for pod in adopted.addresses
    )


def count_by_deployment(
    groups: Mapping[str, GroupSnapshot], found: Sequence[Adopted]
) -> dict[str, dict[str, int]]:
    """Counts for each group and Deployment the members that run in its pods."""
    counts: dict[str, dict[str, int]] = {}
    for name, group in groups.items():
        counted = {
            each.name: sum(is_member_of(member, each) for member in group.members) for each in found
        }
        some = {deployment: count for deployment, count in counted.items() if count}
        if some:
            counts[name] = some
    return counts


def address_of(member: Member) -> str:
    """Returns a member's host as the coordinator reports it; Kafka writes `/10.0.0.7`."""
    return member.host.rpartition("/")[2]
