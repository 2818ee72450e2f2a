"""What the driver makes of the files that Spark wrote for one batch: rebalances and memory.

Problem: a replay wants each group's records in order, but commits are millions and say little:
they only tell when partitions were last worked on before an event. Choice: events are fed whole,
commits only where they are the last one of their partition before an event of their group, or the
last of the batch. Cost: events times partitions of their groups, some 10 µs each, on a first
catch-up, when every group has events; next to nothing afterwards.
"""

import json
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from fleet.history.job_memory import DELETED, JobMemory, Kept, Key, LastCommit
from fleet.history.rollup import codes, runs
from fleet.history.tables.table_columns import TABLES, column_of, decoded
from fleet.history.tables.table_folder import TableFolder
from fleet.history.tables.table_manifests import DataFile, Led
from fleet.history.tables.table_rows import membership_row, rebalance_row
from fleet.lag.gap import is_early, usual_gap
from fleet.log.record_columns import LED
from fleet.log.records import Record, decode
from fleet.log.replay.causes import Replay
from fleet.model import TopicPartition
from fleet.model.rebalances import Rebalance
from fleet.model.sessions import SessionThen

HELD_BYTES: Final = 32 << 20
"""Compressed size of a batch's events up to which they are held at once."""
_KEY: Final = ("group", "topic", "topic_partition")
_PLAIN: Final = tuple(name for name in LastCommit._fields if name not in {"gap", "early"})
_COMMIT: Final = (*_PLAIN, "commits", "first_timestamp", "previous_timestamp")
_OFFSET_BITS: Final = 40
_NO_RECORD: Final = -1
_GONE: Final = re.compile(r"offsets (\d+) to (\d+) are gone")
"""A row that stands for what the reader missed (fleet.history.source)."""


class BatchFiles:
    """The files of one batch, not yet in any manifest."""

    def __init__(self, place: TableFolder, files: Sequence[DataFile]) -> None:
        self._place = place
        self._files = files

    def table(self, name: str, columns: Sequence[str] | None = None, where: Any = None) -> pa.Table:
        """Columns of one table's rows that match; columns are named as the decoder names them."""
        schema = TABLES[name]
        names = schema.names if columns is None else [column_of(each) for each in columns]
        paths = [self._place.full(f.name) for f in self._files if f.table == name]
        if not paths:
            found = schema.empty_table().select(names)
        else:
            fs = self._place.fs
            with self._place.reading():
                files = ds.dataset(paths, schema=schema, format="parquet", filesystem=fs)
                found = files.to_table(columns=names, filter=where)
        return found.rename_columns([decoded(each) for each in names])

    def events(self) -> Iterator[tuple[pa.Table, Any]]:
        """Events in order of the log, and what selects commits of the same partitions.

        All at once where they are few, else one partition of the offsets topic after the other.
        """
        columns = ["partition", "offset", "timestamp", "type", "group", "leader_epoch"]
        columns += ["problem", "key", "value"]
        order = [("partition", "ascending"), ("offset", "ascending")]
        if sum(f.bytes for f in self._files if f.table == "events") <= HELD_BYTES:
            yield self.table("events", columns).sort_by(order), None
            return
        for partition in pc.unique(self.table("events", ["partition"])["partition"]).to_pylist():
            mine = ds.field("log_partition") == partition
            yield self.table("events", columns, mine).sort_by(order), mine


class Batch:
    """One batch: call `replay`, then `remember_commits`; the rows are in the attributes."""

    def __init__(
        self,
        files: BatchFiles,
        memory: JobMemory,
        *,
        cluster: str,
        names: Callable[[Collection[str]], Mapping[str, str]],
        topics: Mapping[str, str],
        led: Mapping[int, Led],
        read: Mapping[int, int],
        session: Callable[[str, str, float], SessionThen | None] = lambda *_: None,
    ) -> None:
        self._files = files
        self._memory = memory
        self._cluster = cluster
        self._names = names
        self._session = session
        self._read = read
        """The positions before this batch: what comes from before them was in a transaction."""
        self.topics = {**topics, **self._new_topics()}
        self.led = dict(led)
        self._moves = {p: [each] for p, each in led.items() if each.offset >= 0}
        self.rebalances: list[dict[str, Any]] = []
        self.memberships: list[dict[str, Any]] = []
        self.problems: Counter[str] = Counter()
        self.gone: list[tuple[int, int, int]] = []
        """Offsets that the reader found missing: partition, from, to (exclusive)."""
        self.groups: set[str] = set()

    def replay(self) -> None:
        """Feed the events of all groups to their replays."""
        for events, where in self._files.events():
            self._note_problems(events.filter(pc.is_valid(events["problem"])))
            self._follow(events.filter(pc.equal(events["type"], LED)))
            told = events.filter(pc.is_valid(events["group"]))
            if told.num_rows:
                self._replay(told, self._commits_near(told, where))

    def remember_commits(self, *, waiting: Collection[int]) -> int:
        """Keep the last commit of each partition; how many commits the batch stands for.

        waiting: partitions of the offsets topic in which a transaction is open: its commits may
        come behind a deletion that was written later.
        """
        unfed: dict[str, list[tuple[Key, LastCommit]]] = {}
        table = self._files.table("commits", [*_KEY, *_COMMIT])
        if not table.num_rows:
            return 0
        for key, commit in dict(_commits(_ends(table), self._memory)).items():
            deleted = commit.committed == DELETED
            if deleted:
                self._memory.forget(key, commit if commit.partition in waiting else None)
            else:
                self._memory.commit(key, commit)
            if deleted or commit.offset < self._read.get(commit.partition, 0):
                unfed.setdefault(key[0], []).append((key, commit))
        for group, notes in unfed.items():
            self._note_unfed(group, notes)
        self._memory.settle(waiting)
        return int(pc.sum(table["commits"]).as_py() or 0)

    def _note_unfed(self, group: str, notes: Sequence[tuple[Key, LastCommit]]) -> None:
        """Tell the group's replay what no later event will: of commits that stand before the last
        one that it was fed, and of deletions, which nobody remembers until the next.
        """
        kept = self._memory.groups.get(group)
        if kept is None or kept.partition < 0:
            return
        replay = Replay.from_json(json.loads(kept.state))
        for key, commit in notes:
            if commit.offset < kept.offset or commit.committed == DELETED:
                _note(replay, key, commit)
        self._memory.keep(group, kept._replace(state=_state_of(replay)))

    def _follow(self, changes: pa.Table) -> None:
        """Which partitions are led anew; of each the last change is kept, with its place."""
        for row in changes.to_pylist():
            known, epoch = self.led.get(row["partition"]), row["leader_epoch"]
            if known is None:
                self.led[row["partition"]] = Led(epoch)
            elif epoch > known.epoch:
                move = Led(epoch, row["offset"], row["timestamp"])
                self.led[row["partition"]] = move
                self._moves.setdefault(row["partition"], []).append(move)

    def _note_problems(self, rows: pa.Table) -> None:
        for row in rows.select(["partition", "type", "problem"]).to_pylist():
            gap = _GONE.match(row["problem"]) if row["type"] == _NO_RECORD else None
            if gap is None:
                self.problems[row["problem"]] += 1
            else:
                self.gone.append((row["partition"], int(gap[1]), int(gap[2]) + 1))

    def _new_topics(self) -> dict[str, str]:
        known = self._files.table("commits", ["topic_id", "topic"], ds.field("topic_id").is_valid())
        pairs = known.group_by(["topic_id", "topic"]).aggregate([])
        return dict(zip(pairs["topic_id"].to_pylist(), pairs["topic"].to_pylist(), strict=True))

    def _commits_near(self, events: pa.Table, where: Any) -> pa.Table:
        """The last commits of each partition before each event of its group, and at the end."""
        groups = pc.unique(events["group"])
        mine = ds.field("group_id").isin(groups.to_pylist())
        commits = self._files.table("commits", where=mine if where is None else where & mine)
        if not commits.num_rows:
            return commits

        def ranks(table: pa.Table) -> Any:
            codes = np.asarray(pc.index_in(table["group"], value_set=groups), np.int64)
            return (codes << _OFFSET_BITS) + np.asarray(table["offset"])

        after = np.searchsorted(np.sort(ranks(events)), ranks(commits))
        return _ends(commits, after)

    def _replay(self, events: pa.Table, commits: pa.Table) -> None:
        records: dict[str, list[Record]] = {}
        partitions: dict[str, int] = {}
        for batch in events.to_batches(max_chunksize=1000):
            for row in batch.to_pylist():
                made = decode(
                    row["key"], row["value"], offset=row["offset"], timestamp=row["timestamp"]
                )
                records.setdefault(row["group"], []).append(made)
                partitions[row["group"]] = row["partition"]
        notes = {group: self._never_fed(group) for group in records}
        for key, commit in _commits(commits, self._memory):
            notes[key[0]].append((key, commit))
        self._ask_names(records)
        for group, mine in records.items():
            self._feed(partitions[group], group, mine, notes[group])
        self.groups |= records.keys()

    def _never_fed(self, group: str) -> list[tuple[Key, LastCommit]]:
        """Commits of earlier batches, in which the group had no event."""
        kept = self._memory.groups.get(group)
        fed = -1 if kept is None else kept.offset
        return [
            (key, commit) for key, commit in self._memory.commits_of(group) if commit.offset > fed
        ]

    def _ask_names(self, records: Mapping[str, Sequence[Record]]) -> None:
        """Topic ids that no commit has named."""
        unknown = {i for mine in records.values() for i in _ids(mine)} - self.topics.keys()
        if unknown:
            self.topics |= self._names(unknown)

    def _feed(
        self,
        partition: int,
        group: str,
        records: Sequence[Record],
        notes: Sequence[tuple[Key, LastCommit]],
    ) -> None:
        kept = self._memory.groups.get(group)
        if kept is None or kept.partition < 0:  # nothing, or what polling remembered
            replay = Replay(self._cluster, group)
        else:
            replay = Replay.from_json(json.loads(kept.state))
        replay.ask_session(partial(self._session, group))
        replay.name_topics({i: self.topics[i] for i in _ids(records) if i in self.topics})
        waiting = deque(notes)
        moves = deque(self._moves.get(partition, ()))
        for record in records:
            while moves and moves[0].offset <= record.offset:
                replay.coordinator_moved(moves.popleft().timestamp / 1000)
            while waiting and waiting[0][1].offset < record.offset:
                _note(replay, *waiting.popleft())
            for made in replay.feed(partition, record):
                if isinstance(made, Rebalance):
                    self.rebalances.append(rebalance_row(made))
                else:
                    self.memberships.append(membership_row(made))
        last = records[-1]
        kept = Kept(partition, last.offset, last.timestamp_ms, _state_of(replay))
        self._memory.keep(group, kept)


def _state_of(replay: Replay) -> str:
    return json.dumps(replay.as_json(), separators=(",", ":"))


def _note(replay: Replay, key: Key, commit: LastCommit) -> None:
    replay.note_commit(
        TopicPartition(key[1], key[2]),
        None if commit.committed == DELETED else commit.committed,
        at=commit.timestamp / 1000,
        gap=None if commit.gap is None else commit.gap / 1000,
        early=commit.early,
        topic_id=commit.topic_id,
    )


def _commits(rows: pa.Table, memory: JobMemory) -> Iterator[tuple[Key, LastCommit]]:
    """Rows of `commits`, in order, with the rhythm that they and the commit before them show.

    Of two commits the one that stands later in the log counts, whenever its transaction ended, as
    in Kafka's OffsetMetadataManager.
    """
    seen: dict[Key, LastCommit] = {}
    names = (*_KEY, *_COMMIT)
    for values in zip(*(rows[name].to_pylist() for name in names), strict=True):
        key: Key = values[:3]
        committed, at, epoch, topic_id, partition, offset, count, first, previous = values[3:]
        known = seen.get(key) or memory.commits.get(key)
        newest = known or memory.deleted.get(key)
        if newest is not None and offset < newest.offset:
            continue
        gap = None if known is None else known.gap
        if count >= 3:
            gap = round(usual_gap(gap, max(0, previous - first) / (count - 2), times=count - 2))
        elif gap is None and known is not None:
            gap = max(0, first - known.timestamp)
        elif gap is None and previous is not None:
            gap = max(0, at - previous)
        if previous is None and known is not None:
            previous = known.timestamp
        early = previous is not None and is_early(at - previous, gap)
        seen[key] = LastCommit(
            committed=DELETED if committed is None else committed,
            timestamp=at,
            leader_epoch=epoch,
            topic_id=topic_id,
            partition=partition,
            offset=offset,
            gap=gap,
            early=early,
        )
        yield key, seen[key]


def _ids(records: Sequence[Record]) -> set[str]:
    """Topic ids of KIP-848 assignments; names of classic ones are none that need a name."""
    return {
        topic
        for record in records
        for part in ("partitions", "assigned", "revoking")
        for topic in getattr(record, part, None) or ()
    }


def _ends(commits: pa.Table, after: Any = None) -> pa.Table:
    """The last two rows of each partition and stretch between events, in order of their offsets.

    Two, for the last one may stand for too few commits to show their rhythm: a batch may have
    been cut right before it, and a cause must not depend on where. All commits of a group stand
    in one partition of the log, so that offsets order them. `after` tells the stretches apart.
    """
    place = np.argsort(np.asarray(commits["offset"]), kind="stable")
    keys = [codes(commits["group"]), codes(commits["topic"])]
    keys += [np.asarray(commits["topic_partition"]), *([] if after is None else [after])]
    order, begins = runs([key[place] for key in keys])
    ends = np.append(begins[1:], len(order))
    found = np.concatenate([order[ends - 1], order[ends[ends - begins > 1] - 2]])
    return commits.take(pa.array(place[np.sort(found)]))
