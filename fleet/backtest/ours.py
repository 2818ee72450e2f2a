"""Lets a back-test ask the policies of fleet.yaml, by the same function as the manager.

Problem: a copy of a policy in a simulator drifts from the one that acts. Choice: each observation
becomes the snapshot that Kafka and the workers would have shown, with offsets and reports. Cost: a
few microseconds per partition and decision.
"""

from collections.abc import Mapping
from typing import Final

from fleet.backtest.replay import Observation, Rule
from fleet.config.spec import GroupSpec
from fleet.decide.assignments import NOBODY, Owners
from fleet.decide.scaling import Decision, ScalingMemory, wanted_slots
from fleet.model import GroupSnapshot, GroupState, LagCase, Member, PartitionState, TopicPartition
from fleet.slots import WorkerReport

_TOPIC: Final = "load"
_MOST_CHANGES: Final = 60
"""Changes that a rule remembers: the most that `changes_per_hour` can be."""


def replayed_spec(
    scaling: Mapping[str, object],
    *,
    partitions: int,
    least: int = 1,
    protocol: str = "cooperative-sticky",
) -> GroupSpec:
    """Returns a group of that size with a policy as fleet.yaml declares it.

    protocol: its assignor, or consumer (KIP-848); eager ones but range count as sticky.
    """
    worker: dict[str, object] = {"entrypoint": "job:process", "protocol": "consumer"}
    if protocol != "consumer":
        assignor = "range" if protocol == "range" else "cooperative-sticky"
        worker |= {"protocol": "classic", "assignor": assignor}
    return GroupSpec.model_validate(
        {
            "group": "replay",
            "topics": [_TOPIC],
            "worker": worker,
            "replicas": {"min": least, "max": partitions},
            "scaling": scaling,
        }
    )


class PolicyRule:
    """Asks a policy of fleet.yaml, and remembers what the store would."""

    def __init__(self, spec: GroupSpec) -> None:
        self.spec = spec
        self.memory = ScalingMemory()
        self.last: Decision | None = None
        self._changed_at: list[float] = []
        self._committed: list[float] = []
        self._owners: Owners | None = None
        self._members: tuple[Member, ...] = ()
        self._tps: list[TopicPartition] = []
        self._records = 0.0
        self._busy = 0.0

    def __call__(self, seen: Observation) -> int:
        """Returns the wanted number; while workers start, the present one."""
        count = len(seen.waiting)
        self._committed = self._committed or [0.0] * count
        for number, rate in enumerate(seen.reads):
            self._committed[number] += rate * seen.every
        self._records += sum(seen.reads) * seen.every
        self._busy += seen.busy_seconds
        decision = wanted_slots(
            spec=self.spec,
            group=self._group(seen),
            topics={_TOPIC: count},
            current=seen.members,
            memory=self.memory,
            now=seen.at,
            changed_at=self._changed_at,
            reports=(_report(self._records, self._busy),),
        )
        self.memory, self.last = decision.memory, decision
        if seen.settled and decision.wanted != seen.members:
            self._changed_at = [*self._changed_at[-_MOST_CHANGES:], seen.at]
        return decision.wanted if seen.settled else seen.members + seen.starting

    def _group(self, seen: Observation) -> GroupSnapshot | None:
        if seen.owners != self._owners:
            self._owners = seen.owners
            self._tps = [TopicPartition(_TOPIC, number) for number in range(len(seen.owners))]
            self._members = tuple(
                Member(
                    member_id=f"replay-{place}",
                    instance_id=f"replay-{place}",
                    client_id="",
                    host="",
                    partitions=frozenset(
                        tp
                        for tp, owner in zip(self._tps, seen.owners, strict=True)
                        if owner == place
                    ),
                )
                for place in range(seen.members)
            )
        return GroupSnapshot(
            group=self.spec.group,
            exists=True,
            state=GroupState.STABLE if seen.settled else GroupState.REBALANCING,
            type="classic",
            assignor=None,
            members=self._members,
            partitions=tuple(
                PartitionState(
                    tp=tp,
                    committed=int(committed),
                    log_start=0,
                    log_end=int(committed + waiting),
                    lag=int(waiting),
                    lag_seconds=None,
                    case=LagCase.OK,
                    owner=None if owner == NOBODY else self._members[owner].member_id,
                )
                for tp, committed, waiting, owner in zip(
                    self._tps, self._committed, seen.waiting, seen.owners, strict=True
                )
            ),
        )


def policy_rule(
    scaling: Mapping[str, object],
    *,
    partitions: int,
    least: int = 1,
    protocol: str = "cooperative-sticky",
) -> Rule:
    """Returns the rule of a policy as fleet.yaml declares it."""
    spec = replayed_spec(scaling, partitions=partitions, least=least, protocol=protocol)
    return PolicyRule(spec)


def _report(records: float, busy: float) -> WorkerReport:
    return WorkerReport(
        worker="all",
        group="replay",
        revision="",
        phase="active",
        slot=0,
        counter=0,
        http_port=None,
        records=int(records),
        busy_seconds=busy,
    )
