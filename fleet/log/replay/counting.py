"""Counts what a part of one group's records cost: rebalances, moves and downtime. Pure.

Problem: no metric shows how often a group rebalanced or what a change cost; the log does. Choice:
the replay of the history (`causes`) reads the state before this part, then the part. A rebalance
that begins in it counts, even without its end. A partition moves with the last rebalance that
began, also if its new owner comes late. Members are named by instance id if they have one, so a
static restart changes no owner. A partition that a cooperative round withholds (KIP-429) keeps its
last owner until another member gets it, so that it moves once. Cost: the state before must be read
first (`GroupLog.last_state`).

A downtime [27] lasts from the last commit of a partition before its handover to the first one after
it, by record time, less the median gap of up to 20 commits before. Only commits that advance the
offset count. With fewer than two commits before, the downtime is unknown. Without a commit after
it, it lasts to the last record so far. It counts only if the partition was read until its handover,
since a partition without input has no commits either.

A silence needs no handover: commits came steadily, then none for much longer than usual (a broker
was away, an owner or a standby was frozen). It counts once the next commit comes, since a partition
may just have no input.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from fleet.log.records import OffsetCommit, Record, Tombstone, Undecoded
from fleet.log.replay.causes import Replay
from fleet.model import TopicPartition
from fleet.model.rebalances import Rebalance, RebalanceCounts
from fleet.model.sessions import SessionLookup, no_session_lookup

_GAPS = 20
_SILENT_GAPS = 5
"""Usual gaps without a commit: nothing came to a partition before its hand-over."""
_STEADY_GAPS = 3
"""Usual gaps that the longest of the gaps before may have, of commits that come steadily."""
_LEAST_COMMITS = 6
"""Commits that show whether they come steadily."""
_LEAST_SILENCE = 3.0
"""Seconds: shorter ones are a rebalance's, or a busy machine's."""
_PLACE = -1
"""Which partition of the log it is makes no difference here."""


def count(
    records: Sequence[Record],
    *,
    before: Record | Sequence[Record] | None = None,
    topics: Mapping[str, str] | None = None,
    session: SessionLookup = no_session_lookup,
) -> RebalanceCounts:
    """What `records` of one group (in order of the log) cost.

    `before` is the state at their start (`GroupLog.last_state`, or a single record); `topics`
    names topic ids that no commit in the records names; `session` tells a KIP-848 group's.
    """
    earlier = (before,) if isinstance(before, Record) else tuple(before or ())
    both = (*earlier, *records)
    names = dict(topics or {})
    for record in both:
        if isinstance(record, OffsetCommit) and record.topic_id is not None:
            names[record.topic_id] = record.tp.topic
    group = next((str(name) for each in both if (name := getattr(each, "group", None))), "")
    stretch = _Stretch(group, names, session)
    for record in earlier:
        stretch.feed(record)
    stretch.begin()
    for record in records:
        stretch.feed(record)
    return stretch.result()


class _Stretch:
    """The replay of one group, and what it told since `begin`."""

    def __init__(self, group: str, names: Mapping[str, str], session: SessionLookup) -> None:
        self._group = group
        self._replay = Replay("", group)
        self._replay.ask_session(session)
        self._replay.name_topics(names)
        self._pauses = _Pauses()
        self._latest = 0
        self.begin()

    def begin(self) -> None:
        """What was fed so far only made the state."""
        self._first = self._replay.number
        self._found: dict[int, Rebalance] = {}
        self._moved: dict[int, set[TopicPartition]] = {}
        self._replacements = self._undecoded = 0
        self._pauses.begin(self._latest / 1000)

    def feed(self, record: Record) -> None:
        """The next one of the log."""
        self._latest = max(self._latest, record.timestamp_ms)
        if isinstance(record, OffsetCommit):
            self._replay.feed(_PLACE, record)
            self._pauses.commit(record)
            return
        if isinstance(record, Undecoded):
            self._undecoded += 1
        elif isinstance(record, Tombstone) and record.tp is not None:
            self._pauses.forget(record.tp)
        passed_on: list[TopicPartition] = []
        for row in self._replay.feed(_PLACE, record):
            if isinstance(row, Rebalance):
                self._take(row, record)
            elif row.event == "replaced":
                self._replacements += 1
                passed_on += self._replay.had(row.member)
        for begun in self._replay.pending():
            self._take(begun, record)
        if self._found:
            self._moved[max(self._found)].update(self._replay.moved)
        self._pauses.passed_on((*passed_on, *self._replay.moved), record.timestamp_ms / 1000)

    def _take(self, row: Rebalance, record: Record) -> None:
        """One that this record began, or that is known from where it began."""
        if row.log_offset == record.offset or row.log_offset in self._found:
            self._found[row.log_offset] = row
            self._moved.setdefault(row.log_offset, set())

    def result(self) -> RebalanceCounts:
        """Returns everything that was counted."""
        return RebalanceCounts(
            group=self._group,
            generations=tuple(
                replace(row, moved=tuple(sorted(self._moved[offset])))
                for offset, row in self._found.items()
            ),
            replacements=self._replacements,
            pauses=dict(self._pauses.longest),
            every_downtime=tuple(self._pauses.every),
            open_downtimes=self._pauses.open_downtimes(self._latest / 1000),
            silences=dict(self._pauses.silences),
            from_generation=self._first,
            to_generation=self._replay.number,
            owners={tp: m.identity for m in self._replay.members() for tp in m.owned},
            undecoded=self._undecoded,
        )


@dataclass(slots=True)
class _Commits:
    """The advancing commits of one partition."""

    committed: int = -1
    times: deque[float] = field(default_factory=lambda: deque(maxlen=_GAPS + 1))

    def usual_gap(self) -> float | None:
        gaps = [b - a for a, b in pairwise(self.times)]
        return median(gaps) if gaps else None

    def silence(self, at: float, *, since: float) -> float | None:
        """Seconds without a commit until `at`, beyond the usual; None where it is none, where
        commits do not come steadily, or where it began before `since`.
        """
        gaps = [b - a for a, b in pairwise(self.times)]
        if len(gaps) < _LEAST_COMMITS - 1:
            return None
        usual = median(gaps)
        beyond = at - self.times[-1] - usual
        steady = max(gaps) <= _STEADY_GAPS * usual
        ours = self.times[-1] + _SILENT_GAPS * usual >= since
        long = beyond > max(_SILENT_GAPS * usual, _LEAST_SILENCE)
        return beyond if steady and ours and long else None


class _Pauses:
    """Hand-overs that wait for the new owner's first commit, and how long each took."""

    def __init__(self) -> None:
        self._commits: dict[TopicPartition, _Commits] = {}
        self.begin()

    def begin(self, at: float = 0.0) -> None:
        self._began = at
        self.silences: dict[TopicPartition, float] = {}
        self._waiting: dict[TopicPartition, tuple[float, float] | None] = {}
        self._idle: set[TopicPartition] = set()
        self.longest: dict[TopicPartition, float] = {}
        self.every: list[float] = []

    def commit(self, record: OffsetCommit) -> None:
        known = self._commits.setdefault(record.tp, _Commits())
        advances = record.committed > known.committed
        known.committed = record.committed
        if not advances:
            return
        at = record.timestamp_ms / 1000
        start = self._waiting.pop(record.tp, None)
        if start is not None:
            pause = max(0.0, at - start[0] - start[1])
            self.longest[record.tp] = max(pause, self.longest.get(record.tp, 0.0))
            self.every.append(pause)
        if (silence := known.silence(at, since=self._began)) is not None:
            self.silences[record.tp] = max(silence, self.silences.get(record.tp, 0.0))
        known.times.append(at)

    def passed_on(self, partitions: Iterable[TopicPartition], at: float) -> None:
        for tp in partitions:
            if tp in self._waiting:
                continue  # passed on before its owner committed anything: one pause
            known = self._commits.get(tp)
            gap = known.usual_gap() if known else None
            start = None if known is None or gap is None else (known.times[-1], gap)
            self._waiting[tp] = start
            if start is None or at - start[0] > _SILENT_GAPS * start[1]:
                self._idle.add(tp)
            else:
                self._idle.discard(tp)

    def open_downtimes(self, at: float) -> dict[TopicPartition, float]:
        return {
            tp: at - start[0] - start[1]
            for tp, start in self._waiting.items()
            if start is not None and tp not in self._idle and at > start[0] + start[1]
        }

    def forget(self, tp: TopicPartition) -> None:
        self._commits.pop(tp, None)
