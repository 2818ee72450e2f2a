"""What a person should know of a plan beside its steps: caps, and promises that do not hold.

Where a promise cannot be kept (dynamic members, other people's consumers, standby 0), the
plan says so before it acts; these notes hold nothing up, unlike refusals.
"""

from fleet.decide.capacity import (
    expected_topics,
    missing_topics,
    ownable,
    ownable_reason,
    unmatched,
)
from fleet.decide.world import GroupWorld
from fleet.model import Step, StepKind
from fleet.text import few, plural, slots_of


def capped(world: GroupWorld, wanted: int) -> tuple[int, tuple[str, ...]]:
    """What is wanted, within replicas.max and what can own a partition, and why it is less."""
    topics = expected_topics(world.topics, world.spec)
    cap, highest = ownable(topics, world.spec), world.spec.replicas.max
    shut = _without_successor(world)
    most = highest - len(shut)
    if wanted > most and most <= (cap or most):
        and_shut = f", and {slots_of(shut)} {'is' if len(shut) == 1 else 'are'} quarantined"
        why = f"replicas.max is {highest}{and_shut if shut else ''}"
        return most, (f"{wanted} slots asked, capped at {most}: {why}",)
    if cap and wanted > cap:
        why = ownable_reason(topics, world.spec)
        return cap, (f"{wanted} slots asked, capped at {cap}: {why}, one more would idle",)
    return max(0, wanted), ()


def _without_successor(world: GroupWorld) -> list[int]:
    """Quarantined slots that no number can stand in for: on Kubernetes only those below
    `replicas.max` have a Lease.
    """
    if world.spec.runtime.kind != "kubernetes":
        return []
    return sorted(n for n in world.gate.quarantined if n < world.spec.replicas.max)


def promises(world: GroupWorld, steps: tuple[Step, ...], wanted: int) -> tuple[str, ...]:
    """What a person should know of promises that do not hold here."""
    spec, notes = world.spec, []
    changing = any(step.kind is not StepKind.WARM for step in steps)
    if spec.replicas.standby == 0 and wanted > 0:
        notes.append(
            "standby is 0: a crash or a roll waits for a worker to start, so the promises of a "
            "takeover without rebalance and of short pauses do not hold"
        )
    if spec.worker is not None and spec.worker.membership == "dynamic" and changing:
        notes += _dynamic_notes(steps)
    notes += _stranger_notes(world)
    missing = missing_topics(world.topics, spec)
    if missing and spec.create is not None and steps:
        notes.append(
            f"{', '.join(missing)} will be created with {spec.create.partitions} partitions"
        )
    for number in sorted(world.gate.quarantined):
        notes.append(f"slot {number} is quarantined: another process uses {spec.group}-{number}")
    for mark in world.quarantines:
        notes.append(
            f"{mark.tp} is stopped at offset {mark.offset}"
            f"{'' if mark.of_log else f' after {mark.attempts} attempts'}: {mark.error}"
        )
    if changing and not world.readable_log:
        notes.append(
            "__consumer_offsets is not readable: the receipt will say unverified, not equal"
        )
    return tuple(notes)


def _dynamic_notes(steps: tuple[Step, ...]) -> list[str]:
    notes = ["membership is dynamic: rolls and crashes rebalance; static members would not"]
    waves = [step for step in steps if step.kind is StepKind.ROLL]
    if waves:
        least = sum(step.price.rebalances_min for step in waves)
        most = sum(step.price.rebalances_max for step in waves)
        notes.append(
            f"the roll takes {plural(len(waves), 'wave')} of up to "
            f"{plural(len(waves[0].slots) // 2, 'member')} (rollout.max_parallel), "
            f"{least if least == most else f'{least} to {most}'} rebalances; it needs room for as "
            "many workers more while a wave lasts"
        )
    return notes


def _stranger_notes(world: GroupWorld) -> list[str]:
    strangers = world.strangers()
    named = sorted(m.instance_id for m in strangers if m.instance_id is not None)
    dynamic = sorted(f"{m.client_id}@{m.host}" for m in strangers if m.instance_id is None)
    notes = []
    if named:
        notes.append(
            f"{plural(len(named), 'foreign static member')} in the group ({few(named)}): their "
            "rebalances are counted apart, moved partitions cannot be foretold"
        )
    if dynamic:
        notes.append(
            f"{plural(len(dynamic), 'member')} without an instance id in the group "
            f"({few(dynamic)}): their restarts rebalance, and they are not ours to change"
        )
    return notes


def why_nothing(world: GroupWorld, wanted: int) -> tuple[str, ...]:
    """Why a plan has no steps."""
    if world.spec.worker is None:
        return ()
    if missing_topics(world.topics, world.spec) and world.spec.create is None:
        return ()  # which is a refusal
    nothing = unmatched(world.topics, world.spec)
    if nothing:
        return (f"nothing to do: no topic matches {' or '.join(nothing)} yet; it is waited for",)
    be = "is" if wanted == 1 else "are"
    what = f"{plural(wanted, 'slot')} of revision {world.revision}"
    return (f"nothing to do: {what} {be} wanted and there",)
