"""What scaling other people's consumers will cost, by the same model. Pure.

Problem: their plan's promise is as wide as the step. Choice: their members are played as
librdkafka's with Kafka's timeouts: pods that start join 2 s apart, pods that stop leave together,
and what is left of static members leaves in one request a second later. Cost: their heartbeats and
batches are not known; where members run elsewhere, too, or a pod has none, nothing is said.
"""

import random
from dataclasses import replace
from typing import Final

from fleet.decide.adopted import Adopted, members_of
from fleet.decide.forecast.expected_costs import StepCost, priced_by, summed
from fleet.decide.forecast.recorded_groups import RecordedGroup, modelled, scaled_to
from fleet.model import GroupSnapshot, Plan
from fleet.sim.scenarios.group_story import Happening, Scenario
from fleet.sim.scenarios.play import play

MOST_PODS: Final = 48
MOST_PARTITIONS: Final = 384
_RUNS: Final = 3
_BEGINS: Final = 60_000
_SEEN_AFTER: Final = 1_000
"""Milliseconds from the end of static members to the request that names them."""


def foretold_of_pods(plan: Plan, group: GroupSnapshot | None, adopted: Adopted) -> Plan:
    """The plan of `make_adopted_plan` with what is expected, as far as it can be said."""
    found = _played(group, adopted)
    if found is None or len(plan.steps) != 1 or not plan.wanted or plan.wanted > MOST_PODS:
        return plan
    cost = _cost(found, plan.wanted)
    if cost is None:
        return plan
    (step,) = plan.steps
    return replace(plan, steps=(replace(step, price=priced_by(step.price, cost, None)),))


def _played(group: GroupSnapshot | None, adopted: Adopted) -> RecordedGroup | None:
    """One member in each pod, and nobody besides; None where it is otherwise, or too large."""
    if group is None or not group.exists:
        return None
    ours = members_of(group, adopted)
    if len(ours) != adopted.replicas or len(group.members) != len(ours):
        return None
    protocol = modelled(group.type, group.assignor)
    partitions = len({tp for member in ours for tp in member.partitions})
    if protocol is None or not 0 < partitions <= MOST_PARTITIONS or len(ours) > MOST_PODS:
        return None
    static = all(member.instance_id is not None for member in ours)
    return RecordedGroup(len(ours), static, partitions, protocol)


def _cost(found: RecordedGroup, members: int) -> StepCost | None:
    runs = []
    for seed in range(_RUNS):
        rng = random.Random(seed)
        runs.append(play(_story(found, members, rng), rng))
    return summed(runs)


def _story(found: RecordedGroup, members: int, rng: random.Random) -> Scenario:
    usual = scaled_to(found, members, None, rng)
    going = found.members - members
    if going < 0:
        return usual
    at = _BEGINS + rng.randint(0, usual.heartbeat_interval)
    if found.static:
        left = Happening(at, "batched-leave", members, _SEEN_AFTER, together=going)
    else:
        left = Happening(at, "leave", members, together=going)
    return usual._replace(happenings=(left,))
