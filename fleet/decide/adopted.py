"""Plans for other people's consumers: their Deployment is scaled, and what that costs is said.

Problem: consumers that Fleet does not run have no slots, no slot targets and no handover, so none
of its promises hold for them, but somebody has to scale them all the same. Choice: one step, all at
once: pods that go stop together, and static members that are left of them leave in one request
[18]; the expected cost is a range, from one rebalance where all joins or leaves meet in one round
to one for each. A roll of such a Deployment is not ours to do; what it will cost is a note of every
plan. Cost: a range as wide as the step, because their protocol decides.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fleet.config.spec import GroupSpec
from fleet.decide.slugs import slug
from fleet.model import ExpectedCost, GroupSnapshot, Member, Plan, Step, StepKind
from fleet.text import plural

# A plan's id is the group, the second in which it was made, and a hash of what it saw and would do:
# what was approved is what is done, and A→B→A are three ids [35].


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
    """The id; `seen` is what the plan was decided on, of values whose repr tells them apart."""
    at = datetime.fromtimestamp(now, tz=UTC).strftime("%Y%m%dT%H%M%S")
    does = [(s.kind.value, s.slots, s.revision, str(s.expected_cost)) for s in steps]
    digest = hashlib.sha256(repr((group, wanted, seen, does)).encode()).hexdigest()
    return f"{slug(cluster, group)}-{at}-{digest[:HASH]}"


def not_as_approved(approved: str, plan: Plan) -> str | None:
    """Why `plan`, made now, is not what was approved under that id; None where it is."""
    ours, _, _ = _parts(plan.id)
    if _parts(approved)[0] != ours:
        return f"{approved!r} is no plan of group {plan.group}: their ids begin with {ours}-"
    if _parts(approved)[2] == _parts(plan.id)[2]:
        return None
    steps = "; ".join(step.sentence for step in plan.steps) or "nothing"
    return (
        f"group {plan.group} is not as plan {approved} saw it, so nothing was done; what would be "
        f"done now: {steps}; to approve that, name plan {plan.id}"
    )


def _parts(name: str) -> tuple[str, str, str]:
    """Whose, when, and the hash; empty where it is no id."""
    head, _, digest = name.rpartition("-")
    whose, _, at = head.rpartition("-")
    return whose, at, digest


MEMBERS = "external"
"""The revision of what is not ours, in plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """Other people's Deployment, as its runtime sees it."""

    name: str
    replicas: int
    """Wanted."""
    ready: int
    addresses: dict[str, str]
    """Of its pods, by pod name; those without one yet are left out."""
    one_by_one: bool
    """RollingUpdate; False = Recreate: all stop, then all start."""


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
    """The plan that brings a Deployment to `wanted` pods; None = as many as there are.

    why: the policy's reason for this number; empty where a person named it. What stands against
    it is for `fleet.decide.refusals` to say.
    """
    aim = adopted.replicas if wanted is None else wanted
    notes = [*([why] if why else []), roll_note(group, adopted)]
    steps: tuple[Step, ...] = ()
    if aim != adopted.replicas:
        steps = (_step(group, adopted, aim),)
    else:
        be = "is" if aim == 1 else "are"
        pods = plural(aim, "pod")
        notes.insert(0, f"nothing to do: {pods} of Deployment {adopted.name} {be} wanted and there")
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
                note="each joins when it has started: nothing opens for all of them together",
            ),
            sentence=f"Deployment {adopted.name} gets {pods} more, which join as they start",
        )
    named = static(group, adopted)
    least = "what is left of static members leaves in one request" if named else ""
    return Step(
        kind=StepKind.LEAVE,
        slots=(),
        revision=MEMBERS,
        expected_cost=ExpectedCost(
            rebalances_min=1,
            rebalances_max=2 if named else max(2, count),
            note=least or "dynamic members leave as each of them closes",
        ),
        sentence=(
            f"{pods} of Deployment {adopted.name} {'stops' if count == 1 else 'stop together'}"
            + (", then one leave for what remains of static members" if named else "")
        ),
    )


def roll_note(group: GroupSnapshot | None, adopted: Adopted) -> str:
    """What a roll of such a Deployment costs, whoever does it."""
    count = adopted.replicas
    named = static(group, adopted)
    if not adopted.one_by_one:
        cost = "2 rebalances and a standstill (all stop, then all start)"
    else:
        cost = f"up to {2 * count} rebalances (each pod joins and leaves)"
    if named and adopted.one_by_one:
        cost = (
            f"up to {2 * count} rebalances where an instance id comes from a pod's name; none "
            "where each pod comes back under its own id within the session timeout"
        )
    return (
        f"Deployment {adopted.name} runs other people's consumers: a roll of its "
        f"{plural(count, 'pod')} costs {cost}; workers of Fleet would roll with 0"
    )


def static(group: GroupSnapshot | None, adopted: Adopted) -> tuple[Member, ...]:
    """Static members that run in its pods."""
    return tuple(m for m in members_of(group, adopted) if m.instance_id is not None)


def members_of(group: GroupSnapshot | None, adopted: Adopted) -> tuple[Member, ...]:
    """Members that run in its pods, by address."""
    addresses = set(adopted.addresses.values())
    found = group.members if group is not None and group.exists else ()
    return tuple(m for m in found if address_of(m) in addresses)


def runs_in(member: Member, adopted: Adopted) -> bool:
    """Whether it says that it runs there: by its address, or by a pod's name in one of its ids.

    Good enough to propose a Deployment; who may be evicted is told by address alone.
    """
    if address_of(member) in adopted.addresses.values():
        return True
    ids = [each for each in (member.instance_id, member.client_id) if each]
    return any(
        each == pod or each.startswith(f"{pod}-") for each in ids for pod in adopted.addresses
    )


def deployed(
    groups: Mapping[str, GroupSnapshot], found: Sequence[Adopted]
) -> dict[str, dict[str, int]]:
    """Group → Deployment → how many of its members say that they run in its pods."""
    told: dict[str, dict[str, int]] = {}
    for name, group in groups.items():
        counted = {
            each.name: sum(runs_in(member, each) for member in group.members) for each in found
        }
        some = {deployment: count for deployment, count in counted.items() if count}
        if some:
            told[name] = some
    return told


def address_of(member: Member) -> str:
    """Its host as the coordinator tells it: `/10.0.0.7` in Kafka's writing."""
    return member.host.rpartition("/")[2]
