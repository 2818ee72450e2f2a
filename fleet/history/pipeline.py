"""The job: from the positions of the state to the end of the offsets topic, in batches.

Problem: millions of commits are Spark's work, but a rebalance is told by replaying each group's
few events in order with its state, and all of it has to become visible at once or not at all.
Choice: the tasks of one Spark job per batch read, thin and write `commits` (fleet.history.digest).
They return the events and the last commits before each, as Arrow. This process decodes the events,
replays them (60 to 200 µs each, where grouping them on executors would cost a shuffle), and writes
`events`, `rebalances` and `memberships`; then it commits all tables and the state. A batch takes at
most `records` offsets; its events are held one partition of the offsets topic at a time. Cost: a
batch takes a second even if little is new; on a first catch-up, when every group has events, they
cost events times partitions of their groups, some 10 µs each.
"""

import json
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from fleet.errors import FleetError
from fleet.history.digest import last_two, unpack
from fleet.history.lag_rows import lag_rows
from fleet.history.memory import DELETED, JobMemory, Kept, Key, LastCommit
from fleet.history.read_options import TOPIC
from fleet.history.retention import tidy
from fleet.history.tables import EVENTS, DataFile, LeaderEpochStart, State, Writer, decoded, row_of
from fleet.kafka_source.pieces import LogBounds, OffsetRange
from fleet.lag.gap import is_early, usual_gap
from fleet.log.record_columns import LED
from fleet.log.records import Record, Undecoded, decode
from fleet.log.replay.causes import Replay
from fleet.model import TopicPartition
from fleet.model.rebalances import Rebalance
from fleet.model.sessions import SessionAtRemoval

if TYPE_CHECKING:
    from fleet.manager.history_session import ClusterLog

BATCH: Final = 2_000_000
"""Offsets of one batch."""
HELD_BYTES: Final = 32 << 20
"""Events that are held before they are written."""
_MOST_LOST: Final = 1000
"""Gaps that the state keeps: the latest."""
_KEY: Final = ("group", "topic", "topic_partition")
_PLAIN: Final = tuple(name for name in LastCommit._fields if name not in {"gap", "early"})
_COMMIT: Final = (*_PLAIN, "commits", "first_timestamp", "previous_timestamp")
_NO_RECORD: Final = -1
_GONE: Final = re.compile(r"offsets (\d+) to (\d+) are gone")
"""A row that stands for what the reader missed (fleet.history.source)."""


@dataclass(slots=True)
class BatchSummary:
    """What a run did. `rows` are those added to each table; `commits` what they stand for."""

    batches: int = 0
    offsets: int = 0
    commits: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    groups: set[str] = field(default_factory=set)
    lost: list[tuple[int, int, int]] = field(default_factory=list)
    seconds: float = 0.0
    compacted: int = 0
    """Files that were merged into fewer."""
    polled: bool = False
    """The offsets topic could not be read: groups were looked at instead."""

    def __add__(self, other: "BatchSummary") -> "BatchSummary":
        pairs = ((each.name, getattr(self, each.name)) for each in fields(self))
        return BatchSummary(
            **{
                name: mine | theirs if isinstance(mine, bool | set) else mine + theirs
                for name, mine in pairs
                for theirs in [getattr(other, name)]
            }
        )


class Recorder:
    """Brings the tables of one writer up to date. Not for several threads."""

    def __init__(
        self,
        writer: Writer,
        log: "ClusterLog",
        *,
        say: Callable[[str], None],
        batch: int = BATCH,
        session: Callable[[str, str, float], SessionAtRemoval | None] = lambda *_: None,
    ) -> None:
        self._writer = writer
        self._log = log
        self._say = say
        self.batch = batch
        self._session = session
        self._memory = JobMemory.read(writer)
        self._cluster = writer.state.cluster
        self._named: set[tuple[int, int, int]] = set()
        self._since: dict[int, int] = {}

    def catch_up(self, *, stopped: Callable[[], bool] = lambda: False) -> BatchSummary:
        """Record what is there now, then the lag of this moment; compact where it is due.

        `stopped` is asked between two steps. Raises what reading and writing raise: then
        everything up to the last whole batch is in the tables.
        """
        began = self._writer.clock.monotonic()
        done = BatchSummary()
        bounds = self._log.bounds()
        positions = self._writer.state.positions
        ends = {p: positions.get(p, each.end) for p, each in bounds.items()}
        self._since = {**ends, **self._writer.state.since}
        while not stopped() and (todo := self._todo(bounds)):
            ranges = _first(todo, self.batch)
            left = _offsets(todo) - _offsets(ranges)
            done += (made := self._record(ranges, left))
            self._say(_progress(made, left))
        if not stopped():
            done += self._look()
        if not stopped():
            done.compacted = self.compact()
        done.seconds = self._writer.clock.monotonic() - began
        return done

    def compact(self) -> int:
        """Does what is due of retention; how many files were merged."""
        return tidy(self._writer, self._memory)

    # --- what is new ------------------------------------------------------------------------

    def _todo(self, bounds: Mapping[int, LogBounds]) -> list[OffsetRange]:
        """Of each partition: commits of transactions that ended since, what is new before the
        first open one, and behind it what is in none.
        """
        found = []
        for partition, (first, stable, end) in sorted(bounds.items()):
            known = self._writer.state.positions.get(partition)
            if known is not None and known > end:
                raise FleetError(
                    f"the tables of {self._writer.place} hold __consumer_offsets-{partition} up "
                    f"to {known}, but it ends at {end}: the cluster is another one, or was "
                    "restored; set another history.path"
                )
            start = first if known is None else max(known, first)
            if known is not None and known < first:
                self._name((partition, known, first))
            held = max(first, self._writer.state.stable.get(partition, start))
            found += [
                OffsetRange(TOPIC, partition, held, min(stable, start), transactions=True),
                OffsetRange(TOPIC, partition, start, min(stable, end)),
                OffsetRange(TOPIC, partition, max(start, stable), end, transactions=False),
            ]
        return [each for each in found if each.start < each.end]

    def _name(self, gap: tuple[int, int, int]) -> None:
        """Say what nobody can read any more, once."""
        if gap not in self._named:
            self._named.add(gap)
            self._say(gap_sentence(gap))

    # --- one batch --------------------------------------------------------------------------

    def _record(self, ranges: Sequence[OffsetRange], left: int) -> BatchSummary:
        writer, state = self._writer, self._writer.state
        done = BatchSummary(batches=1, offsets=_offsets(ranges))
        with self._log.bounded(done.offsets):
            returned = self._log.digest(
                ranges,
                led={p: each.epoch for p, each in state.led.items()},
                since=self._since,
                place=writer.place.url,
                cluster=state.cluster,
            )
        positions, stable = _reached(state, ranges)
        batch = Batch(
            returned, self._memory, state=state, names=self._log.names, session=self._session
        )
        files = self._written(batch.files)
        held: list[pa.Table] = []
        for events in batch.replayed(waiting=stable.keys()):
            held.append(events)
            if sum(each.nbytes for each in held) >= HELD_BYTES:
                files += self._events(held)
                held = []
        files += self._events(held)
        done.lost = self._lost(ranges, batch.gone)
        done.commits = batch.commits
        files += writer.write("rebalances", batch.rebalances)
        files += writer.write("memberships", batch.memberships)
        for file in files:
            done.rows[file.table] += file.rows
        done.causes.update(row["cause"] for row in batch.rebalances)
        done.problems, done.groups = batch.problems, batch.groups
        writer.commit(
            "batch",
            self._memory,
            files=files,
            positions=positions,
            stable=stable,
            topics=batch.topics,
            led=batch.led,
            since=self._since,
            lost=(*state.lost, *done.lost)[-_MOST_LOST:],
            behind=left,
        )
        return done

    def _lost(
        self, ranges: Sequence[OffsetRange], gone: Iterable[tuple[int, int, int]]
    ) -> list[tuple[int, int, int]]:
        """What was there after the positions and was never read: before the ranges, and in them."""
        known = self._writer.state.positions
        starts = {r.partition: r.start for r in reversed(ranges) if not r.transactions}
        found = {(p, known[p], start) for p, start in starts.items() if p in known}
        found |= {gap for gap in gone if gap[0] in known}
        lost = sorted(gap for gap in found if gap[1] < gap[2])
        for gap in lost:
            self._name(gap)
        return lost

    def _written(self, files: list[DataFile]) -> list[DataFile]:
        """The files that Spark's tasks wrote.

        Raises FleetError if some are missing: executors elsewhere may have another disk there.
        """
        place = self._writer.place
        written = sum(file.rows for file in files)
        if missing := place.missing(files):
            raise FleetError(
                f"Spark wrote {written:,} rows to {place}, but this process finds only "
                f"{written - missing:,} of them, and discarded the batch; set history.path to a "
                "folder shared with the executors, or to an object store"
            )
        return files

    def _events(self, held: Sequence[pa.Table]) -> Iterator[DataFile]:
        rows = pa.concat_tables([EVENTS.empty_table(), *held])
        return self._writer.place.write("events", rows)

    def _look(self) -> BatchSummary:
        """The lag of this moment."""
        if not self._memory.commits:
            return BatchSummary()
        ends = self._log.ends({TopicPartition(*key[1:]) for key in self._memory.commits})
        rows = list(lag_rows(self._memory, ends, cluster=self._cluster))
        done = BatchSummary()
        if rows:
            done.rows["lag"] = len(rows)
            files = self._writer.write("lag", rows)
            self._writer.commit("refresh", self._memory, files=files)
        return done


def gap_sentence(gap: tuple[int, int, int]) -> str:
    """Describes a gap: topic, partition and offsets."""
    partition, start, end = gap
    where = f"__consumer_offsets-{partition}"
    return f"{where}: Kafka deleted offsets from {start} to {end - 1} before the history read them"


def _offsets(ranges: Iterable[OffsetRange]) -> int:
    return sum(each.end - each.start for each in ranges)


def _first(todo: Iterable[OffsetRange], most: int) -> list[OffsetRange]:
    """At most so many offsets of it, partition by partition."""
    found, left = [], most
    for each in todo:
        if left <= 0:
            break
        found.append(each._replace(end=min(each.end, each.start + left)))
        left -= found[-1].end - each.start
    return found


def _reached(state: State, ranges: Iterable[OffsetRange]) -> tuple[dict[int, int], dict[int, int]]:
    """Positions behind these ranges; and up to where transactions are taken, where that is less."""
    positions, stable = dict(state.positions), dict(state.stable)
    for each in ranges:
        if not each.transactions:
            positions[each.partition] = each.end
        if each.transactions is False:
            stable.setdefault(each.partition, each.start)
        else:
            stable[each.partition] = each.end
    return positions, {p: at for p, at in stable.items() if at < positions[p]}


def _progress(done: BatchSummary, left: int) -> str:
    rows = ", ".join(f"{count:,} {table}" for table, count in sorted(done.rows.items()) if count)
    more = f"; {left:,} offsets to go" if left else ""
    return f"{done.offsets:,} offsets: {rows or 'no rows'}{more}"


# --- what the driver makes of a batch ----------------------------------------------------------


class Batch:
    """Replays the events of one batch: `replayed`; the rows are in the attributes."""

    def __init__(
        self,
        returned: pa.Table,
        memory: JobMemory,
        *,
        state: State,
        names: Callable[[Collection[str]], Mapping[str, str]],
        session: Callable[[str, str, float], SessionAtRemoval | None] = lambda *_: None,
    ) -> None:
        """returned: RETURNED of the tasks; state: that of before this batch."""
        self._returned = returned
        self._memory = memory
        self._cluster = state.cluster
        self._names = names
        self._session = session
        self._read = state.positions
        """What comes from before these was in a transaction."""
        files = returned.filter(pc.is_valid(returned["name"])).select(DataFile._fields)
        self.files = [DataFile(**row) for row in files.to_pylist()]
        topics = unpack(returned, "topics")
        pairs = () if topics is None else zip(*topics.to_pydict().values(), strict=True)
        self.topics = {**state.topics, **dict(pairs)}
        self.led = dict(state.led)
        self._moves = {p: [each] for p, each in state.led.items() if each.offset >= 0}
        self.rebalances: list[dict[str, Any]] = []
        self.memberships: list[dict[str, Any]] = []
        counts = returned.filter(pc.equal(returned["table"], "count"))["rows"]
        self.commits = int(pc.sum(counts).as_py() or 0)
        """How many the batch stands for."""
        self.problems: Counter[str] = Counter()
        self.gone: list[tuple[int, int, int]] = []
        """Offsets that the reader found missing: partition, from, to (exclusive)."""
        self.groups: set[str] = set()

    def replayed(self, *, waiting: Collection[int]) -> Iterator[pa.Table]:
        """Feeds the events of all groups to their replays; rows of `events`, by partition.

        waiting: partitions of the offsets topic in which a transaction is open: its commits may
        come behind a deletion that was written later.
        """
        commits = unpack(self._returned, "commits")
        for partition in sorted(set(self._returned["partition"].drop_null().to_pylist())):
            events = unpack(self._returned, "events", partition)
            assert events is not None
            rows, records = self._decoded(events.sort_by("offset"))
            self._replay(partition, records, commits)
            yield rows
        if commits is not None:
            self._remember(last_two(commits), waiting)
        self._memory.settle(waiting)

    def _decoded(self, rows: pa.Table) -> tuple[pa.Table, list[tuple[str, Record]]]:
        """Reads the events: rows of `events`, and the records of each group."""
        told, spoilt = rows.to_pylist(), False
        records: list[tuple[str, Record]] = []
        for row in told:
            if row["type"] == LED:
                self._follow(row)
            elif row["problem"] is None:
                record = decode(
                    row["key"], row["value"], offset=row["offset"], timestamp=row["timestamp"]
                )
                if isinstance(record, Undecoded):
                    spoilt = True
                    row |= {"problem": record.reason, "group": None, "member": None}
                else:
                    records.append((row["group"], record))
            self._note_problem(row)
        if spoilt:
            rows = pa.Table.from_pylist(told, schema=rows.schema)
        cluster = pa.repeat(self._cluster, len(told))
        columns = [cluster if n == "cluster" else rows[decoded(n)] for n in EVENTS.names]
        return pa.Table.from_arrays(columns, schema=EVENTS), records

    def _note_problem(self, row: Mapping[str, Any]) -> None:
        if row["problem"] is None:
            return
        gap = _GONE.match(row["problem"]) if row["type"] == _NO_RECORD else None
        if gap is None:
            self.problems[row["problem"]] += 1
        else:
            self.gone.append((row["partition"], int(gap[1]), int(gap[2]) + 1))

    def _follow(self, row: Mapping[str, Any]) -> None:
        """Notes that a partition is led anew; the last change is kept, with its place."""
        known, epoch = self.led.get(row["partition"]), row["leader_epoch"]
        if known is None:
            self.led[row["partition"]] = LeaderEpochStart(epoch)
        elif epoch > known.epoch:
            move = LeaderEpochStart(epoch, row["offset"], row["timestamp"])
            self.led[row["partition"]] = move
            self._moves.setdefault(row["partition"], []).append(move)

    def _replay(
        self, partition: int, events: Sequence[tuple[str, Record]], commits: pa.Table | None
    ) -> None:
        records: dict[str, list[Record]] = {}
        for group, record in events:
            records.setdefault(group, []).append(record)
        notes = {group: self._never_fed(group) for group in records}
        if commits is not None and records:
            mine = commits.filter(pc.is_in(commits["group"], value_set=pa.array(list(records))))
            where = pa.table(
                {"group": [g for g, _ in events], "offset": [r.offset for _, r in events]}
            )
            for key, commit in _commits(last_two(mine, [where]), self._memory):
                notes[key[0]].append((key, commit))
        self._ask_names(records)
        for group, found in records.items():
            self._feed(partition, group, found, notes[group])
        self.groups |= records.keys()

    def _remember(self, rows: pa.Table, waiting: Collection[int]) -> None:
        """Keeps the last commit of each partition."""
        unfed: dict[str, list[tuple[Key, LastCommit]]] = {}
        for key, commit in dict(_commits(rows, self._memory)).items():
            deleted = commit.committed == DELETED
            if deleted:
                self._memory.forget(key, commit if commit.partition in waiting else None)
            else:
                self._memory.commit(key, commit)
            if deleted or commit.offset < self._read.get(commit.partition, 0):
                unfed.setdefault(key[0], []).append((key, commit))
        for group, notes in unfed.items():
            self._note_unfed(group, notes)

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
                    self.rebalances.append(row_of(made))
                else:
                    self.memberships.append(row_of(made))
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
