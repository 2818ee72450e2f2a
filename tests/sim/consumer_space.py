"""All that can happen to a small KIP-848 group, state by state.

Problem: stories are drawn, and what nobody draws goes unseen. Choice: breadth first through every
order of heartbeats (answered, or the answer lost), acknowledgements, leaves, crashes, expiries,
failovers and the end of the assignment interval, for clients that behave as KIP-848 asks; states
are told apart by what can still matter (epochs count from the group's). Cost: requests arrive at
once and once, and disturbances are bounded, as in the public TLA+ model
(Vanlightly/kafka-tlaplus, consumer_group_protocol_kip_848_v2), whose six invariants these are;
that model has neither static members nor the assignment interval. A seventh is ours: a stable group
is settled.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from fleet.sim.coordinator import consumer_shard
from fleet.sim.coordinator.consumer_coordinator import ConsumerCoordinator
from fleet.sim.coordinator.consumer_group import (
    AWAY,
    ConsumerGroupState,
    ConsumerMemberState,
    EpochGroup,
    Owned,
)
from fleet.sim.coordinator.consumer_shard import ConsumerGroupSettings, Expiry, TopicFacts
from fleet.sim.coordinator.requests import ConsumerGroupHeartbeatRequest, ErrorCode, TopicPartitions
from fleet.sim.hashing import SlotOrder

GROUP, TOPIC = "g", "AAAAAAAAAAAAAAAAAAAAAQ"
INTERVAL_MS = 1_000
NO_END_MS = 10**9
_IDS = {False: ("m",), True: ("m", "n")}
"""A dynamic client keeps its id; a static one comes back under the other of two."""


@dataclass(frozen=True)
class Member:
    """One client: in the group or not, what it owns, and what it was told to own."""

    name: str
    static: bool
    turn: int = 0
    epoch: int = 0
    joined: bool = False
    owned: frozenset[int] = frozenset()
    given: frozenset[int] = frozenset()
    owes: bool = False
    """It was told what to own, or heard no answer, and has not been heard since."""

    @property
    def says(self) -> tuple[TopicPartitions, ...] | None:
        """What it owns, once it owns what it was told to; else nothing of it.

        Who says that it owns nothing while it takes up what it was given, and hears no answer,
        takes up what may be another's by then.
        """
        if self.joined and not (self.owes and self.owned == self.given):
            return None
        return (TopicPartitions(TOPIC, tuple(sorted(self.owned))),) if self.owned else ()

    @property
    def id(self) -> str:
        """Its member id."""
        ids = _IDS[self.static]
        return f"{self.name}-{ids[self.turn % len(ids)]}"

    @property
    def instance(self) -> str | None:
        """Its instance id."""
        return self.name if self.static else None


@dataclass(frozen=True)
class World:
    """The coordinator and its clients; `left` disturbances may still come."""

    to: ConsumerCoordinator
    members: tuple[Member, ...]
    left: int

    def having(self, number: int, member: Member) -> "World":
        """With a client changed."""
        members = (*self.members[:number], member, *self.members[number + 1 :])
        return replace(self, members=members)


def begin(*, static: tuple[bool, ...], partitions: int, disturbances: int) -> World:
    """Nobody has joined yet."""
    settings = ConsumerGroupSettings(session_ms=NO_END_MS, assignment_interval_ms=INTERVAL_MS)
    to = ConsumerCoordinator(settings, start_ms=1)
    to.set_topics([TopicFacts(bytes(15) + b"\1", "t", partitions)])
    members = tuple(Member(f"c{n}", is_static) for n, is_static in enumerate(static))
    return World(to, members, disturbances)


def moves(world: World) -> Iterator[tuple[str, World]]:
    """Everything that can happen next."""
    for number, member in enumerate(world.members):
        yield f"{member.name} beats", beat(world, number)
        if member.owned != member.given and member.joined:
            yield f"{member.name} acknowledges", world.having(number, acknowledged(member))
    group = group_of(world)
    if group is not None and group.computed_ms and not _interval_is_over(world.to, group):
        yield "the interval ends", _later(world)
    for gone in _dead(world):
        yield f"{gone} expires", expired(world, Expiry(GROUP, gone))
    if world.left:
        yield from _disturbances(replace(world, left=world.left - 1))


def _disturbances(world: World) -> Iterator[tuple[str, World]]:
    for number, member in enumerate(world.members):
        if not member.joined:
            continue
        yield f"{member.name} beats unheard", beat(world, number, heard=False)
        yield f"{member.name} leaves", left(world, number, -1)
        if member.static:
            yield f"{member.name} goes for a while", left(world, number, AWAY)
        else:
            yield f"{member.name} dies", world.having(number, Member(member.name, static=False))
        yield f"{member.name} is late", expired(world, Expiry(GROUP, member.id))
    group = group_of(world)
    for key in world.to.shard.timers:
        if key.startswith("rebalance-timeout") and group is not None:
            late = key.removeprefix(f"rebalance-timeout-{GROUP}-")
            known = group.members.get(late)
            epoch = known.epoch if known is not None else 0
            yield f"{late} does not let go", expired(world, Expiry(GROUP, late, epoch))
    if group is not None:
        to = copied(world.to)
        to.log = as_log(group)
        to.fail_over()
        yield "another broker takes over", replace(world, to=to)


def beat(world: World, number: int, *, heard: bool = True) -> World:
    """A heartbeat with all that the client knows; it joins if it is out."""
    member, to = world.members[number], copied(world.to)
    says = member.says
    asked = ConsumerGroupHeartbeatRequest(
        GROUP, member.id, member.epoch, member.instance, None, 60_000, ("t",), None, says
    )
    answer = to.heartbeat(asked)
    world = replace(world, to=to)
    if not heard:
        return world.having(number, replace(member, owes=True))
    if answer.error_code == ErrorCode.UNRELEASED_INSTANCE_ID:
        return world
    if answer.error_code:
        out = Member(member.name, member.static, member.turn)
        return world.having(number, out)
    given, owes = member.given, member.owes and says is None
    if answer.assignment is not None:
        owes = True
        parts = answer.assignment.topic_partitions
        given = frozenset(p for each in parts for p in each.partitions)
    epoch = answer.member_epoch
    new = replace(member, joined=True, epoch=epoch, given=given, owes=owes)
    return world.having(number, new)


def acknowledged(member: Member) -> Member:
    """First it lets go, then it takes up: never both at once."""
    kept = member.owned & member.given
    return replace(member, owned=member.given if kept == member.owned else kept)


def left(world: World, number: int, epoch: int) -> World:
    """A client goes, and owns nothing when it says so."""
    member, to = world.members[number], copied(world.to)
    to.heartbeat(ConsumerGroupHeartbeatRequest(GROUP, member.id, epoch, member.instance))
    out = Member(member.name, member.static, member.turn + 1)
    return replace(world, to=to).having(number, out)


def expired(world: World, expiry: Expiry) -> World:
    """A timer goes off."""
    to = copied(world.to)
    to.shard.groups.take_up(consumer_shard.expired(to.shard, expiry))
    return replace(world, to=to)


def _later(world: World) -> World:
    to = copied(world.to)
    to.shard.now += INTERVAL_MS
    return replace(world, to=to)


def _interval_is_over(to: ConsumerCoordinator, group: EpochGroup) -> bool:
    return to.now >= group.computed_ms + INTERVAL_MS


def _dead(world: World) -> list[str]:
    """Members of which no client knows, but for those that a static one may come back to."""
    group = group_of(world)
    alive = {member.id for member in world.members if member.joined}
    return [] if group is None else [each for each in group.members if each not in alive]


def group_of(world: World) -> EpochGroup | None:
    """The group; None before anybody joined."""
    return world.to.shard.groups.by_id.get(GROUP)


# The invariants.


def broken(world: World) -> str | None:
    """The first invariant that does not hold, by its name in the TLA+ model."""
    group = group_of(world)
    if group is None:
        return None
    partitions = set(range(next(iter(world.to.shard.image.partitions.values()))))
    checks = (_types, _legal_target, _double, _owner_epochs, _stable, _member_epochs, _settled)
    return next((each.__doc__ for each in checks if not each(world, group, partitions)), None)


def _types(world: World, group: EpochGroup, partitions: set[int]) -> bool:
    """TypeOK: epochs are numbers from 0 on (but for -2), partitions are those of the topic."""
    epochs = all(m.epoch >= 0 or m.epoch == AWAY for m in dict.values(group.members))
    targets = all(_numbers(each) <= partitions for each in group.targets.values())
    members = all(_owned(m) <= partitions for m in dict.values(group.members))
    return epochs and targets and members and group.epoch >= group.target_epoch >= 0


def _legal_target(world: World, group: EpochGroup, partitions: set[int]) -> bool:
    """LegalTargetAssignment: each partition is in the target of one member, once computed."""
    listed = [p for each in group.targets.values() for p in _numbers(each)]
    whole = group.epoch > group.target_epoch or not group.targets
    return len(listed) == len(set(listed)) and (whole or set(listed) == partitions)


def _double(world: World, group: EpochGroup, partitions: set[int]) -> bool:
    """NoDoubleClientAssignment: no two clients of the group own one partition."""
    owned = [p for m in world.members if m.joined and m.id in group.members for p in m.owned]
    return len(owned) == len(set(owned))


def _owner_epochs(world: World, group: EpochGroup, partitions: set[int]) -> bool:
    """ValidPartitionEpoch: a partition that is free is nobody's."""
    free = {p for p in partitions if group.epoch_of(bytes(15) + b"\1", p) == -1}
    return not any(_owned(m) & free for m in dict.values(group.members))


def _stable(world: World, group: EpochGroup, partitions: set[int]) -> bool:
    """ValidStableGroupState: in a stable group all have their target, at its epoch."""
    if group.state is not ConsumerGroupState.STABLE:
        return True
    return all(
        member.state is ConsumerMemberState.STABLE
        and member.epoch == group.epoch
        and not member.revoking
        and _numbers(member.assigned) == _numbers(group.targets[member.id])
        for member in dict.values(group.members)
    )


def _member_epochs(world: World, group: EpochGroup, partitions: set[int]) -> bool:
    """ValidMemberEpoch: at the target's epoch a client owns nothing of another's target."""
    for member in world.members:
        if member.joined and member.id in group.members and member.epoch == group.target_epoch:
            others = (each for name, each in group.targets.items() if name != member.id)
            if any(member.owned & _numbers(each) for each in others):
                return False
    return True


def _settled(world: World, group: EpochGroup, partitions: set[int]) -> bool:
    """Settled: no heartbeat of its members and no end of the interval moves a stable group [25]."""
    if group.state is not ConsumerGroupState.STABLE:
        return True
    later = _later(world)
    after = [
        group_of(beat(each, number))
        for each in (world, later)
        for number, member in enumerate(world.members)
        if member.joined and member.id in group.members
    ]
    return all(
        each is not None and each.epoch == group.epoch and each.state is group.state
        for each in after
    )


def converges(world: World) -> bool:
    """Whether quiet rounds end with a stable group in which clients own all partitions."""
    count = next(iter(world.to.shard.image.partitions.values()))
    for _ in range(3 * len(world.members) + 3):
        for number in range(len(world.members)):
            world = beat(world, number)
            member = acknowledged(acknowledged(world.members[number]))
            world = world.having(number, member)
        for gone in _dead(world):
            world = expired(world, Expiry(GROUP, gone))
        world = _later(world)
    group = group_of(world)
    owned = sorted(p for member in world.members for p in member.owned)
    stands = group is not None and group.state is ConsumerGroupState.STABLE
    return stands and owned == list(range(count))


# States.


def key(world: World) -> Hashable:
    """What can still matter; epochs are counted from the group's."""
    group = group_of(world)
    if group is None:
        return (world.members, world.left)

    def since(epoch: int) -> int:
        return epoch - group.epoch - 3 if epoch > 0 else epoch

    members = tuple(
        (
            member.id,
            since(member.epoch),
            since(member.previous_epoch),
            member.state.value,
            frozenset(_numbers(member.assigned)),
            frozenset(_numbers(member.revoking)),
            frozenset(_numbers(group.targets.get(member.id, {}))),
        )
        for member in group.members.values()
    )
    clients = tuple(replace(member, epoch=since(member.epoch)) for member in world.members)
    owners = tuple((p, since(e)) for each in group.owner_epochs.values() for p, e in each.items())
    timers = tuple(sorted(each for each in world.to.shard.timers if each.startswith("reb")))
    over = not group.computed_ms or _interval_is_over(world.to, group)
    return (
        members,
        clients,
        frozenset(owners),
        timers,
        since(group.target_epoch),
        over,
        world.left,
    )


def copied(to: ConsumerCoordinator) -> ConsumerCoordinator:
    """A coordinator of its own; members and targets are never changed in place, and shared."""
    shard = to.shard
    made = ConsumerCoordinator(shard.settings, start_ms=shard.now)
    new = made.shard
    new.image = shard.image
    for due, deadline in shard.timers.deadlines().items():
        new.timers.schedule(due, deadline, None)
    for name, group in shard.groups.by_id.items():
        new.groups.by_id[name] = _copied_group(group)
    return made


def _copied_group(group: EpochGroup) -> EpochGroup:
    made = EpochGroup(group.id)
    made.__dict__.update(group.__dict__)
    made.members = _copied_slots(group.members)
    for name in ("targets", "statics"):
        setattr(made, name, dict(getattr(group, name)))
    for name in ("target_owners", "owner_epochs"):
        setattr(made, name, {topic: dict(each) for topic, each in getattr(group, name).items()})
    return made


def _copied_slots(table: SlotOrder[str, Any]) -> SlotOrder[str, Any]:
    made: SlotOrder[str, Any] = SlotOrder()
    for name in dict.__iter__(table):
        made[name] = table[name]
    made.capacity = table.capacity
    return made


def _numbers(owned: Any) -> set[int]:
    return {partition for each in owned.values() for partition in each}


def _owned(member: Any) -> set[int]:
    assigned: Owned = member.assigned
    return _numbers(assigned) | _numbers(member.revoking)


def as_log(group: EpochGroup) -> list[Any]:
    """The group as a compacted log has it: one record of each thing."""
    from fleet.sim.coordinator import consumer_records as wrote

    found: list[Any] = []
    for member in group.members.values():
        value_of_member = wrote.MemberValue.of(member)
        found.append(wrote.ConsumerRecord(wrote.MEMBER, group.id, member.id, value_of_member))
    epoch = wrote.EpochValue(group.epoch, group.metadata_hash)
    found.append(wrote.ConsumerRecord(wrote.EPOCH, group.id, None, epoch))
    for name, target in group.targets.items():
        value = wrote.TargetValue.of(target)
        found.append(wrote.ConsumerRecord(wrote.TARGET, group.id, name, value))
    computed = wrote.TargetEpochValue(group.target_epoch, group.computed_ms)
    found.append(wrote.ConsumerRecord(wrote.TARGET_EPOCH, group.id, None, computed))
    for member in group.members.values():
        current = wrote.CurrentValue.of(member)
        found.append(wrote.ConsumerRecord(wrote.CURRENT, group.id, member.id, current))
    return found
