"""Replays a load through one rule of scaling, and counts what it would have cost.

Problem: a rule looks good on the day for which it was tuned, and nobody tries two rules on one
group. Choice: a fluid model in ticks of 10 s. Each partition has a backlog; a member reads its
partitions in equal parts up to its capacity. Owners come from the real assignors. A new worker
starts, then joins; each change stops partitions for as long as the coordinator's model shows. A
rule is a function from an observation to a number. Cost: all records cost the same, and a change of
Fleet and of others counts as one rebalance, which favours others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from fleet.backtest.load import LoadSeries
from fleet.config.spec import ClassicWorker, ConsumerWorker, Worker
from fleet.decide.assignments import NOBODY, Owners, owners_after
from fleet.decide.expected_costs import SMALL_BATCH, group_of_workers, simulate_change
from fleet.lag.lag_columns import Floats, Longs

TICK: Final = 10.0
LATE: Final = 60.0
"""Age in seconds from which a record is late."""
_EAGER: Final = frozenset({"range", "roundrobin", "sticky"})
"""Assignors whose members all stop in a rebalance."""
_LOST: Final = 1e-6
"""Records; rounding must not make one late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Describes the workers and how often a rule is asked."""

    capacity: float = 1_000.0
    """Records per second of a worker that is busy."""
    start: float = 30.0
    """Seconds from the decision until a new worker joins."""
    every: float = 30.0
    """Seconds between two decisions."""
    protocol: str = "cooperative-sticky"
    first: int = 1
    """Members at the beginning."""


class Observation(NamedTuple):
    """Holds what a rule may know at one moment; rates are means since the decision before."""

    at: float
    every: float
    members: int
    """Members that own partitions, or that a rebalance would assign some."""
    starting: int
    owners: Owners
    arrivals: tuple[float, ...]
    """Records per second of each partition."""
    reads: tuple[float, ...]
    waiting: tuple[float, ...]
    busy_seconds: float
    """Sum over all workers since the decision before."""
    settled: bool
    """Whether no worker starts and no partition waits for an owner."""


Rule = Callable[[Observation], int]


class SizeChange(NamedTuple):
    """Describes one change of the number of members."""

    at: float
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Holds what a rule cost on a load."""

    late_hours: float
    """Hours in which the oldest record of a partition is older than a minute."""
    worker_hours: float
    rebalances: int
    downtime: float
    """Partition-seconds without an owner."""
    backlog_seconds: float
    """Records times seconds that they waited."""
    steps: tuple[SizeChange, ...]
    members: Longs
    """Paid workers in each tick."""
    waiting: Floats
    """Records that wait in each tick."""

    def right_at_once(self, load: LoadSeries) -> float:
        """Returns the share of steps up that no other followed while the load stayed the same."""
        ups = [step for step in self.steps if step.after > step.before]
        again = sum(later.at // load.step == each.at // load.step for each, later in pairwise(ups))
        return 1.0 - again / len(ups) if ups else 1.0


def replay(load: LoadSeries, rule: Rule, setting: Setting) -> Outcome:
    """Replays a load through a rule."""
    return _Replay(load, setting).run(rule)


class _Replay:
    def __init__(self, load: LoadSeries, setting: Setting) -> None:
        self.load, self.setting = load, setting
        self.ticks = int(load.seconds // TICK)
        at = np.arange(self.ticks) * TICK
        self.arriving = load.rates[(at // load.step).astype(int)] * TICK
        stuck = np.zeros(self.ticks, dtype=bool)
        for start, end in load.blocked:
            stuck |= (at >= start) & (at < end)
        self.open = ~stuck
        self.group = group_of_workers(_worker(setting.protocol), load.partitions, batch=SMALL_BATCH)
        self.group = self.group._replace(protocol=setting.protocol)
        self.members = setting.first
        self.starting: list[tuple[float, int]] = []
        empty: Owners = (NOBODY,) * load.partitions
        self._own(owners_after(setting.protocol, (load.partitions,), empty, self.members))
        self.paused_until = np.zeros(load.partitions)
        self.paused = 0.0
        """When the last pause ends."""
        self.steps: list[SizeChange] = []
        self.downtime = 0.0
        self.backlog = np.zeros(load.partitions)
        self.read = np.zeros((self.ticks, load.partitions))
        self.paid = np.zeros(self.ticks, dtype=np.int64)
        self.total = np.zeros(self.ticks)
        self.most = setting.capacity * TICK
        self.busy = 0.0
        """Seconds that all workers were busy since the last decision."""

    def _own(self, owners: Owners) -> None:
        self.owners = owners
        self.places = np.maximum(np.array(owners), 0)

    def run(self, rule: Rule) -> Outcome:
        every = max(1, round(self.setting.every / TICK))
        for first in range(0, self.ticks, every):
            last = min(self.ticks, first + every)
            if self.starting and self.starting[0][0] <= first * TICK:
                self._join(first * TICK)
            if first:
                self._want(first * TICK, rule(self._seen(first - every, first)))
            self.busy = 0.0
            if not self._is_idle(first, last):
                for tick in range(first, last):
                    if tick > first and self.starting and self.starting[0][0] <= tick * TICK:
                        self._join(tick * TICK)
                    self.paid[tick] = self.members + self._starting()
                    self._work(tick)
        return Outcome(
            late_hours=_late(self.arriving, self.read) * TICK / 3_600,
            worker_hours=float(self.paid.sum()) * TICK / 3_600,
            rebalances=len(self.steps),
            downtime=self.downtime,
            backlog_seconds=float(self.total.sum()) * TICK,
            steps=tuple(self.steps),
            members=self.paid,
            waiting=self.total,
        )

    def _starting(self) -> int:
        return sum(count for _, count in self.starting)

    def _seen(self, first: int, last: int) -> Observation:
        seconds = (last - first) * TICK
        return Observation(
            last * TICK,
            seconds,
            self.members,
            self._starting(),
            self.owners,
            tuple((self.arriving[first:last].sum(axis=0) / seconds).tolist()),
            tuple((self.read[first:last].sum(axis=0) / seconds).tolist()),
            tuple(self.backlog.tolist()),
            self.busy,
            not self.starting and self.paused <= last * TICK,
        )

    def _is_idle(self, first: int, last: int) -> bool:
        """Reads ticks at once in which nothing waits, and no member has too much; else False."""
        at = first * TICK
        if self.starting or self.paused > at or not self.members or self.backlog.any():
            return False
        rows = self.arriving[first:last]
        if not (rows[0] == rows[-1]).all() or not self.open[first:last].all():
            return False
        of_member = np.bincount(self.places, weights=rows[0], minlength=self.members)
        if of_member.max() > self.most:
            return False
        self.read[first:last] = rows
        self.paid[first:last] = self.members
        self.busy = float(rows.sum()) / self.setting.capacity
        return True

    def _work(self, tick: int) -> None:
        self.backlog = self.backlog + self.arriving[tick]
        if self.members and self.open[tick]:
            can = np.minimum(self.backlog, self.most)
            if self.paused > tick * TICK:
                owned = TICK - np.clip(self.paused_until - tick * TICK, 0.0, TICK)
                can = np.minimum(can, self.setting.capacity * owned)
            of_member = np.bincount(self.places, weights=can, minlength=self.members)
            part = self.most / np.maximum(of_member, self.most)
            done = can * part[self.places]
            self.backlog = np.maximum(self.backlog - done, 0.0)
            self.read[tick] = done
            self.busy += float(done.sum()) / self.setting.capacity
        elif self.members:
            self.busy += TICK * self.members
        self.total[tick] = self.backlog.sum()

    def _join(self, at: float) -> None:
        ready = sum(count for when, count in self.starting if when <= at)
        self.starting = [each for each in self.starting if each[0] > at]
        self._resize(at, self.members + ready)

    def _want(self, at: float, wanted: int) -> None:
        """Starts workers, or takes starting ones back before members leave."""
        wanted = max(0, wanted)
        there = self.members + self._starting()
        if wanted > there:
            self.starting.append((at + self.setting.start, wanted - there))
        while wanted < there and self.starting:
            when, count = self.starting.pop()
            back = min(count, there - wanted)
            there -= back
            if count > back:
                self.starting.append((when, count - back))
        if wanted < self.members:
            self._resize(at, wanted)

    def _resize(self, at: float, members: int) -> None:
        before, owners = self.members, self.owners
        self.steps.append(SizeChange(at, before, members))
        self.members = members
        self._own(owners_after(self.setting.protocol, (len(owners),), owners, members))
        changing = abs(members - before)
        kind = "open" if members > before else "leave"
        cost = simulate_change(self.group, kind, min(members, before), changing)
        gone = sorted(each for each in cost.unowned if each) if cost is not None else []
        pause = gone[len(gone) // 2] if gone else 0.0
        moved = np.array(owners) != np.array(self.owners)
        stops = np.ones_like(moved) if self.setting.protocol in _EAGER else moved
        self.paused_until = np.where(stops, at + pause, self.paused_until)
        self.paused = at + pause
        self.downtime += pause * float(stops.sum())


def _worker(protocol: str) -> Worker:
    if protocol == "consumer":
        return ConsumerWorker(entrypoint="a:b", protocol="consumer")
    return ClassicWorker(entrypoint="a:b")


def _late(arriving: Floats, read: Floats) -> int:
    """Counts the ticks at whose end a partition has a record older than LATE."""
    ticks = round(LATE / TICK)
    came, done = np.cumsum(arriving, axis=0), np.cumsum(read, axis=0)
    due = np.zeros_like(came)
    due[ticks:] = came[:-ticks]
    return int((done < due - _LOST - 1e-9 * came).any(axis=1).sum())
