"""All groups of a cluster at one moment, in columns, for whoever looks every few seconds.

Problem: `Observer.snapshot` describes every group and fetches every group's offsets: 1.2 s for
1,000 groups of 48 partitions, and a value per partition. Choice: what the offsets topic already
holds (members, generations, commits) comes from the tail that reads it; only what it cannot
tell is asked: the listing with each group's state, and starts and ends of the logs in two
requests. Where the tail is not current (a first reading, a login without Read), the
coordinators are asked as before, and the overview says so. Cost: two ways to the same figures;
a test compares them.
"""

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from confluent_kafka import TopicCollection
from numpy.typing import NDArray

from fleet.clock import Clock
from fleet.log.readers.group_log import Unreadable
from fleet.log.readers.positions import NONE, Commits, Floats, Longs, Positions
from fleet.log.readers.tail import Tail
from fleet.model import GroupState, LagCase, TopicPartition
from fleet.observe.admin import Observer
from fleet.observe.ends import EndHistory
from fleet.observe.samples import EndOffsetSamples
from fleet.observe.seen import Seen, is_dead

CASES: Final = tuple(LagCase)
"""What the numbers in `Overview.case` mean."""
_OK, _BELOW, _BEYOND, _DELETED, _UNKNOWN = (
    CASES.index(case)
    for case in (
        LagCase.OK,
        LagCase.BELOW_START,
        LagCase.BEYOND_END,
        LagCase.TOPIC_DELETED,
        LagCase.UNKNOWN,
    )
)
_WAIT: Final = 0.25
"""Seconds that a look waits for the tail to hold what was written before it."""
_STALE: Final = 30.0
"""An older tail is not used: the coordinators are asked."""
_WINDOW: Final = 300.0
"""Seconds over which a growing age is told."""
_APART: Final = 30.0
_NAMES_EVERY: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """One group in an overview."""

    state: GroupState
    type: str
    members: int | None
    generation: int | None
    """None where only the coordinators were asked: they do not tell it."""
    changed_at: float | None = None
    """Wall time of the last membership record; None where none was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One look; arrays are aligned with `commits`. An unknown lag is NONE, unknown seconds NaN."""

    cluster: str
    at: float
    took: float
    from_log: bool
    """Members and commits are the tail's; else the coordinators were asked."""
    log_age: float | None
    """Seconds since the tail last held everything written; None: never, or not used."""
    groups: Mapping[str, GroupFacts]
    commits: Commits
    lag: Longs
    end: Longs
    case: NDArray[np.int8]
    """A place in `CASES`."""
    seconds: Floats
    """Age of the committed position."""
    waited: Floats
    """The same, or what it is at least."""
    gained: Floats
    """By how much `waited` grew over the last `over` seconds."""
    over: float
    problems: tuple[str, ...] = ()
    took_of: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent in each part of the look."""


class Overlooker(Observer):
    """An observer that looks at everything, with a tail's help. Looks come from one thread.

    `tail` None: always by the coordinators. Raises Unreachable as an observer does.
    """

    def __init__(
        self,
        *,
        cluster: str,
        config: Mapping[str, Any],
        clock: Clock,
        tail: Tail | None,
        samples: EndOffsetSamples | None = None,
        timeout: float = 10.0,
    ) -> None:
        super().__init__(
            cluster=cluster, config=config, clock=clock, samples=samples, timeout=timeout
        )
        self._tail = tail
        self._end_history = EndHistory()
        if samples is not None:
            self._end_history.load(samples.stored(cluster))
        self._polled = Positions()
        self._waits: deque[tuple[float, Floats]] = deque()
        self._named_at = float("-inf")

    def overview(self) -> Overview:
        """Look once."""
        look = self._look()
        laps = _Laps(self._clock)
        listing: Future[Any] = self._admin.list_consumer_groups(request_timeout=look.left())
        from_log = self._current()
        laps.note("tail")
        listed = self._listed(listing, look)
        laps.note("groups")
        partitions = self._topics(look)
        laps.note("topics")
        if from_log and self._tail is not None:
            groups, commits = self._by_log(listed, self._tail)
            self._name_topics(partitions)
        else:
            groups, commits = self._by_coordinators(listed, look)
        laps.note("commits")
        commits = _only(commits, groups)
        tps, inverse = _partitions_of(commits)
        starts, ends, deleted = self._logs(tps, partitions, look)
        laps.note("logs")
        at = self._clock.now()
        self._end_history.add(at, ends)
        if self._samples is not None and ends:
            self._samples.record(self._cluster, at, ends)
        laps.note("samples")
        lag, case = _lags(
            commits.committed,
            start=_column(tps, starts)[inverse],
            end=_column(tps, ends)[inverse],
            deleted=np.array([tp.topic in deleted for tp in tps], dtype=np.bool_)[inverse],
        )
        seconds, waited = self._ages(commits, tps, inverse, lag, at)
        gained, over = self._growth(commits, waited, at)
        laps.note("lag")
        return Overview(
            cluster=self._cluster,
            at=at,
            took=laps.total,
            from_log=from_log,
            log_age=None if self._tail is None else self._tail.age(),
            groups=groups,
            commits=commits,
            lag=lag,
            end=_column(tps, ends)[inverse],
            case=case,
            seconds=seconds,
            waited=waited,
            gained=gained,
            over=over,
            problems=tuple(look.problems),
            took_of=laps.laps,
        )

    # --- members and commits ----------------------------------------------------------------

    def _current(self) -> bool:
        """Whether the tail holds what was written before now, or did a moment ago."""
        if self._tail is None:
            return False
        try:
            if self._tail.catch_up(_WAIT):
                return not self._tail.absent
        except Unreadable:
            return False
        age = self._tail.age()
        return age is not None and age <= _STALE and not self._tail.absent

    def _by_log(
        self, listed: Mapping[str, Any], tail: Tail
    ) -> tuple[dict[str, GroupFacts], Commits]:
        summaries, changed = tail.summaries(), tail.changed()
        seen = Seen(descriptions={}, listed=listed)
        groups = {}
        for group in listed:
            state, told = seen.state(group), summaries.get(group)
            kind = seen.kind(group)
            members = told.members if told else None
            groups[group] = GroupFacts(
                state=state,
                type=told.type if told and kind == "unknown" else kind,
                members=0 if state is GroupState.EMPTY else members,
                generation=told.generation if told else None,
                changed_at=changed.get(group),
            )
        for group, told in summaries.items():
            if group not in groups and told.type in {"share", "streams"}:
                groups[group] = GroupFacts(
                    state=GroupState.UNKNOWN,
                    type=told.type,
                    members=told.members,
                    generation=told.generation,
                    changed_at=changed.get(group),
                )
        chosen = tail.chosen
        return {g: facts for g, facts in groups.items() if chosen(g)}, tail.commits()

    def _by_coordinators(
        self, listed: Mapping[str, Any], look: Any
    ) -> tuple[dict[str, GroupFacts], Commits]:
        """Describe all and fetch all offsets; what changed since the last look was committed."""
        chosen = self._tail.chosen if self._tail is not None else (lambda _: True)
        wanted = sorted(filter(chosen, listed))
        described = self._describe(wanted, look)
        answered = [g for g in wanted if g in described and not is_dead(described[g])]
        seen = Seen(
            descriptions=described,
            listed=listed,
            committed=self._committed(answered, look),
        )
        now, kept = int(self._clock.now() * 1000), set()
        for group, offsets in seen.committed.items():
            for tp, committed in offsets.items():
                key = f"{group}\0{tp.topic}\0{tp.partition}".encode()
                kept.add(key)
                if self._polled.last(key) != committed:
                    self._polled.put(key, group, tp, committed, now)
        for key in self._polled.keys() - kept:
            self._polled.commit(key, None, now)
        groups = {
            group: GroupFacts(
                state=seen.state(group),
                type=seen.kind(group),
                members=len(seen.members(group)) if group in described else None,
                generation=None,
            )
            for group in wanted
        }
        return groups, self._polled.copy()

    def _name_topics(self, partitions: Mapping[str, int]) -> None:
        """Names for topic ids in assignments of groups that never committed (KIP-848)."""
        assert self._tail is not None
        now = self._clock.monotonic()
        if now - self._named_at < _NAMES_EVERY or not self._tail.unnamed_topics():
            return
        self._named_at = now
        look = self._look()
        futures = self._admin.describe_topics(
            TopicCollection(sorted(partitions)), request_timeout=look.left()
        )
        told = look.gather(futures, "topic(s) cannot be described", lambda topic: topic.topic_id)
        self._tail.name_topics({_hex(topic_id): name for name, topic_id in told.items()})

    # --- lag --------------------------------------------------------------------------------

    def _logs(
        self, tps: list[TopicPartition], partitions: Mapping[str, int], look: Any
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], frozenset[str]]:
        """Starts and ends of all logs in two requests; topics that are deleted."""
        starts, ends = self._log_offsets(
            [tp for tp in tps if tp.partition < partitions.get(tp.topic, 0)], look
        )
        deleted = self._gone({tp.topic for tp in tps if tp.topic not in partitions}, look)
        return starts, ends, deleted

    def _ages(
        self, commits: Commits, tps: list[TopicPartition], inverse: Longs, lag: Longs, at: float
    ) -> tuple[Floats, Floats]:
        seconds = np.full(len(lag), np.nan)
        waited = np.full(len(lag), np.nan)
        seconds[lag == 0] = waited[lag == 0] = 0.0
        rows = np.flatnonzero(lag > 0)
        if len(rows):
            columns = self._end_history.columns(tps)[inverse[rows]]
            seconds[rows], waited[rows] = self._end_history.ages(
                columns, commits.committed[rows], at
            )
        return seconds, waited

    def _growth(self, commits: Commits, waited: Floats, at: float) -> tuple[Floats, float]:
        """By how much the ages grew since the oldest look of the window."""
        gained = np.full(len(waited), np.nan)
        size = int(commits.row.max()) + 1 if len(commits) else 0
        while self._waits and at - self._waits[0][0] > _WINDOW:
            self._waits.popleft()
        over = at - self._waits[0][0] if self._waits else 0.0
        if self._waits:
            then = self._waits[0][1]
            known = commits.row < len(then)
            gained[known] = waited[known] - then[commits.row[known]]
        if not self._waits or at - self._waits[-1][0] >= _APART:
            by_row = np.full(size, np.nan)
            by_row[commits.row] = waited
            self._waits.append((at, by_row))
        return gained, over


class _Laps:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = self._last = clock.monotonic()
        self.laps: dict[str, float] = {}

    def note(self, name: str) -> None:
        now = self._clock.monotonic()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        return self._clock.monotonic() - self._began


def _only(commits: Commits, groups: Mapping[str, GroupFacts]) -> Commits:
    """Rows of groups that there are: a group's tombstones may come after its end."""
    there = np.array([group in groups for group in commits.groups], dtype=np.bool_)
    if there.all():
        return commits
    return commits.where(there[commits.group])


def _partitions_of(commits: Commits) -> tuple[list[TopicPartition], Longs]:
    """The different partitions, and for each row which one it is."""
    both = commits.topic.astype(np.int64) << 32 | commits.partition.astype(np.int64)
    different, inverse = np.unique(both, return_inverse=True)
    names = commits.topics
    tps = [TopicPartition(names[each >> 32], each & 0xFFFFFFFF) for each in different.tolist()]
    return tps, inverse


def _column(tps: list[TopicPartition], offsets: Mapping[TopicPartition, int]) -> Longs:
    return np.array([offsets.get(tp, NONE) for tp in tps], dtype=np.int64)


def _lags(
    committed: Longs, *, start: Longs, end: Longs, deleted: NDArray[np.bool_]
) -> tuple[Longs, NDArray[np.int8]]:
    """`fleet.observe.lag.lag_of` for all rows at once."""
    unknown = (start == NONE) | (end == NONE)
    case = np.select(
        [deleted, unknown, committed > end, committed < start],
        [_DELETED, _UNKNOWN, _BEYOND, _BELOW],
        _OK,
    ).astype(np.int8)
    lag = np.select(
        [case == _OK, case == _BELOW], [end - committed, end - start], np.int64(NONE)
    ).astype(np.int64)
    return lag, case


def _hex(topic_id: Any) -> str:
    """A topic id as the log's records are read: 32 hex digits."""
    most, least = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return f"{most & 0xFFFFFFFFFFFFFFFF:016x}{least & 0xFFFFFFFFFFFFFFFF:016x}"
