"""How many slots a group wants now.

Problem: every change of size costs a rebalance, lag jumps, and an autoscaler that follows it
sets off storms. Choice: growing is prompt (`up_after`, at once by default); shrinking waits
until it was asked for at every look during `down_after`, at least twice, and then goes only
as far as the most that was asked for in that time. Never more slots than members that can
own a partition. The memory between looks is a value that the caller keeps.
Cost: a `fixed` number is a declaration, not a measurement, and shrinks at once; so does a group
that is above a lowered `replicas.max`, down to that and past `max_step`.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from fleet.config.spec import ClassicWorker, FixedScaling, GroupSpec, LagScaling, PartitionsScaling
from fleet.config.topic_patterns import is_pattern, matches
from fleet.model import GroupSnapshot, LagCase, TopicPartition
from fleet.text import duration, plural

# How many members can own anything [30]: range gives out topic by topic, to the same first members,
# so the largest topic is the bound; the other assignors deal from all partitions together.


def subscribed(topics: Mapping[str, int], group: GroupSpec) -> dict[str, int]:
    """The topics of the mapping that the group's `topics` name or match, with partitions."""
    return {
        name: count
        for name, count in topics.items()
        if any(matches(entry, name) for entry in group.topics)
    }


def missing_topics(topics: Mapping[str, int], group: GroupSpec) -> tuple[str, ...]:
    """Named topics that do not exist; patterns are never missing."""
    return tuple(t for t in group.topics if not is_pattern(t) and not topics.get(t))


def unmatched(topics: Mapping[str, int], group: GroupSpec) -> tuple[str, ...]:
    """The entries of `topics` where none of them is there yet; empty where anything is."""
    return () if subscribed(expected_topics(topics, group), group) else group.topics


def expected_topics(topics: Mapping[str, int], group: GroupSpec) -> dict[str, int]:
    """The topics as they will be once `create:` has made the missing ones."""
    if group.create is None:
        return dict(topics)
    made = dict.fromkeys(missing_topics(topics, group), group.create.partitions)
    return {**topics, **made}


def ownable(topics: Mapping[str, int], group: GroupSpec) -> int:
    """Most members that own at least one partition; a missing topic counts 0."""
    counts = subscribed(topics, group).values()
    if isinstance(group.worker, ClassicWorker) and group.worker.assignor == "range":
        return max(counts, default=0)
    return sum(counts)


def ownable_reason(topics: Mapping[str, int], group: GroupSpec) -> str:
    """Why no more members than `ownable` make sense, for a sentence."""
    counts = subscribed(topics, group)
    if isinstance(group.worker, ClassicWorker) and group.worker.assignor == "range":
        largest = max(counts, key=lambda name: (counts[name], name), default="")
        return f"under range no more than the {ownable(topics, group)} partitions of {largest}"
    return f"there are {ownable(topics, group)} partitions"


MAX_REMEMBERED = 256
"""Asks kept; the oldest two become one, at the larger figure and the later time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingMemory:
    """What was asked for since it was first more, or less, than there is; empty where it is not."""

    current: int | None = None
    """Slots at the last look: another number begins anew."""
    up_since: float | None = None
    down_since: float | None = None
    looks: int = 0
    """Looks in a row that asked for less."""
    asked: tuple[tuple[float, int], ...] = ()
    """(time, wanted) of those looks, oldest first, figures falling: the first in the window is
    its largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """wanted slots now; raw = what the policy alone says; the sentence tells both and why."""

    wanted: int
    raw: int
    sentence: str
    memory: ScalingMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    raw: int
    why: str
    may_shrink: bool = True


def wanted_slots(
    *,
    spec: GroupSpec,
    group: GroupSnapshot | None,
    topics: Mapping[str, int],
    current: int,
    memory: ScalingMemory,
    now: float,
    quarantined: Collection[TopicPartition] = (),
    unit: str = "slot",
) -> Decision:
    """Decide once per look; `now` in wall-clock seconds, `memory` from the look before.

    unit: what `current` counts, for the sentence (other people's consumers have pods, no slots).

    A quarantined partition's lag does not count: no worker can reduce it [30].
    """
    expected = expected_topics(topics, spec)
    ask = _asked(spec, group, expected, current, quarantined)
    target, limits = _bounded(spec, expected, ask.raw, current)
    memory = memory if memory.current == current else ScalingMemory(current=current)
    if current in {0, target}:
        why = f"{ask.why}{limits}: {plural(target, unit)}"
        return Decision(wanted=target, raw=ask.raw, sentence=why, memory=_quiet(current))
    if target > current:
        wanted, memory, how = _grow(spec, target, current, memory, now)
    elif not ask.may_shrink:
        wanted, memory, how = current, _quiet(current), "stays at"
    elif isinstance(spec.scaling, FixedScaling):
        wanted, memory, how = _stepped(spec, current, target), _quiet(current), "from"
    else:
        wanted, memory, how = _shrink(spec, target, current, memory, now)
    if wanted > spec.replicas.max:
        wanted, memory = spec.replicas.max, _quiet(current)
        limits, how = f", at most {wanted}", "from"
    tail = f"{current} to {plural(wanted, unit)}" if wanted != current else f"{current}"
    return Decision(
        wanted=wanted, raw=ask.raw, sentence=f"{ask.why}{limits}: {how} {tail}", memory=memory
    )


def _quiet(current: int) -> ScalingMemory:
    return ScalingMemory(current=current)


def _asked(
    spec: GroupSpec,
    group: GroupSnapshot | None,
    topics: Mapping[str, int],
    current: int,
    quarantined: Collection[TopicPartition],
) -> _Ask:
    policy = spec.scaling
    if isinstance(policy, FixedScaling):
        return _Ask(raw=policy.workers, why=f"fixed at {policy.workers}")
    if isinstance(policy, PartitionsScaling):
        # Not `ownable`: under range two topics of 12 are still 24 partitions of work.
        total = sum(subscribed(topics, spec).values())
        return _Ask(
            raw=math.ceil(total / policy.per_worker),
            why=f"{total} partitions, {policy.per_worker} per worker",
        )
    return _asked_by_lag(policy, group, current, quarantined)


def _asked_by_lag(
    policy: LagScaling,
    group: GroupSnapshot | None,
    current: int,
    quarantined: Collection[TopicPartition],
) -> _Ask:
    seen = [p for p in group.partitions if p.tp not in quarantined] if group is not None else []
    known = [p.lag for p in seen if p.lag is not None]
    if not known:
        return _Ask(raw=current, why="lag unknown", may_shrink=False)
    lag = sum(known)
    raw = math.ceil(lag / policy.records_per_worker)
    why = f"{lag:,} records waiting, {policy.records_per_worker:,} per worker"
    hidden = sum(1 for p in seen if p.lag is None and p.case is LagCase.UNKNOWN)
    if hidden:
        # A part of the lag is a reason to grow, never one to shrink.
        return _Ask(raw=raw, why=f"{why}, {hidden} partitions unknown", may_shrink=False)
    return _Ask(raw=raw, why=why)


def _bounded(spec: GroupSpec, topics: Mapping[str, int], raw: int, current: int) -> tuple[int, str]:
    """The policy's figure within replicas and what members can own, with the words for it."""
    low, high = spec.replicas.min, spec.replicas.max
    target, limits = raw, ""
    if raw < low:
        target, limits = low, f", at least {low}"
    elif raw > high:
        target, limits = high, f", at most {high}"
    cap = ownable(topics, spec)
    if cap == 0:
        names = ", ".join(missing_topics(topics, spec)) or ", ".join(spec.topics)
        return current, f"; no partition of {names} exists yet"
    if target > cap:
        target, limits = cap, f", capped at {cap}: {ownable_reason(topics, spec)}"
    return target, limits


def _stepped(spec: GroupSpec, current: int, target: int) -> int:
    step = spec.scaling.max_step
    if step is None:
        return target
    return max(current - step, min(current + step, target))


def _grow(
    spec: GroupSpec, target: int, current: int, memory: ScalingMemory, now: float
) -> tuple[int, ScalingMemory, str]:
    since = memory.up_since
    since = now if since is None or since > now else since
    memory = ScalingMemory(current=current, up_since=since)
    if now - since < spec.scaling.up_after:
        left = spec.scaling.up_after - (now - since)
        return current, memory, f"{target} asked, up_after has {duration(left)} to go, stays at"
    return _stepped(spec, current, target), memory, "from"


def _shrink(
    spec: GroupSpec, target: int, current: int, memory: ScalingMemory, now: float
) -> tuple[int, ScalingMemory, str]:
    since = memory.down_since
    if since is None or since > now:
        memory, since = ScalingMemory(current=current), now
    kept = [ask for ask in memory.asked if ask[1] > target]
    kept.append((now, target))
    # Windowed maximum: what is older than the window goes, but an ask holds until its next.
    start = now - spec.scaling.down_after
    kept = [ask for ask in kept if ask[0] >= start]
    if len(kept) > MAX_REMEMBERED:
        kept = [(kept[1][0], kept[0][1]), *kept[2:]]
    looks = memory.looks + 1
    memory = replace(memory, up_since=None, down_since=since, looks=looks, asked=tuple(kept))
    left = spec.scaling.down_after - (now - since)
    if looks < 2 or left > 0:
        wait = f"down_after has {duration(left)} to go" if left > 0 else "one more look"
        return current, memory, f"{target} asked, {wait}, stays at"
    return _stepped(spec, current, kept[0][1]), memory, "from"


# A number that a person holds for a time, beside the slots, where every manager reads it before it
# asks the policy.


NOTE = "pin"
"""Under which the store keeps a group's pin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """So many slots until a wall time."""

    wanted: int
    until: float
    by: str

    def sentence(self, now: float, unit: str = "slot") -> str:
        """How many, by whom, how long still."""
        at = datetime.fromtimestamp(self.until, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
        left = duration(max(0.0, self.until - now))
        return f"held at {plural(self.wanted, unit)} by {self.by} for {left} more, until {at}"


def pinned(decision: Decision, pin: Pin, *, now: float, unit: str = "slot") -> Decision:
    """What is wanted while a pin is in force; the sentence tells what the policy says."""
    said = f"{pin.sentence(now, unit)}; the policy alone: {decision.sentence}"
    return replace(decision, wanted=pin.wanted, sentence=said)


def undone_by(asked: Decision, wanted: int, group: str) -> str | None:
    """What the policy will make of `wanted` slots; None where it leaves them.

    `asked` is its answer to a group that has them already.
    """
    if asked.wanted == wanted and asked.memory == ScalingMemory(current=wanted):
        return None
    return (
        f"the policy decides again at the next look, and will undo this: {asked.sentence}; "
        f"`fleet scale {group} {wanted} --pin 2h` keeps {plural(wanted, 'slot')} for that long"
    )
