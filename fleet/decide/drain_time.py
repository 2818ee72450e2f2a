"""Sizes a group by the time its members need to read what waits. Pure.

Problem: a threshold of waiting records says neither how late a record is nor what a worker can do,
and each change costs a rebalance. Choice: a rate and a backlog for each partition, under the
group's real assignor, against the capacity of one worker. The group grows when a member would let
a record become older than `target` before help could arrive, and then to the right size at once. It
shrinks when idle slots have cost as much as a rebalance is worth. A partition that one worker
cannot read is named, and gets at most a member of its own; a stopped one is not scaled for. A step
up that did not raise the throughput is undone and remembered. `packed` shares all but the ages, and
says what a packing would save. Cost: one check is not enough, since a rate needs two.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from fleet.decide.assignments import NOBODY, Owners, owners_after
from fleet.decide.packing import members_of, pack
from fleet.text import duration, few, plural

FULL: Final = 1.05
"""Load of a member, of its capacity, up to which a step up fills it: the target age absorbs it."""
RELAXED: Final = 0.95
"""Load up to which fewer members suffice."""
_CATCH_UP: Final = 300.0
"""Seconds within which members of the new size read what waits."""
_EARLY: Final = 0.8
"""Part of the target age at which the group grows."""
_SMOOTH: Final = 900.0
"""Seconds over which arrivals are averaged before the group shrinks."""
_HOPELESS: Final = 1_800.0
"""Seconds of one worker's reading; a hot partition with more to read gets no member of its own."""
_OLD: Final = 900.0
"""Seconds after which a check before says nothing about a rate."""
_SHORT: Final = 5.0
"""Seconds between two checks that are too few for a rate."""
_GAIN: Final = 0.1
"""Part of the expected rise in throughput that a step up must bring (Flink uses the same)."""
_PROVEN: Final = 90.0
"""Seconds after which workers of a step up have read for long enough to judge it."""
_REMEMBERED: Final = 3_600.0
"""Seconds for which a step up that brought nothing is not repeated."""
_FORGETS: Final = 0.1
"""Weight of a new measurement of the capacity."""


class PartitionLoad(NamedTuple):
    """Holds one partition of the group as the snapshot shows it."""

    name: str
    end: int | None
    committed: int | None
    waiting: int | None
    """Records that wait; None: unknown."""
    owner: int
    """Place of its member among all members, NOBODY if none owns it."""
    stopped: bool = False


class WorkerRate(NamedTuple):
    """Holds what one worker has read since its start."""

    worker: str
    records: int
    busy_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Remembers a step up whose effect is not known yet, or which had none."""

    before: int
    after: int
    at: float
    reads: float
    """Records per second of the group before it."""
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainMemory:
    """Remembers what the next check needs."""

    at: float | None = None
    positions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """End and committed offset of each partition."""
    arrivals: Mapping[str, float] = field(default_factory=dict)
    """Records per second of each partition at the last check."""
    averages: Mapping[str, float] = field(default_factory=dict)
    """The same, averaged over a quarter of an hour."""
    reads: float = 0.0
    """Records per second that the group read."""
    reported: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """Records and busy seconds of each worker."""
    capacity: float | None = None
    """Records per busy second of one worker."""
    idle: float = 0.0
    """Worker seconds that surplus slots were idle since the last change."""
    size: int | None = None
    """Members at the last check."""
    trial: Trial | None = None


class AgeLimits(NamedTuple):
    """Holds the limits that only drain_time has."""

    target: float
    """Greatest age in seconds of the oldest waiting record."""
    starts_in: float
    """Seconds until a new worker reads."""


class DrainSettings(NamedTuple):
    """Holds the limits of the policy, as fleet.yaml declares them."""

    ages: AgeLimits | None
    """None: the policy is packed, which counts no ages."""
    idle: float
    """Worker seconds of idle slots that are worth one rebalance."""
    capacity: float | None
    """Records per second of a worker, if it is declared."""
    protocol: str
    topics: tuple[int, ...]
    """Partitions of each topic, in the order of the loads."""
    least: int
    most: int


class DrainAsk(NamedTuple):
    """Holds the wanted number of members, its reason, and the memory."""

    wanted: int
    why: str
    memory: DrainMemory
    may_shrink: bool = True
    waits: str = ""
    """Why fewer members wait for more idle time."""
    inputs: Mapping[str, float] = {}
    alternatives: tuple[str, ...] = ()


class _Choice(NamedTuple):
    """Holds a number of members, why, and what the memory keeps of it."""

    wanted: int
    why: str
    idle: float
    trial: Trial | None = None
    waits: str = ""


class _Sizing(NamedTuple):
    """Holds the load of each partition in the order of the owners."""

    settings: DrainSettings
    capacity: float
    names: tuple[str, ...]
    owners: Owners
    now: tuple[float, ...]
    average: tuple[float, ...]
    backlog: tuple[float, ...]

    def owners_at(self, members: int) -> Owners:
        return owners_after(self.settings.protocol, self.settings.topics, self.owners, members)

    def fits(self, members: int, rates: Sequence[float], part: float) -> bool:
        """Tells whether each member reads its partitions, and what waits in them, in time."""
        return self.overloaded(members, rates, part) is None

    def overloaded(self, members: int, rates: Sequence[float], part: float) -> float | None:
        """Returns the load of a member with more than it can read; None if there is none.

        A member with one partition never counts, since no other number helps it.
        """
        load, behind, count = [0.0] * members, [0.0] * members, [0] * members
        for owner, rate, waiting in zip(self.owners_at(members), rates, self.backlog, strict=True):
            if rate or waiting:
                load[owner] += rate
                behind[owner] += waiting
                count[owner] += 1
        for rate, waiting, many in zip(load, behind, count, strict=True):
            if many > 1 and (
                rate > part * self.capacity or rate + waiting / _CATCH_UP > self.capacity * FULL
            ):
                return rate + waiting / _CATCH_UP
        return None

    def smallest(self, low: int, high: int, rates: Sequence[float], part: float) -> int:
        """Returns the least number from `low` on that reads these rates, else `high`."""
        low = max(low, math.ceil(sum(rates) / (part * self.capacity)))
        return next((n for n in range(low, high) if self.fits(n, rates, part)), high)

    def age_ahead(self, seconds: float) -> tuple[float, float]:
        """Returns (delay, load) of the member whose records would be oldest after `seconds`."""
        members = max(self.owners, default=NOBODY) + 1
        load, behind, count = [0.0] * members, [0.0] * members, [0] * members
        for owner, rate, waiting in zip(self.owners, self.now, self.backlog, strict=True):
            if owner != NOBODY and (rate or waiting):
                load[owner] += rate / self.capacity
                behind[owner] += waiting / self.capacity
                count[owner] += 1
        ages = (
            # A member with one partition cannot be helped.
            (waits + (rate - 1.0) * seconds if many > 1 else 0.0, rate)
            for waits, rate, many in zip(behind, load, count, strict=True)
        )
        return max(ages, default=(0.0, 0.0))


def ask_by_rates(
    settings: DrainSettings,
    loads: Sequence[PartitionLoad],
    workers: Sequence[WorkerRate],
    *,
    current: int,
    settled: bool,
    memory: DrainMemory,
    at: float,
    explain: bool = False,
) -> DrainAsk:
    """Returns the number of members that the loads need; `at` is the time of the snapshot.

    explain: with the outcome of other numbers.
    """
    memory, seconds = _measured(loads, workers, memory, current, at)
    capacity = settings.capacity or memory.capacity
    unknown = sum(each.waiting is None and not each.stopped for each in loads)
    if unknown == len(loads):
        return _hold(current, "lag unknown", memory)
    if seconds is None:
        return _hold(current, "the first check only measures rates", memory)
    if capacity is None:
        why = "no worker has reported records per busy second yet, and records_per_second is unset"
        return _hold(max(current, settings.least), why, memory)
    if current and not settled:
        return _hold(current, "the group is not settled", memory)
    sizing = _sizing(settings, capacity, loads, memory)
    named = _named(capacity, loads, memory)
    if not current:
        return _from_zero(settings, sizing, memory, named)
    if settings.ages is None:
        chosen = _packed(sizing, current, memory, seconds)
    else:
        chosen = _decided(sizing, settings.ages, current, memory, seconds=seconds, at=at)
    low, high = max(1, settings.least), settings.most
    others = range(max(low, chosen.wanted - 1), min(high, chosen.wanted + 1) + 1)
    return DrainAsk(
        chosen.wanted,
        chosen.why + named,
        replace(memory, idle=chosen.idle, trial=chosen.trial),
        may_shrink=not unknown,
        waits=chosen.waits,
        inputs={
            "records per second of a worker": round(capacity, 1),
            "records per second that arrive": round(sum(memory.arrivals.values()), 1),
            "records that wait": float(sum(each.waiting or 0 for each in loads)),
            "idle seconds of surplus slots": round(chosen.idle, 1),
        },
        alternatives=tuple(
            f"{plural(members, 'slot')}: {_outcome(sizing, members)}"
            for members in sorted({*others, chosen.wanted, current})
            if explain and members
        )
        + ((_packing(sizing),) if explain else ()),
    )


def _hold(current: int, why: str, memory: DrainMemory) -> DrainAsk:
    return DrainAsk(current, why, memory, may_shrink=False)


def _decided(
    sizing: _Sizing,
    ages: AgeLimits,
    current: int,
    memory: DrainMemory,
    *,
    seconds: float,
    at: float,
) -> _Choice:
    most = sizing.settings.most
    reaction = min(seconds, 60.0) + ages.starts_in
    ahead, load = sizing.age_ahead(reaction)
    rate = _rates(sizing, memory)
    trial = _judged(memory, sizing, ages, ahead, current, at=at)
    if trial is not None and trial.failed and current == trial.after:
        why = (
            f"{trial.before} to {plural(trial.after, 'slot')} did not raise the throughput above "
            f"{trial.reads:,.0f} records/s, so the step is undone"
        )
        return _Choice(trial.before, why, memory.idle, trial)
    if ahead > ages.target * _EARLY and not memory.reads and any(sizing.backlog):
        return _Choice(current, rate + _STUCK, 0.0, trial)
    if ahead > ages.target * _EARLY:
        why = (
            f"{rate}; at {load:.0%} of a worker, the busiest member would let records wait "
            f"{duration(ahead)} within {duration(reaction)}, target {duration(ages.target)}"
        )
        if trial is not None and not trial.failed and current >= trial.after:
            why += f"; {trial.before} to {plural(trial.after, 'slot')} has not helped yet"
            return _Choice(current, why, 0.0, trial)
        wanted = sizing.smallest(current + 1, most, sizing.now, FULL)
        wanted = max(current, min(wanted, most))
        if wanted > current and trial is not None and trial.failed:
            why += (
                f"; more than {trial.before} slots brought nothing {duration(at - trial.at)} ago, "
                "so the group waits"
            )
            return _Choice(current, why, 0.0, trial)
        if wanted > current:
            trial = Trial(before=current, after=wanted, at=at, reads=memory.reads)
        return _Choice(wanted, why, 0.0, trial)
    if ahead > ages.target / 2:
        return _Choice(current, f"{rate}; the backlog is being read", memory.idle, trial)
    why = f"{rate}; the busiest member has {load:.0%} of its capacity to do"
    return _shrunk(sizing, current, memory, seconds, why)._replace(trial=trial)


_STUCK: Final = "; no worker has read a record since the last check, so more would not help"


def _rates(sizing: _Sizing, memory: DrainMemory) -> str:
    arrive = sum(memory.arrivals.values())
    return f"{arrive:,.0f} records/s arrive, a worker reads {sizing.capacity:,.0f}"


def _shrunk(
    sizing: _Sizing, current: int, memory: DrainMemory, seconds: float, why: str
) -> _Choice:
    """Returns the least number that reads what arrives and waits, once idle slots cost enough."""
    pays = sizing.settings.idle
    rates = tuple(map(max, sizing.average, sizing.now))
    low = max(sizing.settings.least, 1 if any(rates) or any(sizing.backlog) else 0)
    fewer = sizing.smallest(low, current, rates, RELAXED) if current > low else current
    if fewer >= current:
        return _Choice(current, why, max(0.0, memory.idle - pays * seconds / _REMEMBERED))
    idle = memory.idle + (current - fewer) * seconds
    waits = ""
    if idle < pays:
        waits = (
            f"{plural(current - fewer, 'surplus slot')} cost {duration(idle)} so far and a "
            f"rebalance is worth {duration(pays)}"
        )
    return _Choice(fewer, why, idle, waits=waits)


def _packed(sizing: _Sizing, current: int, memory: DrainMemory, seconds: float) -> _Choice:
    """Returns the least number of members of which none has more than it reads."""
    rate = _rates(sizing, memory)
    why = f"{rate}; {_packing(sizing)}"
    if sizing.fits(current, sizing.now, FULL):
        return _shrunk(sizing, current, memory, seconds, why)
    if not memory.reads and any(sizing.backlog):
        return _Choice(current, rate + _STUCK, 0.0)
    wanted = sizing.smallest(current + 1, sizing.settings.most, sizing.now, FULL)
    return _Choice(max(current, min(wanted, sizing.settings.most)), why, 0.0)


def _packing(sizing: _Sizing) -> str:
    """Returns how many slots a packing by rate needs, and what the assignor does with so few."""
    settings = sizing.settings
    sizes = [
        rate + waiting / _CATCH_UP for rate, waiting in zip(sizing.now, sizing.backlog, strict=True)
    ]
    packed = members_of(pack(sizes, FULL * sizing.capacity))
    owned: dict[int, list[int]] = {}
    for place, owner in enumerate(sizing.owners_at(packed)):
        if sizes[place]:
            owned.setdefault(owner, []).append(place)
    shared = [places for places in owned.values() if len(places) > 1]
    busiest = max(shared, key=lambda places: sum(sizes[place] for place in places), default=[])
    assigned = sizing.smallest(1, max(packed, settings.most), sizing.now, FULL)
    if assigned <= packed or not busiest:
        return f"a packing by rate: {plural(packed, 'slot')}, no fewer than by {settings.protocol}"
    load = sum(sizes[place] for place in busiest) / sizing.capacity
    names = [sizing.names[place] for place in sorted(busiest, key=lambda place: -sizes[place])]
    return (
        f"a packing by rate: {plural(packed, 'slot')} instead of {assigned}, since "
        f"{settings.protocol} would give one of {packed} members {load:.0%} of its capacity: "
        f"{few(names)}"
    )


def _from_zero(
    settings: DrainSettings, sizing: _Sizing, memory: DrainMemory, named: str
) -> DrainAsk:
    """Sizes a group without members: for what waits, or none."""
    if not any(sizing.now) and not any(sizing.backlog):
        return DrainAsk(settings.least, f"no record arrives or waits{named}", memory)
    wanted = sizing.smallest(1, settings.most, sizing.now, FULL)
    why = f"{sum(sizing.backlog):,.0f} records wait and no worker reads them{named}"
    return DrainAsk(wanted, why, memory)


def _outcome(sizing: _Sizing, members: int) -> str:
    over = sizing.overloaded(members, sizing.now, 1.0)
    if over is None:
        return "every member keeps up"
    return f"a member would need {over / sizing.capacity:.0%} of its capacity"


# --- measuring ---------------------------------------------------------------------------------


def _measured(
    loads: Sequence[PartitionLoad],
    workers: Sequence[WorkerRate],
    memory: DrainMemory,
    current: int,
    at: float,
) -> tuple[DrainMemory, float | None]:
    """Returns the memory with new rates, and the seconds since the check before; None: unknown."""
    positions = {
        each.name: (each.end, each.committed if each.committed is not None else -1)
        for each in loads
        if each.end is not None
    }
    seconds = None if memory.at is None else at - memory.at
    if seconds is not None and 0 <= seconds < _SHORT and memory.arrivals:
        return memory, seconds
    reported = {each.worker: (each.records, each.busy_seconds) for each in workers}
    fresh = replace(memory, at=at, positions=positions, reported=reported, size=current)
    if seconds is None or not 0 < seconds <= _OLD:
        return replace(fresh, arrivals={}, averages={}, idle=0.0, trial=None), None
    arrivals, averages, reads = {}, {}, 0.0
    weight = min(1.0, seconds / _SMOOTH)
    for name, (end, committed) in positions.items():
        old = memory.positions.get(name)
        if old is None or end < old[0]:  # a new partition, or a recreated topic
            arrivals[name] = memory.arrivals.get(name, 0.0)
        else:
            arrivals[name] = (end - old[0]) / seconds
            reads += max(0, committed - old[1]) / seconds if old[1] >= 0 else 0.0
        before = memory.averages.get(name, arrivals[name])
        averages[name] = before + weight * (arrivals[name] - before)
    behind = any((each.waiting or 0) > arrivals.get(each.name, 0.0) * seconds for each in loads)
    if any(busy for _, busy in reported.values()):
        work = _reported(memory, reported)
    else:
        work = _committed(memory, loads, seconds)
    grown = memory.size is not None and memory.size != current
    return (
        replace(
            fresh,
            arrivals=arrivals,
            averages=averages,
            reads=reads,
            capacity=_learnt(memory.capacity, *work, is_behind=behind),
            idle=0.0 if grown else memory.idle,
        ),
        seconds,
    )


def _reported(memory: DrainMemory, reported: Mapping[str, tuple[int, float]]) -> tuple[int, float]:
    """Returns the records and busy seconds of all workers since the check before."""
    records, busy = 0, 0.0
    for worker, (count, seconds) in reported.items():
        old = memory.reported.get(worker, (0, 0.0))
        if count > old[0] and seconds > old[1]:
            records += count - old[0]
            busy += seconds - old[1]
    return records, busy


def _committed(
    memory: DrainMemory, loads: Sequence[PartitionLoad], seconds: float
) -> tuple[int, float]:
    """Returns the same of members that report nothing, by the commits of those that were behind.

    Such a member has not reached what was the end of a partition at the check before. After a first
    commit, what its member has read is unknown.
    """
    read, behind, unknown = Counter[int](), set(), {NOBODY}
    for each in loads:
        end, committed = memory.positions.get(each.name, (0, -1))
        if each.committed is None or each.stopped:
            continue
        read[each.owner] += max(0, each.committed - committed)
        if each.committed < end:
            behind.add(each.owner)
        if committed < 0:
            unknown.add(each.owner)
    busy = [owner for owner in behind - unknown if read[owner]]
    return sum(read[owner] for owner in busy), seconds * len(busy)


def _learnt(capacity: float | None, records: int, busy: float, *, is_behind: bool) -> float | None:
    """Returns the capacity of a worker, in records per busy second.

    A worker that keeps up has small batches, and shows only a lower bound.
    """
    if not records or busy <= 0:
        return capacity
    now = records / busy
    if capacity is None or now > capacity:
        return now
    return capacity + _FORGETS * (now - capacity) if is_behind else capacity


def _sizing(
    settings: DrainSettings,
    capacity: float,
    loads: Sequence[PartitionLoad],
    memory: DrainMemory,
) -> _Sizing:
    now, average, backlog = [], [], []
    for each in loads:
        rate, waiting = memory.arrivals.get(each.name, 0.0), float(each.waiting or 0)
        if each.stopped:
            now.append(0.0)
            average.append(0.0)
            backlog.append(0.0)
        elif rate >= capacity:  # alone, it is read as fast as possible; then it does not count
            now.append(capacity)
            average.append(capacity)
            backlog.append(waiting if waiting < _HOPELESS * capacity else 0.0)
        else:
            now.append(rate)
            average.append(min(capacity, memory.averages.get(each.name, rate)))
            backlog.append(waiting)
    return _Sizing(
        settings,
        capacity,
        tuple(each.name for each in loads),
        tuple(each.owner for each in loads),
        tuple(now),
        tuple(average),
        tuple(backlog),
    )


def _named(
    capacity: float,
    loads: Sequence[PartitionLoad],
    memory: DrainMemory,
) -> str:
    """Names partitions that no number of members helps."""
    hot = [
        each.name
        for each in loads
        if memory.arrivals.get(each.name, 0.0) > capacity and not each.stopped
    ]
    stopped = [each.name for each in loads if each.stopped]
    words = ""
    if hot:
        words += f"; {', '.join(hot[:3])} gets more than one worker reads: add partitions"
    if stopped:
        words += f"; {', '.join(stopped[:3])} is stopped and does not count"
    return words


def _judged(
    memory: DrainMemory, sizing: _Sizing, ages: AgeLimits, ahead: float, current: int, *, at: float
) -> Trial | None:
    """Returns the last step up: forgotten if it helped, failed if it did not."""
    trial, capacity = memory.trial, sizing.capacity
    if trial is None:
        return None
    if trial.failed:
        is_over = at - trial.at >= _REMEMBERED or memory.reads > trial.reads * (1.0 + _GAIN) + 1.0
        return None if is_over else trial
    if current < trial.after:
        return trial if at - trial.at < _OLD else None
    most = sum(sizing.now) + sum(sizing.backlog) / _CATCH_UP - trial.reads
    gain = min(capacity * (trial.after - trial.before), max(0.0, most))
    if ahead <= 0.0 or memory.reads >= trial.reads + _GAIN * gain:
        return None
    if at - trial.at < ages.starts_in + _PROVEN or ahead <= ages.target * _EARLY:
        return trial
    return replace(trial, failed=True, at=at)
