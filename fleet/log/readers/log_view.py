"""Keeps the state that the records of `__consumer_offsets` describe. No connection here.

Problem: one thread reads and several query, and the records are thousands of commits with few
membership records. Choice: one lock. Commits go into columns by their key's bytes
(fleet.log.readers.positions). Other records are decoded one by one into the group's replay
(fleet.log.replay.causes), which knows the members and the causes of rebalances, and reads the last
commits from the columns. Cost: a reader of many records keeps the lock for some 10 ms at a time.
States between records (a join phase) are missing; ListGroups returns them.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

import numpy as np

from fleet.clock import Clock
from fleet.kafka_source.record_batches import Cut
from fleet.kafka_source.record_fields import Fields, fields
from fleet.lag.lag_columns import Commits
from fleet.log.readers.positions import Ints, Positions, committed_in, key_of, key_to
from fleet.log.records import GroupMetadata, OffsetCommit, Record, Undecoded, decode, partition_for
from fleet.log.replay.causes import Replay, ReplayedCommit
from fleet.log.replay.group_state import RoundStarts
from fleet.model import TopicPartition
from fleet.model.rebalances import Cause, MembershipSpan, Rebalance, Totals, standing
from fleet.model.sessions import SessionAtRemoval

# A truncated log is read a second time, and nothing may be shown or counted twice. So the view
# notes the time of the last record that it had read of each group. A row up to that time is a kept
# one, by its place in the log, or was dropped before.

Kept = TypeVar("Kept", Rebalance, MembershipSpan)


class KeptRebalances:
    """Keeps rebalances for `keep` seconds, `most` per group at most. Not safe for threads."""

    def __init__(self, *, keep: float, most: int) -> None:
        self._keep, self._most = keep, most
        self._rebalances: dict[str, deque[Rebalance]] = {}
        self._memberships: dict[str, deque[MembershipSpan]] = {}
        self._totals: dict[str, Totals] = {}
        self._until: dict[str, int] = {}
        """Time (ms) up to which groups were read whose log was truncated since."""
        self._cut_at = 0.0
        self.counting_from = 0.0
        """Wall time from which on rebalances count."""

    def add(self, made: Rebalance | MembershipSpan, now: float) -> None:
        """Keeps and counts a row, unless it was kept before its log was truncated."""
        if isinstance(made, Rebalance):
            if self._keep_one(self._rebalances, made, now) and made.ended_at >= self.counting_from:
                self._totals.setdefault(made.group, Totals()).add(made)
        else:
            self._keep_one(self._memberships, made, now)

    def _keep_one(self, rows: "dict[str, deque[Kept]]", made: Kept, now: float) -> bool:
        kept = rows.get(made.group, deque())
        if _at(made) <= self._until.get(made.group, 0) / 1000:
            forgotten = now - self._keep
            if len(kept) == self._most:
                forgotten = max(forgotten, _at(kept[0]))
            if _at(made) < forgotten or any(_place(each) == _place(made) for each in kept):
                return False
        rows.setdefault(made.group, deque(maxlen=self._most)).append(made)
        return True

    def cut(self, groups: Mapping[str, int], now: float) -> None:
        """Notes that these groups are read again, with the time (ms) up to which they were read."""
        self._cut_at = now
        for group, ms in groups.items():
            self._until[group] = max(ms, self._until.get(group, 0))

    def rebalances(
        self, group: str | None, since: float | None, until: float | None, cause: Cause | None
    ) -> list[Rebalance]:
        """Returns the kept rebalances, oldest first; of all groups if `group` is None."""
        kept = _of(self._rebalances, group)
        return _between((r for r in kept if cause is None or r.cause is cause), since, until)

    def memberships(
        self, group: str, since: float | None, until: float | None
    ) -> list[MembershipSpan]:
        """Those kept, oldest first."""
        return _between(_of(self._memberships, group), since, until)

    def totals(self) -> dict[str, Totals]:
        """Returns the counts of each group; groups without any are left out."""
        return {group: totals.copy() for group, totals in self._totals.items()}

    def prune(self, now: float, known: Collection[str]) -> None:
        """Drops old rows, and groups that did not come back (`known`) after a truncation."""
        oldest = now - self._keep
        _drop_before(self._rebalances, oldest)
        _drop_before(self._memberships, oldest)
        if self._cut_at < oldest:
            for group in self._until.keys() - known:
                self.forget(group)

    def forget(self, group: str) -> None:
        """Drops the group's counts."""
        self._totals.pop(group, None)
        self._until.pop(group, None)


def _at(row: Rebalance | MembershipSpan) -> float:
    return row.ended_at if isinstance(row, Rebalance) else row.at


def _place(row: Rebalance | MembershipSpan) -> tuple[object, ...]:
    """Returns what identifies a row, however often it is derived."""
    what = () if isinstance(row, Rebalance) else (row.member, row.event)
    return row.log_partition, row.log_offset, row.number, *what


def _of(kept: "Mapping[str, deque[Kept]]", group: str | None) -> list[Kept]:
    if group is not None:
        return list(kept.get(group, ()))
    return [each for group_s in kept.values() for each in group_s]


def _between(kept: Iterable[Kept], since: float | None, until: float | None) -> list[Kept]:
    found = [
        each
        for each in kept
        if (since is None or _at(each) >= since) and (until is None or _at(each) < until)
    ]
    return sorted(found, key=_at)


def _drop_before(kept: "dict[str, deque[Kept]]", oldest: float) -> None:
    for group in list(kept):
        while kept[group] and _at(kept[group][0]) < oldest:
            kept[group].popleft()
        if not kept[group]:
            del kept[group]


# Only the commits of an open transaction wait for its end marker, as in the coordinator. They count
# if it committed, unless a later commit of the same partition and group counts already (KIP-98,
# KIP-447; Kafka's OffsetMetadataManager).


class PendingRecord(NamedTuple):
    """A record of the offsets topic that waits for its transaction; `ms` is its time."""

    offset: int
    ms: int
    key: bytes | None
    value: bytes | None


class OpenTransaction(NamedTuple):
    """An open transaction with offsets: partition of the offsets topic, producer, begin (wall
    time), and the number of partitions with commits.
    """

    partition: int
    producer: int
    since: float
    commits: int


class PendingCommits:
    """Keeps the commits of open transactions, by partition of the offsets topic and producer."""

    def __init__(self) -> None:
        self._pending: dict[tuple[int, int], dict[bytes | None, PendingRecord]] = {}
        self._since: dict[tuple[int, int], int] = {}
        self._numbers: frozenset[int] = frozenset()

    def has_open(self, number: int) -> bool:
        """Returns whether a transaction is open in this partition of the topic."""
        return number in self._numbers

    def add_record(self, number: int, producer: int, record: PendingRecord) -> None:
        """Keeps a record until its transaction ends."""
        place = (number, producer)
        if place not in self._pending:
            self._pending[place], self._since[place] = {}, record.ms
            self._numbers |= {number}
        self._pending[place].pop(record.key, None)
        self._pending[place][record.key] = record

    def drop_overtaken(self, number: int, by: PendingRecord) -> None:
        """Drops pending records of the same key that are older than this record."""
        for place, records in self._pending.items():
            found = records.get(by.key) if place[0] == number else None
            if found is not None and found.offset < by.offset:
                del records[by.key]

    def end(self, number: int, producer: int, *, committed: bool) -> Iterable[PendingRecord]:
        """Ends a transaction; returns the records that now count, in the order written."""
        place = (number, producer)
        found = self._pending.pop(place, {})
        self._since.pop(place, None)
        self._numbers = frozenset(partition for partition, _ in self._pending)
        return tuple(found.values()) if committed else ()

    def forget(self, number: int) -> None:
        """Drops the partition's pending records, because it is read again."""
        for place in [each for each in self._pending if each[0] == number]:
            self.end(*place, committed=False)

    def open(self) -> Collection[OpenTransaction]:
        """Returns all open transactions, oldest first."""
        found = [
            OpenTransaction(number, producer, self._since[number, producer] / 1000, len(records))
            for (number, producer), records in self._pending.items()
        ]
        return sorted(found, key=lambda each: each.since)


KEEP: Final = 86_400.0
"""Seconds for which rebalances are kept."""
_KINDS: Final = 200
"""Most kinds of undecodable records: noise must not create labels without limit."""
_CONFIGURED: Final = frozenset({"consumer", "share", "streams"})
MOST: Final = 1_000
"""Rebalances kept of one group."""


def all_groups(_: str) -> bool:
    """Selects every group."""
    return True


class Summary(NamedTuple):
    """A group without its members' names."""

    type: str
    """classic | consumer | share | streams."""
    generation: int | None
    """Generation, or assignment epoch; None where no record tells."""
    members: int


class LogView:
    """The state of all groups after the records read so far. Safe for several readers.

    `groups` chooses by group id; rebalances are kept for `keep` seconds and at most `most` a
    group, groups are forgotten with their last record.
    """

    def __init__(
        self,
        *,
        cluster: str,
        clock: Clock,
        groups: Callable[[str], bool],
        keep: float,
        most: int,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self.chosen = groups
        """Whether a group is one of those looked at."""
        self._keep = keep
        self._lock = threading.Lock()
        # Under the lock from here.
        self._positions = Positions()
        self._replays: dict[str, Replay] = {}
        self._changed: dict[str, int] = {}
        self._epochs: dict[int, int] = {}
        self._kept = KeptRebalances(keep=keep, most=most)
        self._starts = RoundStarts()
        self._names: dict[str, str] = {}
        self._pending = PendingCommits()
        self._errors: dict[tuple[int, int], int] = {}
        self._records = 0
        self.session: Callable[[str, str, float], SessionAtRemoval | None] = lambda *_: None
        """A group's session by name, protocol and time of a removal, where somebody asks."""

    @property
    def records(self) -> int:
        """Records read so far."""
        with self._lock:
            return self._records

    def groups(self) -> frozenset[str]:
        """Groups of which a member, an epoch or a commit is known."""
        with self._lock:
            living = {name for name, replay in self._replays.items() if replay.exists}
            return self._positions.groups() | living

    def summaries(self) -> dict[str, Summary]:
        """Type, generation and number of members of every group with membership records."""
        with self._lock:
            return {
                name: Summary(replay.protocol or "unknown", replay.number, replay.size)
                for name, replay in self._replays.items()
                if replay.exists
            }

    def subscriptions(self) -> dict[str, frozenset[str]]:
        """Topics and patterns of each group's members, and what they own; where all are known."""
        with self._lock:
            found = {name: replay.members() for name, replay in self._replays.items()}
            return {
                name: frozenset(
                    topic
                    for each in members
                    for topic in (*each.topics, *(tp.topic for tp in each.owned))
                )
                for name, members in found.items()
                if members and all(each.topics for each in members)
            }

    def configured(self) -> dict[str, str]:
        """Groups whose session timeout is configuration, with their protocols."""
        return {name: one.type for name, one in self.summaries().items() if one.type in _CONFIGURED}

    def changed(self) -> dict[str, float]:
        """Wall time of each group's last membership record."""
        with self._lock:
            return {name: ms / 1000 for name, ms in self._changed.items()}

    def commits(self) -> Commits:
        """The last commit of every partition of every group, as columns."""
        with self._lock:
            return self._positions.copy()

    def committed(self, group: str) -> dict[TopicPartition, tuple[int, float]]:
        """Committed offset and its wall time per partition of one group."""
        with self._lock:
            found = self._positions.of_group(group)
        return {tp: (offset, ms / 1000) for tp, (offset, ms) in found.items()}

    def rebalances(
        self,
        *,
        group: str | None = None,
        since: float | None = None,
        until: float | None = None,
        cause: Cause | None = None,
    ) -> list[Rebalance]:
        """Rebalances kept, oldest first; `since` and `until` are wall times of their ends."""
        with self._lock:
            return self._kept.rebalances(group, since, until, cause)

    def memberships(
        self, *, group: str, since: float | None = None, until: float | None = None
    ) -> list[MembershipSpan]:
        """Who joined, left, was replaced or got other partitions, oldest first."""
        with self._lock:
            return self._kept.memberships(group, since, until)

    def standing(self, *, group: str, at: float) -> list[MembershipSpan]:
        """Of those kept before a time: of the members then, since they came."""
        return standing(self.memberships(group=group, until=at))

    def totals(self) -> dict[str, Totals]:
        """Rebalances of each group since `start`, counted; groups without any are left out."""
        with self._lock:
            return self._kept.totals()

    def open_transactions(self) -> Collection[OpenTransaction]:
        """Transactions with offsets that have not ended: their commits do not count yet."""
        with self._lock:
            return self._pending.open()

    def decode_errors(self) -> dict[tuple[int, int], int]:
        """Records that could not be read, by record type and value version (-1: neither)."""
        with self._lock:
            return dict(self._errors)

    def unnamed_topics(self) -> frozenset[str]:
        """Topic ids in assignments that no commit has named: see `name_topics`."""
        with self._lock:
            owned = {
                tp.topic
                for replay in self._replays.values()
                if replay.protocol == "consumer"
                for member in replay.members()
                for tp in member.owned
            }
            return frozenset(owned - self._names.keys() - set(self._names.values()))

    def name_topics(self, names: Mapping[str, str]) -> None:
        """Tell the names of topic ids (32 hex digits)."""
        with self._lock:
            new = {i: n for i, n in names.items() if self._names.get(i) != n}
            self._names.update(new)
            for replay in self._replays.values() if new else ():
                replay.name_topics(self._names)

    def unsettled(
        self, groups: frozenset[str], *, asked: float, answered: float, whole: bool
    ) -> None:
        """Groups that were found in a rebalance, between two wall times (RoundStarts.look)."""
        with self._lock:
            self._starts.look(groups, asked=asked, answered=answered, whole=whole)

    def listed(self, groups: frozenset[str]) -> None:
        """Groups that can be found so."""
        with self._lock:
            self._starts.listed(groups)

    # --- taking records, under the lock ---------------------------------------------------------

    def _record(
        self, number: int, offset: int, ms: int, key: bytes | None, value: bytes | None
    ) -> None:
        """Take one record of partition `number`; the lock is the caller's."""
        self._records += 1
        if not _is_commit(key or b"") or not self._positions.commit(key_of(key or b""), value, ms):
            self._event(number, offset, ms, key, value)

    def _batches(self, number: int, found: Cut) -> None:
        """Take record batches of partition `number`; the lock is the caller's.

        Raises DamagedBatch where a record in them is none.
        """
        batches = found.batches
        for row in np.flatnonzero(np.diff(batches.epoch, prepend=-1)).tolist():
            self._led(number, int(batches.epoch[row]), int(batches.max_time[row]))
        read = fields(batches)
        producer = batches.producer[read.batch]
        start = 0
        for marker in found.markers:
            end = int(np.searchsorted(read.offset, marker.offset))
            self._stretch(number, read.rows(slice(start, end)), producer[start:end])
            start = end
            for held in self._pending.end(number, marker.producer, committed=marker.committed):
                self._counts(number, held)
        self._stretch(number, read.rows(slice(start, None)), producer[start:])

    def _stretch(self, number: int, read: Fields, producer: Ints) -> None:
        """Records between two ends of transactions: known commits together, others one by one."""
        keys = read.key_list()
        rows = self._positions.rows(keys)
        plain, committed = committed_in(read)
        plain &= (rows >= 0) & (producer < 0)
        # A position that is dropped here may come again, and its row be another's by then.
        without_value = (keys[each] or b"" for each in np.flatnonzero(read.value_size < 0))
        gone = [key_of(key) for key in without_value if _is_commit(key)]
        if gone:
            plain &= ~np.isin(rows, self._positions.rows(gone))
        if self._pending.has_open(number) or (producer >= 0).any():
            plain[:] = False
        stops = [*np.flatnonzero(~plain).tolist(), len(keys)]
        at = 0
        for stop in stops:
            if stop > at:
                self._positions.commit_rows(
                    rows[at:stop], committed[at:stop], read.timestamp[at:stop]
                )
                self._records += stop - at
            if stop < len(keys):
                record = (int(read.offset[stop]), int(read.timestamp[stop]), keys[stop])
                held = PendingRecord(*record, read.value(stop))
                if producer[stop] >= 0:
                    self._pending.add_record(number, int(producer[stop]), held)
                else:
                    self._counts(number, held)
            at = stop + 1

    def _counts(self, number: int, record: PendingRecord) -> None:
        """Outside of a transaction, or when it ended."""
        if self._pending.has_open(number):
            self._pending.drop_overtaken(number, record)
        self._record(number, *record)

    def _led(self, number: int, epoch: int, ms: int) -> None:
        """A record of another leader epoch: the groups of that partition have a new coordinator."""
        known = self._epochs.get(number)
        self._epochs[number] = epoch
        if known is not None and epoch > known:
            for replay in self._replays.values():
                if replay.log_partition == number:
                    replay.coordinator_moved(ms / 1000)

    def _event(
        self, number: int, offset: int, ms: int, key: bytes | None, value: bytes | None
    ) -> None:
        """Whatever is no repeated commit: decoded in full."""
        record = decode(key, value, offset=offset, timestamp=ms)
        unread = isinstance(record, GroupMetadata) and any(m.problem for m in record.members)
        if unread or isinstance(record, Undecoded):
            version = -1 if value is None or len(value) < 2 else int.from_bytes(value[:2], "big")
            self._undecodable(record.type, version)
        if isinstance(record, Undecoded):
            return
        group = str(getattr(record, "group", ""))
        if not self.chosen(group):
            return
        if isinstance(record, OffsetCommit):
            assert key is not None
            self._positions.take(record, key_of(key))
            if record.topic_id is not None and record.topic_id not in self._names:
                self._names[record.topic_id] = record.tp.topic
                if group in self._replays:
                    self._replays[group].name_topics(self._names)
            return
        if record.type > 1:
            self._membership(number, group, record)

    def _undecodable(self, kind: int, version: int) -> None:
        known = (kind, version)
        if known not in self._errors and len(self._errors) >= _KINDS:
            known = (-1, -1)
        self._errors[known] = self._errors.get(known, 0) + 1

    def _membership(self, number: int, group: str, record: Record) -> None:
        if record.timestamp_ms > 0:
            self._changed[group] = record.timestamp_ms
        replay = self._replays.get(group)
        if replay is None:
            replay = self._replays[group] = Replay(self._cluster, group)
            replay.name_topics(self._names)
            replay.ask_commits(lambda tp: self._committed(group, tp))
            replay.ask_start(partial(self._starts.of, group))
            replay.ask_session(lambda protocol, at: self.session(group, protocol, at))
        for made in replay.feed(number, record):
            self._kept.add(made, self._clock.now())

    def _forget(self, number: int, of: int) -> None:
        """Partition `number` of so many was cut or recreated, and is read anew; the lock is the
        caller's. Rebalances stay; who is there and what was committed is what the log says now.
        """
        groups = self._positions.groups()
        self._positions.drop({group for group in groups if partition_for(group, of) == number})
        self._pending.forget(number)
        self._epochs.pop(number, None)
        theirs = [name for name, replay in self._replays.items() if replay.log_partition == number]
        for group in theirs:
            del self._replays[group]
        read = {group: self._changed.pop(group, 0) for group in theirs}
        self._kept.cut(read, self._clock.now())

    def _committed(self, group: str, tp: TopicPartition) -> ReplayedCommit | None:
        """What a replay asks: the last commit of a partition, and its rhythm."""
        found = self._positions.rhythm(key_to(group, tp))
        if found is None:
            return None
        offset, ms, gap, early = found
        return ReplayedCommit(offset, ms / 1000, None if gap < 0 else gap / 1000, early)

    def _prune(self) -> None:
        """Forget what is older than `keep`, and groups that are gone for that long."""
        now = self._clock.now()
        with self._lock:
            self._kept.prune(now, self._replays)
            for group in [name for name, replay in self._replays.items() if not replay.exists]:
                if self._changed.get(group, 0) / 1000 < now - self._keep:
                    self._replays.pop(group)
                    self._changed.pop(group, None)
                    self._kept.forget(group)


def _is_commit(key: bytes) -> bool:
    return len(key) > 2 and key[0] == 0 and key[1] <= 1
