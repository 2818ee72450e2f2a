"""Small worlds to decide about: a group as Kafka tells it, slots, workers, all consistent."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fleet.config.settings import WorkerSettings, revision_of
from fleet.config.spec import GroupSpec
from fleet.decide.plans import range_owners
from fleet.decide.state_snapshot import StateSnapshot
from fleet.model import GroupSnapshot, GroupState, LagCase, Member, PartitionState, TopicPartition
from fleet.slots import Phase, Slot, SlotTargets, WorkerProcess
from tests.support.declared import group_spec, settings_of
from tests.support.seen_groups import group_seen, member_seen, partition_seen

NOW = 1_000_000.0
GROUP = "orders"


def spec(**changes: Any) -> GroupSpec:
    """A fleet on topic `orders`; changes are fleet.yaml keys, `worker` merged."""
    usual = {
        "replicas": {"min": 1, "max": 50, "standby": 1},
        "scaling": {"policy": "lag", "records_per_worker": 100},
    }
    return group_spec(GROUP, **{**usual, **changes})


def revision(fleet: GroupSpec, code: str = "code") -> str:
    """The revision of a fleet with that code."""
    return revision_of(fleet, code)


def settings(fleet: GroupSpec, code: str = "code") -> WorkerSettings:
    """What was published for that revision."""
    return settings_of(fleet, revision=revision(fleet, code), code_digest=code)


def member(
    name: str, partitions: frozenset[TopicPartition] = frozenset(), **changes: Any
) -> Member:
    """A static member; its member id begins with its instance id, as the coordinator makes it."""
    return member_seen(
        **{"member_id": f"{name}-uuid", "instance_id": name, "partitions": partitions, **changes}
    )


def lagging(
    *lags: int | None, topic: str = "orders", case: LagCase = LagCase.OK
) -> tuple[PartitionState, ...]:
    """Partitions of a topic with these lags."""
    return tuple(
        partition_seen(number, lag, topic=topic, case=case if lag is not None else LagCase.UNKNOWN)
        for number, lag in enumerate(lags)
    )


def group_of(
    members: tuple[Member, ...],
    *,
    state: GroupState | None = None,
    kind: str = "classic",
    assignor: str | None = "cooperative-sticky",
    partitions: tuple[PartitionState, ...] = (),
) -> GroupSnapshot:
    """The group as one snapshot shows it."""
    return group_seen(
        GROUP,
        state=state or (GroupState.STABLE if members else GroupState.EMPTY),
        type=kind,
        assignor=assignor if members else None,
        members=members,
        partitions=partitions,
    )


def state_snapshot(
    fleet: GroupSpec | None = None,
    *,
    held: int | tuple[int, ...] = 0,
    runs: tuple[GroupSpec, str] | None = None,
    code: str = "code",
    topics: Mapping[str, int] | None = None,
    **changes: Any,
) -> StateSnapshot:
    """A settled group whose `held` slots have owners, members and one standby beside.

    `runs` = (fleet, code) that the slots run; by default what is wanted.
    """
    fleet = fleet or spec()
    topics = {"orders": 12} if topics is None else topics
    numbers = tuple(range(held)) if isinstance(held, int) else held
    ran, ran_code = runs or (fleet, code)
    names = [f"{GROUP}-{n}" for n in numbers]
    owners = range_owners(names, {t: c for t, c in topics.items() if t in fleet.topics})
    members = tuple(
        member(name, frozenset(tp for tp, owner in owners.items() if owner == name))
        for name in names
    )
    kind = ran.worker.protocol if ran.worker is not None else "classic"
    assignor = getattr(ran.worker, "assignor", None)
    slots = tuple(
        Slot(
            group=GROUP,
            number=n,
            owner=f"w{n}",
            token=1,
            phase=Phase.ACTIVE,
            clean=False,
            member_id=f"{GROUP}-{n}-uuid",
            revision=revision(ran, ran_code),
        )
        for n in numbers
    )
    processes = tuple(
        WorkerProcess(
            name=name,
            group=GROUP,
            revision=revision(ran, ran_code),
            wanted=True,
            running=True,
            restarts=0,
        )
        for name in [
            *(f"w{n}" for n in numbers),
            *(f"s{i}" for i in range(fleet.replicas.standby if numbers else 0)),
        ]
    )
    made = StateSnapshot(
        spec=fleet,
        mode="act",
        cluster="main",
        snapshot_at=NOW - 1,
        group=group_of(members, kind=kind, assignor=assignor) if numbers else None,
        topics=topics,
        targets=SlotTargets(group=GROUP, version=1, open=frozenset(numbers)),
        slots=slots,
        reports=(),
        processes=processes,
        change=None,
        change_alive=False,
        pauses=(),
        stopped_partitions=(),
        revision=revision(fleet, code),
        published={revision(ran, ran_code): settings(ran, ran_code)},
    )
    return replace(made, **changes)


def without_owner(seen: StateSnapshot, number: int) -> StateSnapshot:
    """The same world after the owner of one slot let go; its member is still in the group."""
    slots = tuple(
        replace(s, owner=None, phase=Phase.FREE) if s.number == number else s for s in seen.slots
    )
    return replace(seen, slots=slots)
