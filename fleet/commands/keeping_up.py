"""Whether each group keeps up, for `fleet status`: verdicts from one look and from its past.

Problem: the exporter judges what it has watched for minutes; a command looks once, and a lag
alone is no verdict. Choice: the same rules (fleet.decide.verdicts), fed with what is at hand:
how long records have waited from the kept end offsets, when and how a group committed from the
source of the past that this answer has anyway, tables or the offsets topic. Only groups in
which something has waited for as long as the least patience are looked up in the tables, or
those that were named. Cost: from the topic alone a group that falls behind slowly is not told
(WARN needs older figures of its lag, which the tables have); where neither can be read there
is no verdict.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from fleet.decide.verdicts import Around, GroupVerdict, Patience, Progress, group_verdict
from fleet.model import LagCase, PartitionState, Snapshot, TopicPartition
from fleet.rebalances import Rebalance

if TYPE_CHECKING:
    from fleet.commands.recent import Recent
    from fleet.cycle import Fleet
    from fleet.history.tables import Tables
    from fleet.log.readers.positions import Commits
    from fleet.observe.samples import EndOffsetSamples

WINDOW: Final = 1200.0
"""Seconds of commits that are read from the tables: more than the longest patience."""
GROWTH: Final = 300.0
"""Seconds over which a lag is held against what it was."""
_SAFE: Final = 30.0
_PATIENCE: Final = Patience()


class Trace(NamedTuple):
    """How a partition was committed, up to the moment `until`; times in seconds."""

    until: float
    committed: int
    at: float
    """Of the last commit, or the latest that it can have been."""
    moved: float
    gap: float | None = None
    peak: int | None = None
    fell: float | None = None
    waited_before: tuple[float, float] | None = None
    """When the oldest record's age was told earlier, and what it was."""


Traces = Mapping[tuple[str, TopicPartition], Trace]


def verdicts(
    fleet: "Fleet", snapshot: Snapshot, recent: "Recent", named: Iterable[str]
) -> Mapping[str, GroupVerdict]:
    """The verdict on each group of the snapshot; groups of which none can be given are left out."""
    if not recent.known:
        return {}
    doubted, silent = in_doubt(snapshot, named), frozenset[str]()
    traces: Traces = {}
    if recent.commits is not None:
        traces = traces_from_log(
            recent.commits, snapshot, reaches=recent.reaches, until=snapshot.at
        )
    elif recent.tables is not None:
        from fleet.history.tables import Tables

        rows = recent.tables.rows
        assert isinstance(rows, Tables)
        manifest = rows.manifest()
        recorded = fleet.spec.history.groups.takes
        polled = manifest is None or not manifest.positions  # then commits are not known
        silent = frozenset(group for group in doubted if polled or not recorded(group))
        until = recent.tables.source.as_of
        traces = traces_from_tables(rows, snapshot, doubted - silent, until=until)
    judged = keeping_up(
        snapshot, traces, last=recent.last, waited=waited_at_least(snapshot, fleet.samples)
    )
    return {group: verdict for group, verdict in judged.items() if group not in silent}


def in_doubt(snapshot: Snapshot, named: Iterable[str]) -> frozenset[str]:
    """Groups whose past has to be known before they can be judged."""
    late = {
        group
        for group, seen in snapshot.groups.items()
        if any(
            (p.lag or 0) > _PATIENCE.allowed and (p.lag_seconds or 0.0) >= _PATIENCE.least
            for p in seen.partitions
        )
    }
    return frozenset(late.union(name for name in named if name in snapshot.groups))


def keeping_up(
    snapshot: Snapshot,
    traces: Traces,
    *,
    last: Mapping[str, Rebalance],
    waited: Mapping[tuple[str, TopicPartition], float],
) -> dict[str, GroupVerdict]:
    """The verdict on each group of a snapshot that exists."""
    found = {}
    for group, seen in snapshot.groups.items():
        if not seen.exists:
            continue
        settled = last.get(group)
        parts = [
            _progress(part, traces.get((group, part.tp)), snapshot.at, waited.get((group, part.tp)))
            for part in filter(_waits, seen.partitions)
        ]
        found[group] = group_verdict(
            group,
            parts,
            Around(
                state=seen.state,
                since_settled=None if settled is None else max(0.0, snapshot.at - settled.ended_at),
            ),
            others=len(seen.partitions) - len(parts),
        )
    return found


def _waits(part: PartitionState) -> bool:
    """Whether a rule could object to it: few of many."""
    return part.case is not LagCase.OK or (part.lag or 0) > _PATIENCE.allowed


def _progress(
    part: PartitionState, trace: Trace | None, now: float, waited: float | None
) -> Progress:
    old = part.lag_seconds if part.lag_seconds is not None else waited
    if trace is None:
        return Progress(
            tp=part.tp, case=part.case, lag=part.lag, waited=old, since_commit=None,
            since_moved=None,
        )  # fmt: skip
    # What was committed since then shows in the offset alone, and cannot be long ago.
    same = part.committed == trace.committed
    since_commit = max(0.0, trace.until - trace.at) if same else 0.0
    since_moved = max(0.0, trace.until - trace.moved) if same else 0.0
    peak = trace.peak
    back = 0 if peak is None or part.committed is None else max(0, peak - part.committed)
    gained, over = None, 0.0
    if trace.waited_before is not None and old is not None:
        over = now - trace.waited_before[0]
        gained = old - trace.waited_before[1]
    return Progress(
        tp=part.tp,
        case=part.case,
        lag=part.lag,
        waited=old,
        since_commit=since_commit,
        since_moved=since_moved,
        gap=trace.gap,
        fell_by=back,
        since_fell=None if trace.fell is None else max(0.0, now - trace.fell),
        gained=gained,
        over=over,
    )


def waited_at_least(
    snapshot: Snapshot, samples: "EndOffsetSamples"
) -> dict[tuple[str, TopicPartition], float]:
    """How long the next record has waited at least, where its age is not known.

    The first look that saw an end behind it came after it was written.
    """
    unknown: dict[tuple[str, TopicPartition], int] = {}
    for group, seen in snapshot.groups.items():
        for part in seen.partitions:
            if part.lag and part.lag_seconds is None and part.committed is not None:
                unknown[group, part.tp] = max(part.committed, part.log_start or 0)
    found = {}
    for (group, tp), offset in unknown.items():
        around = samples.around(snapshot.cluster, {tp: offset}).get(tp, ())
        later = [at for at, end in around if end > offset]
        if later:
            found[group, tp] = max(0.0, snapshot.at - min(later))
    return found


def traces_from_log(
    commits: "Commits", snapshot: Snapshot, *, reaches: float | None, until: float
) -> dict[tuple[str, TopicPartition], Trace]:
    """From the commits that a reader of the topic holds; `reaches`: since when it read.

    A partition that it has not met was last committed before that.
    """
    groups = {name: number for number, name in enumerate(commits.groups)}
    topics = {name: number for number, name in enumerate(commits.topics)}
    wanted: dict[tuple[object, object, int], tuple[str, PartitionState]] = {
        (
            groups.get(seen.group, seen.group),  # a name that nobody committed under finds no row
            topics.get(part.tp.topic, part.tp.topic),
            part.tp.partition,
        ): (seen.group, part)
        for seen in snapshot.groups.values()
        for part in filter(_waits, seen.partitions)
        if part.committed is not None
    }
    columns = (commits.group.tolist(), commits.topic.tolist(), commits.partition.tolist())
    rows = {key: row for row, key in enumerate(zip(*columns, strict=True)) if key in wanted}

    def seconds(ms: int) -> float | None:
        return None if ms < 0 else ms / 1000

    found = {}
    for key, (group, part) in wanted.items():
        row = rows.get(key)
        if row is None:
            if reaches is not None and part.committed is not None:
                found[group, part.tp] = Trace(until, part.committed, reaches, reaches)
            continue
        at, moved, peak = (int(c[row]) for c in (commits.at, commits.moved, commits.peak))
        found[group, part.tp] = Trace(
            until=until,
            committed=int(commits.committed[row]),
            at=at / 1000,
            moved=moved / 1000 if moved >= 0 else at / 1000,
            gap=None if commits.gap[row] < 0 else float(commits.gap[row]) / 1000,
            peak=None if peak < 0 else peak,
            fell=seconds(int(commits.fell[row])),
        )
    return found


def traces_from_tables(
    tables: "Tables", snapshot: Snapshot, groups: frozenset[str], *, until: float
) -> dict[tuple[str, TopicPartition], Trace]:
    """From the rows of the last minutes of these groups; `until`: what the tables tell up to."""
    if not groups:
        return {}
    import pyarrow.dataset as ds

    from fleet.log.readers.positions import Positions, key_to

    since, mine = until - WINDOW, ds.field("group").isin(sorted(groups))
    rows = tables.read(
        "commits",
        mine & (ds.field("timestamp") >= int(since * 1000)),
        columns=["group", "topic", "topic_partition", "committed", "timestamp", "offset"],
        since=since,
    ).sort_by("offset")  # a group's commits stand in one partition of the log
    positions = Positions()
    for row in rows.to_pylist():
        tp = TopicPartition(row["topic"], row["topic_partition"])
        key = key_to(row["group"], tp)
        if row["committed"] is None:
            positions.commit(key, None, row["timestamp"])
        else:
            positions.put(key, row["group"], tp, row["committed"], row["timestamp"])
    only = replace(snapshot, groups={name: snapshot.groups[name] for name in groups})
    found = traces_from_log(positions.copy(), only, reaches=since, until=until)
    looks = tables.read(
        "lag",
        mine & (ds.field("at") >= until - GROWTH),
        columns=["group", "topic", "topic_partition", "at", "committed_at", "seconds"],
        since=until - GROWTH,
    )
    for row in looks.sort_by([("at", "descending")]).to_pylist():  # the oldest stays
        place = (row["group"], TopicPartition(row["topic"], row["topic_partition"]))
        trace, told = found.get(place), row["committed_at"]
        if trace is None:
            continue
        if trace.at <= since and told is not None:  # no commit in the window
            trace = trace._replace(at=min(trace.at, told), moved=min(trace.moved, told))
        if row["seconds"] is not None and row["at"] <= until - _SAFE:
            trace = trace._replace(waited_before=(row["at"], row["seconds"]))
        found[place] = trace
    return found
