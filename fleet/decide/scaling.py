"""Decides how many slots a group wants now.

Problem: every change of size costs a rebalance, and an autoscaler that follows a jumping lag causes
storms. Choice: growth is prompt (`up_after`, at once by default). Shrinking waits until every check
during `down_after`, at least two, wanted fewer slots. It then stops at the largest number that one
of them wanted. There are never more slots than members that can own a partition. The caller keeps
the memory between checks. Cost: a `fixed` number shrinks at once; so does a group above a lowered
`replicas.max`, even past `max_step`.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from fleet.config.spec import (
    ClassicWorker,
    DrainTimeScaling,
    ExternalScaling,
    FixedScaling,
    GroupSpec,
    LagScaling,
    PackedScaling,
    PartitionsScaling,
)
from fleet.config.topic_patterns import is_pattern, matches
from fleet.decide.assignments import NOBODY
from fleet.decide.drain_time import (
    AgeLimits,
    DrainAsk,
    DrainMemory,
    DrainSettings,
    PartitionLoad,
    WorkerRate,
    ask_by_rates,
)
from fleet.decide.hours import find_restraint, least_reason, least_slots
from fleet.model import GroupSnapshot, GroupState, LagCase, Member, TopicPartition
from fleet.slots import WorkerReport
from fleet.text import duration, plural

# How many members can own a partition [30]: range assigns topic by topic to the same first members,
# so that the largest topic is the bound; the other assignors use all partitions together.


def subscribed_topics(topics: Mapping[str, int], group: GroupSpec) -> dict[str, int]:
    """Returns the topics that the group subscribes to, with their partitions."""
    return {
        name: count
        for name, count in topics.items()
        if any(matches(entry, name) for entry in group.topics)
    }


def missing_topics(topics: Mapping[str, int], group: GroupSpec) -> tuple[str, ...]:
    """Returns named topics that do not exist; patterns are never missing."""
    return tuple(t for t in group.topics if not is_pattern(t) and not topics.get(t))


def unmatched_entries(topics: Mapping[str, int], group: GroupSpec) -> tuple[str, ...]:
    """Returns all entries of `topics` if none matches a topic yet; empty otherwise."""
    return () if subscribed_topics(expected_topics(topics, group), group) else group.topics


def expected_topics(topics: Mapping[str, int], group: GroupSpec) -> dict[str, int]:
    """Returns the topics after `create:` has created the missing ones."""
    if group.create is None:
        return dict(topics)
    made = dict.fromkeys(missing_topics(topics, group), group.create.partitions)
    return {**topics, **made}


def most_owners(topics: Mapping[str, int], group: GroupSpec) -> int:
    """Returns the most members that can own a partition; a missing topic counts 0."""
    counts = subscribed_topics(topics, group).values()
    if isinstance(group.worker, ClassicWorker) and group.worker.assignor == "range":
        return max(counts, default=0)
    return sum(counts)


def most_owners_reason(topics: Mapping[str, int], group: GroupSpec) -> str:
    """Returns why more members than `most_owners` make no sense, for a sentence."""
    counts = subscribed_topics(topics, group)
    if isinstance(group.worker, ClassicWorker) and group.worker.assignor == "range":
        largest = max(counts, key=lambda name: (counts[name], name), default="")
        return (
            f"range assigns no more members than the {most_owners(topics, group)} partitions of "
            f"{largest}"
        )
    return f"there are {most_owners(topics, group)} partitions"


_OTHERWISE: Final = "; otherwise: "
_NO_NUMBER: Final = "no number from "


def restraint_note(notes: Iterable[str]) -> str | None:
    """Returns the note of a plan whose policy is restrained, or gets no number of slots."""
    return next((n for n in notes if _OTHERWISE in n or n.startswith(_NO_NUMBER)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalNumber:
    """Holds the number of slots that another program serves for the policy external."""

    source: str
    """The address that served it."""
    wanted: int | None = None
    """None: it serves no number."""
    why: str = ""
    """Why there is no number."""


MAX_REMEMBERED = 256
"""Most requests kept; the oldest two become one, with the larger number and the later time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingMemory:
    """Remembers the requests since the policy first wanted more or fewer slots."""

    current: int | None = None
    """Slots at the last check; another number clears the memory."""
    up_since: float | None = None
    down_since: float | None = None
    looks: int = 0
    """Checks in a row that wanted fewer slots."""
    asked: tuple[tuple[float, int], ...] = ()
    """(time, wanted) of these checks, oldest first, numbers falling: the first in the window is
    the largest."""
    drain: DrainMemory | None = None
    """Rates and the last step up of drain_time and packed; outlives a change of size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Holds the wanted slots, the policy's raw number, and a sentence with the reason."""

    wanted: int
    raw: int
    sentence: str
    memory: ScalingMemory
    inputs: Mapping[str, float] = field(default_factory=dict)
    """Figures that the policy used."""
    alternatives: tuple[str, ...] = ()
    """What other numbers would lead to, one sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    raw: int
    why: str
    may_shrink: bool = True
    waits: str = ""
    """Why fewer slots wait, whatever `down_after` says."""
    drain: DrainAsk | None = None


def wanted_slots(
    *,
    spec: GroupSpec,
    group: GroupSnapshot | None,
    topics: Mapping[str, int],
    current: int,
    memory: ScalingMemory,
    now: float,
    quarantined: Collection[TopicPartition] = (),
    reports: Sequence[WorkerReport] = (),
    seen_at: float | None = None,
    changed_at: Sequence[float] = (),
    unit: str = "slot",
    explain: bool = False,
    external: ExternalNumber | None = None,
) -> Decision:
    """Decides once per check; `now` in wall-clock seconds, `memory` from the check before.

    seen_at: time of the snapshot of `group`. changed_at: when changes of the group began. unit:
    what `current` counts, for the sentence (an adopted Deployment has pods). explain: with
    alternatives. external: the number for the policy external.

    A stopped partition's lag does not count, since no worker can reduce it [30].
    """
    expected = expected_topics(topics, spec)
    if isinstance(spec.scaling, DrainTimeScaling | PackedScaling):
        workers = [WorkerRate(r.worker, r.records, r.busy_seconds) for r in reports]
        at = now if seen_at is None else seen_at
        drain = memory.drain or DrainMemory()
        ask = _asked_by_rates(
            spec,
            spec.scaling,
            group,
            expected,
            quarantined=quarantined,
            workers=workers,
            current=current,
            memory=drain,
            least=least_slots(spec, now),
            at=at,
            explain=explain,
        )
    elif isinstance(spec.scaling, ExternalScaling):
        ask = _asked_by_others(external or ExternalNumber(source=spec.scaling.url), current)
    else:
        ask = _asked(spec, group, expected, current, quarantined)
    decision = _decided(spec, expected, ask, current, memory=memory, now=now, unit=unit)
    if decision.wanted != current and (why := find_restraint(spec, now, changed_at)):
        sentence = f"{why}, stays at {plural(current, unit)}{_OTHERWISE}{decision.sentence}"
        decision = replace(decision, wanted=current, sentence=sentence)
    if ask.drain is None:
        return decision
    return replace(
        decision,
        memory=replace(decision.memory, drain=ask.drain.memory),
        inputs=ask.drain.inputs,
        alternatives=ask.drain.alternatives,
    )


def _decided(
    spec: GroupSpec,
    topics: Mapping[str, int],
    ask: _Ask,
    current: int,
    *,
    memory: ScalingMemory,
    now: float,
    unit: str,
) -> Decision:
    target, limits = _bounded(spec, topics, ask.raw, current, now=now, unit=unit)
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
        if ask.waits and wanted < current:
            wanted, how = current, f"{target} wanted, but {ask.waits}, stays at"
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
        # Not `most_owners`: under range two topics of 12 are still 24 partitions of work.
        total = sum(subscribed_topics(topics, spec).values())
        return _Ask(
            raw=math.ceil(total / policy.per_worker),
            why=f"{total} partitions, {policy.per_worker} per worker",
        )
    assert isinstance(policy, LagScaling)
    return _asked_by_lag(policy, group, current, quarantined)


def _asked_by_others(external: ExternalNumber, current: int) -> _Ask:
    if external.wanted is None:
        reason = f" ({external.why})" if external.why else ""
        why = f"{_NO_NUMBER}{external.source}{reason}"
        return _Ask(raw=current, why=why, may_shrink=False)
    return _Ask(raw=external.wanted, why=f"{external.source} asks for {external.wanted}")


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
        # A partly known lag may cause growth, but never shrinking.
        return _Ask(raw=raw, why=f"{why}, {hidden} partitions unknown", may_shrink=False)
    return _Ask(raw=raw, why=why)


_ASSIGNORS: Final = ("range", "roundrobin", "sticky", "cooperative-sticky")


def _asked_by_rates(
    spec: GroupSpec,
    policy: DrainTimeScaling | PackedScaling,
    group: GroupSnapshot | None,
    topics: Mapping[str, int],
    *,
    quarantined: Collection[TopicPartition],
    workers: Sequence[WorkerRate],
    current: int,
    memory: DrainMemory,
    least: int,
    at: float,
    explain: bool,
) -> _Ask:
    if group is None:
        return _Ask(raw=current, why="lag unknown", may_shrink=False)
    counts = subscribed_topics(topics, spec)
    places = {each.member_id: place for place, each in enumerate(_in_order(group.members))}
    known = {(each.tp.topic, each.tp.partition): each for each in group.partitions}
    stopped = {(tp.topic, tp.partition) for tp in quarantined}
    loads = []
    for topic, count in counts.items():
        for number in range(count):
            place = (topic, number)
            seen, name = known.get(place), f"{topic}-{number}"
            if seen is None:
                loads.append(PartitionLoad(name, None, None, 0, NOBODY))
                continue
            owner = NOBODY if seen.owner is None else places.get(seen.owner, NOBODY)
            loads.append(
                PartitionLoad(name, seen.log_end, seen.committed, seen.lag, owner, place in stopped)
            )
    if not loads:
        return _Ask(raw=current, why="no partition known", may_shrink=False)
    if spec.worker is None:  # as Kafka reports an external group
        assignor = group.assignor if group.assignor in _ASSIGNORS else "cooperative-sticky"
        protocol = "consumer" if group.type == "consumer" else str(assignor)
    else:
        worker = spec.worker
        protocol = worker.assignor if isinstance(worker, ClassicWorker) else "consumer"
    ages = None
    if isinstance(policy, DrainTimeScaling):
        ages = AgeLimits(policy.target, policy.starts_in)
    settings = DrainSettings(
        ages=ages,
        idle=policy.idle,
        capacity=policy.records_per_second,
        protocol=protocol,
        topics=tuple(counts.values()),
        least=min(least, len(loads)),
        most=max(1, min(spec.replicas.max, most_owners(topics, spec))),
    )
    settled = group.state is GroupState.STABLE and len(group.members) >= current
    ask = ask_by_rates(
        settings,
        loads,
        workers,
        current=current,
        settled=settled,
        memory=memory,
        at=at,
        explain=explain,
    )
    return _Ask(raw=ask.wanted, why=ask.why, may_shrink=ask.may_shrink, waits=ask.waits, drain=ask)


def _in_order(members: Sequence[Member]) -> list[Member]:
    """Returns members in the order of their slots; the last ones leave first."""

    def place(member: Member) -> tuple[int, int, str]:
        head, _, tail = (member.instance_id or "").rpartition("-")
        numbered = bool(head) and tail.isascii() and tail.isdigit()
        return (not numbered, int(tail) if numbered else 0, member.member_id)

    return sorted(members, key=place)


def _bounded(
    spec: GroupSpec,
    topics: Mapping[str, int],
    raw: int,
    current: int,
    *,
    now: float,
    unit: str,
) -> tuple[int, str]:
    """Limits the policy's number to replicas and to what can own a partition, with the reason."""
    low, high = least_slots(spec, now), spec.replicas.max
    target, limits = raw, ""
    if raw < low:
        target, limits = low, f", {least_reason(spec, now, unit)}"
    elif raw > high:
        target, limits = high, f", at most {high}"
    cap = most_owners(topics, spec)
    if cap == 0:
        names = ", ".join(missing_topics(topics, spec)) or ", ".join(spec.topics)
        return current, f"; no partition of {names} exists yet"
    if target > cap:
        target, limits = cap, f", capped at {cap}: {most_owners_reason(topics, spec)}"
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
        return (
            current,
            memory,
            f"{target} wanted, but up_after lasts {duration(left)} more, stays at",
        )
    return _stepped(spec, current, target), memory, "from"


def _shrink(
    spec: GroupSpec, target: int, current: int, memory: ScalingMemory, now: float
) -> tuple[int, ScalingMemory, str]:
    since = memory.down_since
    if since is None or since > now:
        memory, since = ScalingMemory(current=current), now
    kept = [ask for ask in memory.asked if ask[1] > target]
    kept.append((now, target))
    # Windowed maximum: requests older than the window go, but each lasts until the next.
    start = now - spec.scaling.down_after
    kept = [ask for ask in kept if ask[0] >= start]
    if len(kept) > MAX_REMEMBERED:
        kept = [(kept[1][0], kept[0][1]), *kept[2:]]
    looks = memory.looks + 1
    memory = replace(memory, up_since=None, down_since=since, looks=looks, asked=tuple(kept))
    left = spec.scaling.down_after - (now - since)
    if looks < 2 or left > 0:
        wait = f"but down_after lasts {duration(left)} more" if left > 0 else "to be confirmed"
        return current, memory, f"{target} wanted, {wait}, stays at"
    return _stepped(spec, current, kept[0][1]), memory, "from"


# A number of slots that a person pins for a time. Every manager reads it before it asks the policy.


NOTE = "pin"
"""Key of a group's pin in the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Pins a number of slots until a wall time."""

    wanted: int
    until: float
    by: str

    def sentence(self, now: float, unit: str = "slot") -> str:
        """Describes the pin."""
        at = datetime.fromtimestamp(self.until, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
        left = duration(max(0.0, self.until - now))
        return f"{plural(self.wanted, unit)} pinned by {self.by} for {left} more, until {at}"


def apply_pin(decision: Decision, pin: Pin, *, now: float, unit: str = "slot") -> Decision:
    """Applies a pin to a decision; the sentence still has the policy's number."""
    sentence = f"{pin.sentence(now, unit)}; the policy alone: {decision.sentence}"
    return replace(decision, wanted=pin.wanted, sentence=sentence)


def explain_undo(asked: Decision, wanted: int, group: str) -> str | None:
    """Returns how the policy will change `wanted` slots; None if it keeps them.

    `asked` is the policy's decision for a group that has them already.
    """
    if asked.wanted == wanted and replace(asked.memory, drain=None) == ScalingMemory(
        current=wanted
    ):
        return None
    return (
        f"the policy of the group (`scaling:` in fleet.yaml) will undo this at its next check: "
        f"{asked.sentence}; to keep "
        f"{plural(wanted, 'slot')} for two hours, run `fleet scale {group} {wanted} --pin 2h`"
    )
