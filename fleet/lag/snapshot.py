"""Describes all groups of a cluster, or some of them, at one moment in columns.

Problem: an exporter needs all partitions of all groups at once, and a decision needs one group as
values. Choice: columns; `Snapshot.groups` makes the values of one group from them on request, so
that both agree. Cost: the first request for a group makes its values.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleet.lag.end_history import EndHistory
from fleet.lag.lag_columns import NONE, Commits, Floats, Longs, Rows, portions
from fleet.model import GroupSnapshot, GroupState, LagCase, Member, PartitionState, TopicPartition

# The difference of two offsets is no lag in several ordinary situations; each is a `LagCase`, and a
# figure is given only where it is one. Transaction markers occupy offsets: a lag of 1 may have
# nothing left to read, which only reading tells. Seconds are the age of the record at which reading
# goes on, by interpolation between samples of the end offset (commits stall with the consumer);
# older than the first sample is unknown, with what it is at least beside it.

CASES: Final = tuple(LagCase)
"""What the numbers in `Lag.case` mean."""
NO_SHARE: Final = -2
"""Of a row: its group is no share group."""
_CODE: Final = {case: code for code, case in enumerate(CASES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """Partitions' logs at one moment, and their ends before, which tell ages."""

    at: float
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    deleted: frozenset[str] = frozenset()
    partitions: Mapping[str, int] = field(default_factory=dict)
    """Topic name → number of partitions; one beyond it was deleted with an older topic."""
    before: EndHistory = field(default_factory=EndHistory)

    def is_deleted(self, tp: TopicPartition) -> bool:
        """The topic is gone, or was created anew with fewer partitions."""
        return tp.topic in self.deleted or tp.partition >= self.partitions.get(
            tp.topic, tp.partition + 1
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lag:
    """Columns of equal length. An unknown offset or lag is NONE, unknown seconds are NaN."""

    start: Longs
    end: Longs
    case: NDArray[np.int8]
    """A place in `CASES`."""
    records: Longs
    seconds: Floats
    """Age of the record at which reading goes on."""
    waited: Floats
    """The same, or what it is at least."""

    @classmethod
    def of_length(cls, size: int) -> "Lag":
        """Columns to be filled."""
        start, end, records = (np.empty(size, dtype=np.int64) for _ in range(3))
        seconds, waited = np.empty(size), np.empty(size)
        case = np.empty(size, dtype=np.int8)
        return cls(start=start, end=end, case=case, records=records, seconds=seconds, waited=waited)

    def where(self, rows: Rows | Longs | slice) -> "Lag":
        """Returns only these rows, as columns."""
        return Lag(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def measure_lag(
    committed: Longs,
    *,
    tps: Sequence[TopicPartition],
    which: Longs,
    logs: Logs,
    unreadable: Rows | None = None,
    counted: Longs | None = None,
    left: Rows | None = None,
) -> Lag:
    """Measure the lag of each committed offset in the partition `tps[which]`.

    `unreadable`: rows of groups whose offsets were not told. `counted`: of share groups, the lag
    that their coordinator counted, NONE where it told none; NO_SHARE in all other rows.
    `left`: rows of topics that the group subscribes to no more.
    """
    starts, ends = (
        np.array([offsets.get(tp, NONE) for tp in tps], dtype=np.int64)
        for offsets in (logs.starts, logs.ends)
    )
    deleted = np.array([logs.is_deleted(tp) for tp in tps], dtype=np.bool_)
    untold = np.zeros(len(committed), dtype=np.bool_) if unreadable is None else unreadable
    gone = np.zeros(len(committed), dtype=np.bool_) if left is None else left
    shared = np.broadcast_to(np.int64(NO_SHARE), len(committed)) if counted is None else counted
    found = Lag.of_length(len(committed))
    for rows in portions(len(committed)):
        place, lag = which[rows], found.where(rows)  # views: what is written there is found's
        lag.start[:], lag.end[:] = starts[place], ends[place]
        lag.records[:], lag.case[:] = records_waiting(
            committed[rows],
            start=lag.start,
            end=lag.end,
            deleted=deleted[place],
            unreadable=untold[rows],
            counted=shared[rows],
            left=gone[rows],
        )
        _date(lag, committed[rows], tps=tps, which=place, logs=logs)
    return found


def _date(
    lag: Lag, committed: Longs, *, tps: Sequence[TopicPartition], which: Longs, logs: Logs
) -> None:
    """Since when each row has waited."""
    lag.seconds[:] = lag.waited[:] = np.where(lag.records == 0, 0.0, np.nan)
    rows = np.flatnonzero(lag.records > 0)
    if len(rows):
        last = (lag.end - lag.records)[rows]
        lag.seconds[rows], lag.waited[rows] = logs.before.ages(tps, which[rows], last, logs.at)
        # Of a share group the oldest record that waits is that one, or one before it.
        lag.seconds[rows[np.maximum(committed, lag.start)[rows] < last]] = np.nan


def records_waiting(
    committed: Longs,
    *,
    start: Longs,
    end: Longs,
    deleted: Rows,
    unreadable: Rows,
    counted: Longs,
    left: Rows,
) -> tuple[Longs, NDArray[np.int8]]:
    """Records that wait in each row (never negative; NONE: it cannot be said), and its case."""
    unknown = (start == NONE) | (end == NONE)
    shared = counted != NO_SHARE
    case = np.select(
        [
            deleted,
            left,
            unreadable,
            committed < 0,
            unknown,
            committed > end,
            shared & (counted == NONE) & (committed < end),
            ~shared & (committed < start),
        ],
        [
            _CODE[LagCase.TOPIC_DELETED],
            _CODE[LagCase.LEFT],
            _CODE[LagCase.UNKNOWN],
            _CODE[LagCase.NEVER_COMMITTED],
            _CODE[LagCase.UNKNOWN],
            _CODE[LagCase.BEYOND_END],
            _CODE[LagCase.UNKNOWN],
            _CODE[LagCase.BELOW_START],
        ],
        _CODE[LagCase.OK],
    ).astype(np.int8)
    behind, below = case == _CODE[LagCase.OK], case == _CODE[LagCase.BELOW_START]
    waiting = np.where(shared & (counted != NONE), counted, end - committed)
    records = np.select([behind, below], [waiting, end - start], np.int64(NONE))
    return records.astype(np.int64), case


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """One group, but for its partitions."""

    state: GroupState
    type: str
    members: int | None
    exists: bool = True
    assignor: str | None = None
    generation: int | None = None
    """None where only the coordinators were asked: they do not tell it."""
    changed_at: float | None = None
    """Wall time of its last rebalance or membership record; None where none is known."""
    topics: frozenset[str] | None = None
    """Names and patterns (KIP-848) that its members subscribe to; None where they are not known."""

    def has_left(self, topic: str) -> bool:
        """Whether the group is settled and no member subscribes to the topic."""
        if self.state is not GroupState.STABLE or not self.topics or topic in self.topics:
            return False
        return not any(_fits(each, topic) for each in self.topics)


_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def _fits(pattern: str, topic: str) -> bool:
    """Whether a broker's pattern takes a topic; one that Python cannot read might."""
    try:
        return _NAME.fullmatch(pattern) is None and re.fullmatch(pattern, topic) is not None
    except re.error:
        return True


class Figures(NamedTuple):
    """The figures of one group over all its partitions."""

    partitions: int
    committed: int
    """Sum of the committed offsets."""
    lag: int | None
    """Records that wait where the lag is known; None if it is known nowhere."""
    age: float | None
    """Age in seconds of the oldest waiting record, or its lower bound; None if unknown."""
    undated: int
    """Partitions of existing topics without a lag, or without the age of what waits."""
    moved: float | None
    """Wall time of the last commit that went forward; None if unknown."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """Groups at one moment; nobody re-reads in the middle of a decision.

    Columns are aligned with `commits`; an unknown lag is NONE, unknown seconds are NaN.
    """

    cluster: str
    at: float
    took: float
    """Seconds the snapshot took."""
    facts: Mapping[str, GroupFacts]
    topics: Mapping[str, int]
    """Topic name → number of partitions (internal topics left out)."""
    commits: Commits
    lag: Lag
    gained: Floats
    """By how much `lag.waited` grew over the last `over` seconds."""
    over: Floats
    members: Mapping[str, tuple[Member, ...]] = field(default_factory=dict)
    """As the coordinators describe them; groups of which they were not asked are left out."""
    problems: tuple[str, ...] = ()
    """What could not be read, in sentences; a part that failed does not spoil the rest."""
    partial: bool = False
    """Some broker did not list its groups, so groups may be missing."""
    held: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Of partitions of the case HELD: which transaction it is."""
    from_log: bool = False
    """Members and commits are the tail's; else the coordinators were asked."""
    groups: Mapping[str, GroupSnapshot] = field(init=False, repr=False)
    """One group as values."""

    def __post_init__(self) -> None:
        made = _Groups(self.facts, self.members, self.commits, self.lag)
        object.__setattr__(self, "groups", made)

    def where(self, rows: Rows | Longs | slice) -> "Snapshot":
        """Returns only these rows, as columns."""
        return replace(
            self,
            commits=self.commits.where(rows),
            lag=self.lag.where(rows),
            gained=self.gained[rows],
            over=self.over[rows],
        )

    def portions(self) -> Iterator["Snapshot"]:
        """All rows, some at once."""
        return map(self.where, portions(len(self.commits)))

    def only(self, wanted: Callable[[str], bool]) -> "Snapshot":
        """Returns only the wanted groups."""
        facts = {group: facts for group, facts in self.facts.items() if wanted(group)}
        return replace(self.where(self.commits.of_groups(facts)), facts=facts)

    def figures(self) -> dict[str, Figures]:
        """Returns the figures of each group with a committed partition, without making values."""
        commits, size = self.commits, len(self.commits.groups)
        records, which = self.lag.records, self.commits.group
        known, waits = records != NONE, records > 0
        gone = np.isin(self.lag.case, (_CODE[LagCase.TOPIC_DELETED], _CODE[LagCase.LEFT]))
        age = np.full(size, np.nan)
        ages = np.where(np.isnan(self.lag.seconds), self.lag.waited, self.lag.seconds)
        np.fmax.at(age, which[waits], ages[waits])
        undated = ~known & ~gone | waits & np.isnan(self.lag.seconds)
        moved = np.full(size, NONE, dtype=np.int64)
        np.maximum.at(moved, which, commits.moved)
        counts = np.bincount(which[known], minlength=size)
        age[(counts > 0) & (np.bincount(which[waits], minlength=size) == 0)] = 0.0
        columns = (
            np.bincount(which, minlength=size),
            np.bincount(which, np.maximum(commits.committed, 0), minlength=size),
            np.bincount(which[known], records[known], minlength=size),
            np.bincount(which[undated], minlength=size),
            counts,
            age,
            moved,
        )
        rows = zip(commits.groups, *(column.tolist() for column in columns), strict=False)
        return {
            group: Figures(
                partitions=partitions,
                committed=int(committed),
                lag=int(lag) if is_told else None,
                age=None if np.isnan(age) else age,
                undated=undated,
                moved=None if moved == NONE else moved / 1000,
            )
            for group, partitions, committed, lag, undated, is_told, age, moved in rows
            if partitions
        }


class _Groups(Mapping[str, GroupSnapshot]):
    """Groups as values, each made when it is asked for.

    It holds columns and no snapshot: a circle would keep every look until garbage is collected.
    """

    def __init__(
        self,
        facts: Mapping[str, GroupFacts],
        members: Mapping[str, tuple[Member, ...]],
        commits: Commits,
        lag: Lag,
    ) -> None:
        self._facts, self._members, self._commits, self._lag = facts, members, commits, lag
        self._made: dict[str, GroupSnapshot] = {}
        self._rows: dict[str, Longs] | None = None

    def __getitem__(self, group: str) -> GroupSnapshot:
        if group not in self._made:
            self._made[group] = self._group(group, self._facts[group])
        return self._made[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def _group(self, group: str, facts: GroupFacts) -> GroupSnapshot:
        members = self._members.get(group, ())
        owners = {tp: member.member_id for member in members for tp in member.partitions}
        return GroupSnapshot(
            group=group,
            exists=facts.exists,
            state=facts.state,
            type=facts.type,
            assignor=facts.assignor,
            members=members,
            partitions=tuple(sorted(self._partitions(group, owners), key=lambda each: each.tp)),
        )

    def _partitions(
        self, group: str, owners: Mapping[TopicPartition, str]
    ) -> Iterator[PartitionState]:
        rows = self._rows_of(group)
        commits, lag = self._commits, self._lag
        columns = (
            commits.topic, commits.partition, commits.committed, lag.start, lag.end, lag.records,
            lag.seconds, lag.case,
        )  # fmt: skip
        for topic, number, committed, start, end, records, seconds, code in zip(
            *(column[rows].tolist() for column in columns), strict=True
        ):
            tp, case = TopicPartition(commits.topics[topic], number), CASES[code]
            gone = case is LagCase.TOPIC_DELETED
            yield PartitionState(
                tp=tp,
                committed=_known(committed),
                log_start=None if gone else _known(start),
                log_end=None if gone else _known(end),
                lag=_known(records),
                lag_seconds=None if np.isnan(seconds) else seconds,
                case=case,
                owner=owners.get(tp),
            )

    def _rows_of(self, group: str) -> Longs:
        if self._rows is None:
            commits = self._commits
            order = np.argsort(commits.group, kind="stable")
            ends = np.searchsorted(commits.group[order], np.arange(1, len(commits.groups) + 1))
            self._rows = dict(zip(commits.groups, np.split(order, ends)[:-1], strict=True))
        return self._rows.get(group, np.zeros(0, dtype=np.int64))


def _known(offset: int) -> int | None:
    return None if offset == NONE else offset


def rates(before: Snapshot, now: Snapshot) -> dict[str, tuple[float | None, float | None]]:
    """Records per second of each group since a snapshot before: produced and consumed.

    Over the partitions that both know; one whose offset went back tells nothing.
    """
    place = now.commits.places_in(before.commits)
    seconds = now.at - before.at
    found: dict[str, list[float | None]] = {}
    pairs = ((before.lag.end, now.lag.end), (before.commits.committed, now.commits.committed))
    for index, (then, is_now) in enumerate(pairs):
        old = np.where(place == NONE, np.int64(NONE), then[place] if len(then) else np.int64(NONE))
        comparable = (old != NONE) & (is_now != NONE) & (is_now >= old) & (seconds > 0)
        size = len(now.commits.groups)
        grown = np.bincount(
            now.commits.group[comparable], (is_now - old)[comparable], minlength=size
        )
        count = np.bincount(now.commits.group[comparable], minlength=size)
        for group, sum_, many in zip(
            now.commits.groups, grown.tolist(), count.tolist(), strict=True
        ):
            if many:
                found.setdefault(group, [None, None])[index] = sum_ / seconds
    return {group: (produced, consumed) for group, (produced, consumed) in found.items()}
