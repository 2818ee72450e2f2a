"""The job: from the positions of the last manifest to the end of the offsets topic, in batches.

Problem: millions of commits are Spark's work, but a rebalance is told by replaying each group's
few events in order with its state, and all of it has to become visible at once or not at all.
Choice: the tasks of one Spark job per batch read, decode, thin and write `commits` and `events`
(fleet.history.rollup_tasks); then this process reads the events back, partition by partition,
replays them (60 to 200 µs each, where grouping them on executors would cost a shuffle and a second
job of about a second), and writes `rebalances`, `memberships`, and the memory beside them; one
manifest makes it all visible with the new positions. Bounded: a batch takes at most `records`
offsets; its events are held one offsets partition at a time. Cost: events cross from Spark to here
by files; a batch takes a second even where little is new.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from fleet.errors import FleetError
from fleet.history.batch_tables import Batch, BatchFiles
from fleet.history.compaction import compacted
from fleet.history.job_memory import JobMemory
from fleet.history.lag_rows import lag_rows
from fleet.history.read_options import TOPIC
from fleet.history.tables.table_columns import LAG, MEMBERSHIPS, REBALANCES
from fleet.history.tables.table_manifests import DataFile, Led, Manifest
from fleet.history.tables.writing import Writer, with_files
from fleet.kafka_source.bounds import LogBounds
from fleet.kafka_source.pieces import OffsetRange
from fleet.lag.snapshot import Logs
from fleet.model import TopicPartition
from fleet.model.sessions import SessionThen

BATCH: Final = 2_000_000
"""Offsets of one batch."""
_MOST_LOST: Final = 1000
"""Gaps that a manifest keeps: the latest."""


class OffsetsLog(Protocol):
    """The offsets topic and the topics that groups read, as the job needs them."""

    def bounds(self) -> Mapping[int, LogBounds]:
        """Per partition of the topic; {} while there is none."""
        ...

    def digest(
        self,
        ranges: Sequence[OffsetRange],
        *,
        led: Mapping[int, int],
        since: Mapping[int, int],
        **where: str,
    ) -> Sequence[Mapping[str, Any]]:
        """Have the rows of `commits` and `events` of the ranges written; their files (FILES).

        `led`: leader epochs as known before, so that others are told; `since`: offsets from which
        on it is told what is missing; `where`: the place, the
        attempt and the cluster of a Task (fleet.history.rollup_tasks).
        """
        ...

    def bounded(self, offsets: int) -> AbstractContextManager[None]:
        """What Spark does in it for so many offsets ends in time, or Unreachable is raised."""
        ...

    def names(self, ids: Collection[str]) -> Mapping[str, str]:
        """Names of topics by id, of those that can be told."""
        ...

    def ends(self, tps: Collection[TopicPartition]) -> Logs:
        """Logs of these partitions now, and before."""
        ...


@dataclass(slots=True)
class Done:
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

    def __add__(self, other: "Done") -> "Done":
        return Done(
            batches=self.batches + other.batches,
            offsets=self.offsets + other.offsets,
            commits=self.commits + other.commits,
            rows=self.rows + other.rows,
            causes=self.causes + other.causes,
            problems=self.problems + other.problems,
            groups=self.groups | other.groups,
            lost=self.lost + other.lost,
            seconds=self.seconds + other.seconds,
            compacted=self.compacted + other.compacted,
            polled=self.polled or other.polled,
        )


class Recorder:
    """Brings the tables of one writer up to date. Not for several threads."""

    def __init__(
        self,
        writer: Writer,
        log: OffsetsLog,
        *,
        say: Callable[[str], None],
        batch: int = BATCH,
        session: Callable[[str, str, float], SessionThen | None] = lambda *_: None,
    ) -> None:
        self._writer = writer
        self._log = log
        self._say = say
        self.batch = batch
        self._session = session
        self._memory = JobMemory.read(writer.place, writer.manifest)
        self._cluster = writer.manifest.cluster
        self._named: set[tuple[int, int, int]] = set()
        self._since: dict[int, int] = {}

    def catch_up(self, *, stopped: Callable[[], bool] = lambda: False) -> Done:
        """Record what is there now, then the lag of this moment; compact where it is due.

        `stopped` is asked between two steps. Raises what reading and writing raise: then
        everything up to the last whole batch is in the tables.
        """
        began = self._writer.clock.monotonic()
        done = Done()
        bounds = self._log.bounds()
        positions = self._writer.manifest.positions
        ends = {p: positions.get(p, each.end) for p, each in bounds.items()}
        self._since = {**ends, **self._writer.manifest.since}
        while not stopped() and (todo := self._todo(bounds)):
            ranges = _first(todo, self.batch)
            left = _offsets(todo) - _offsets(ranges)
            done += (made := self._record(ranges, left))
            self._say(_told(made, left))
        if not stopped():
            done += self._look()
        if not stopped():
            done.compacted = self.compact()
        done.seconds = self._writer.clock.monotonic() - began
        return done

    def compact(self) -> int:
        """Merge small files where there are many, clear away if due; how many files were merged."""
        oldest = self._writer.clock.now() - self._writer.retention
        self._memory.forget_quiet(before=oldest)
        merged = compacted(self._writer, self._memory)
        self._writer.clear_away_if_due()
        return merged

    # --- what is new ------------------------------------------------------------------------

    def _todo(self, bounds: Mapping[int, LogBounds]) -> list[OffsetRange]:
        """Of each partition: commits of transactions that ended since, what is new before the
        first open one, and behind it what is in none.
        """
        found = []
        for partition, (first, stable, end) in sorted(bounds.items()):
            known = self._writer.manifest.positions.get(partition)
            if known is not None and known > end:
                raise FleetError(
                    f"the tables of {self._writer.place} hold __consumer_offsets-{partition} up "
                    f"to {known}, but it ends at {end}: this is another cluster, or one restored "
                    "from before; give it another history.path"
                )
            start = first if known is None else max(known, first)
            if known is not None and known < first:
                self._name((partition, known, first))
            held = max(first, self._writer.manifest.stable.get(partition, start))
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
            self._say(gap_told(gap))

    # --- one batch --------------------------------------------------------------------------

    def _record(self, ranges: Sequence[OffsetRange], left: int) -> Done:
        writer, manifest = self._writer, self._writer.manifest
        attempt = writer.attempt()
        done = Done(batches=1, offsets=_offsets(ranges))
        with self._log.bounded(done.offsets):
            files = self._written(ranges, attempt)
        batch = Batch(
            BatchFiles(writer.place, files),
            self._memory,
            cluster=self._cluster,
            names=self._log.names,
            topics=manifest.topics,
            led=manifest.led,
            read=manifest.positions,
            session=self._session,
        )
        batch.replay()
        done.lost = self._lost(ranges, batch.gone)
        positions, stable = _reached(manifest, ranges)
        done.commits = batch.remember_commits(waiting=stable.keys())
        files += writer.write(attempt, "rebalances", REBALANCES, batch.rebalances, "ended_at")
        files += writer.write(attempt, "memberships", MEMBERSHIPS, batch.memberships, "changed_at")
        for file in files:
            done.rows[file.table] += file.rows
        done.causes.update(row["cause"] for row in batch.rebalances)
        done.problems, done.groups = batch.problems, batch.groups
        commit(
            writer,
            self._memory,
            attempt,
            "batch",
            files,
            positions=positions,
            stable=stable,
            topics=batch.topics,
            led=batch.led,
            since=self._since,
            lost=done.lost,
            behind=left,
        )
        return done

    def _lost(
        self, ranges: Sequence[OffsetRange], gone: Iterable[tuple[int, int, int]]
    ) -> list[tuple[int, int, int]]:
        """What was there after the positions and was never read: before the ranges, and in them."""
        known = self._writer.manifest.positions
        starts = {r.partition: r.start for r in reversed(ranges) if not r.transactions}
        found = {(p, known[p], start) for p, start in starts.items() if p in known}
        found |= {gap for gap in gone if gap[0] in known}
        lost = sorted(gap for gap in found if gap[1] < gap[2])
        for gap in lost:
            self._name(gap)
        return lost

    def _written(self, ranges: Sequence[OffsetRange], attempt: str) -> list[DataFile]:
        """The rows of `commits` and `events`, written by Spark's tasks.

        Raises FleetError where some are missing: executors elsewhere may have another disk there.
        """
        writer = self._writer
        told = self._log.digest(
            ranges,
            led={p: each.epoch for p, each in writer.manifest.led.items()},
            since=self._since,
            place=str(writer.place),
            attempt=attempt,
            cluster=self._cluster,
        )
        files = [DataFile(**each) for each in told]
        here, written = (sum(f.rows for f in each) for each in (writer.found(files), files))
        if here != written:
            raise FleetError(
                f"Spark wrote {written:,} rows into {writer.place}, and {here:,} of them are here: "
                "its executors and this process have to share that path; set history.path to a "
                "mount that all of them have, or to an object store (nothing of this batch became "
                "visible)"
            )
        return files

    def _look(self) -> Done:
        """The lag of this moment."""
        if not self._memory.commits:
            return Done()
        ends = self._log.ends({TopicPartition(*key[1:]) for key in self._memory.commits})
        rows = list(lag_rows(self._memory, ends, cluster=self._cluster))
        done = Done()
        if rows:
            done.rows["lag"] = len(rows)
            attempt = self._writer.attempt()
            files = self._writer.write(attempt, "lag", LAG, rows, "sampled_at")
            commit(self._writer, self._memory, attempt, "look", files)
        return done


def commit(
    writer: Writer,
    memory: JobMemory,
    attempt: str,
    what: str,
    files: list[DataFile],
    *,
    positions: Mapping[int, int] | None = None,
    stable: Mapping[int, int] | None = None,
    topics: Mapping[str, str] | None = None,
    led: Mapping[int, Led] | None = None,
    since: Mapping[int, int] | None = None,
    lost: Iterable[tuple[int, int, int]] = (),
    behind: int = 0,
) -> None:
    """Make files visible, together with the memory's changes and the positions they stand for."""
    manifest, added = writer.manifest, list(files)
    for table, data in memory.changed():
        added.append(writer.write_memory(attempt, table, data))
    writer.commit(
        replace(
            manifest,
            what=what,
            files=with_files(manifest, added),
            positions=manifest.positions if positions is None else positions,
            stable=manifest.stable if stable is None else stable,
            topics=manifest.topics if topics is None else topics,
            led=manifest.led if led is None else led,
            since=manifest.since if since is None else since,
            lost=(*manifest.lost, *lost)[-_MOST_LOST:],
            behind=behind,
        )
    )
    memory.saved()


def gap_told(gap: tuple[int, int, int]) -> str:
    """A gap in words: topic, partition and offsets."""
    partition, start, end = gap
    where = f"__consumer_offsets-{partition}"
    return f"{where}: offsets {start} to {end - 1} were gone, all or some, before they were read"


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


def _reached(
    manifest: Manifest, ranges: Iterable[OffsetRange]
) -> tuple[dict[int, int], dict[int, int]]:
    """Positions behind these ranges; and up to where transactions are taken, where that is less."""
    positions, stable = dict(manifest.positions), dict(manifest.stable)
    for each in ranges:
        if not each.transactions:
            positions[each.partition] = each.end
        if each.transactions is False:
            stable.setdefault(each.partition, each.start)
        else:
            stable[each.partition] = each.end
    return positions, {p: at for p, at in stable.items() if at < positions[p]}


def _told(done: Done, left: int) -> str:
    rows = ", ".join(f"{count:,} {table}" for table, count in sorted(done.rows.items()) if count)
    more = f"; {left:,} offsets to go" if left else ""
    return f"{done.offsets:,} offsets: {rows or 'nothing kept'}{more}"
