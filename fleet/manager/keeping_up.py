"""Whether each group keeps up: the rules of fleet.decide.verdicts on the columns of a snapshot.

Problem: judging 240,000 partitions one by one takes seconds, and all but a few are well; and the
exporter judges what it has watched for minutes, while a command or a check looks once, and a lag
alone is no verdict. Choice: the rows that a rule could possibly object to are found in the
columns, and only those become values with a sentence each; the exporter, which needs no sentence,
judges in the columns alone (`worst_verdicts`), since where many groups are abandoned those rows
are most of all; one who looks once puts the past that is at hand into the
same columns first (`with_past`, `with_tables`), from the tables or the offsets topic. Of the
tables only groups are read in which something has waited for as long as the least patience, or
those that were named.
Cost: `_doubtful` and `_codes` repeat what the rules say (a test holds them together). From
the topic alone a group that falls behind slowly is not told (WARN needs older figures of its lag,
which the tables have); where neither can be read there is no verdict.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from fleet.decide.verdicts import (
    HORIZON,
    MOVING,
    WORST,
    Around,
    GroupVerdict,
    LagVerdict,
    PartitionProgress,
    Patience,
    group_verdict,
)
from fleet.errors import FleetError
from fleet.lag.lag_columns import NONE, Commits, Floats, Longs, Rows
from fleet.lag.partition_lag import CASES
from fleet.lag.snapshot import GroupFacts, Snapshot
from fleet.log.readers.positions import Positions, key_to
from fleet.model import GroupState, LagCase, TopicPartition
from fleet.model.rebalances import Rebalance

if TYPE_CHECKING:
    from fleet.history.tables import Tables
    from fleet.manager.opening import OpenFleet
    from fleet.manager.past import Past
    from fleet.manager.recent import Recent

GROWTH: Final = 300.0
"""Seconds over which a lag is held against what it was."""
_SAFE: Final = 30.0
_OK: Final = 0
assert CASES[_OK].value == "ok"
_BELOW: Final = CASES.index(LagCase.BELOW_START)
_BY_CODE: Final = (*WORST, LagVerdict.UNSCORED)
_CODE: Final = {verdict: code for code, verdict in enumerate(_BY_CODE)}


def verdicts(seen: Snapshot, *, patience: Patience | None = None) -> dict[str, GroupVerdict]:
    """The verdict on each group of a snapshot that exists (docs/metrics.md)."""
    patience = patience or Patience()
    commits = seen.commits
    total = np.bincount(commits.group, minlength=len(commits.groups))
    watched: dict[int, list[PartitionProgress]] = {}
    for row in _doubtful(seen, patience):
        watched.setdefault(int(commits.group[row]), []).append(_progress(seen, int(row)))
    place = {group: index for index, group in enumerate(commits.groups)}
    found = {}
    for group, facts in seen.facts.items():
        if not facts.exists:
            continue
        index = place.get(group)
        parts = watched.get(index, []) if index is not None else []
        found[group] = group_verdict(
            group,
            parts,
            around(facts, seen.at),
            others=int(total[index]) - len(parts) if index is not None else 0,
            patience=patience,
        )
    return found


def around(facts: GroupFacts, now: float) -> Around:
    """What a verdict needs of the group itself."""
    since = None if facts.changed_at is None else max(0.0, now - facts.changed_at)
    return Around(state=facts.state, since_settled=since)


def _late(seen: Snapshot, patience: Patience) -> Rows:
    """Rows in which something has waited for as long as the least patience."""
    late: Rows = (seen.lag.records > patience.allowed) & (seen.lag.waited >= patience.least)
    return late


def _doubtful(seen: Snapshot, patience: Patience) -> Longs:
    """Rows that the rules might not call OK: a few of many."""
    back = (seen.lag.records > patience.allowed) & (seen.commits.peak != NONE)
    return np.flatnonzero((seen.lag.case != _OK) | _late(seen, patience) | back)


def _progress(seen: Snapshot, row: int) -> PartitionProgress:
    commits, now = seen.commits, seen.at
    lag, committed, peak = (
        int(column[row]) for column in (seen.lag.records, commits.committed, commits.peak)
    )

    def since(ms: int) -> float | None:
        return None if ms == NONE else max(0.0, now - ms / 1000)

    def known(value: float) -> float | None:
        return None if np.isnan(value) else float(value)

    return PartitionProgress(
        tp=TopicPartition(commits.topics[commits.topic[row]], int(commits.partition[row])),
        case=CASES[seen.lag.case[row]],
        lag=None if lag == NONE else lag,
        waited=known(seen.lag.waited[row]),
        since_commit=since(int(commits.at[row])),
        since_moved=since(int(commits.moved[row])),
        gap=None if commits.gap[row] == NONE else float(commits.gap[row]) / 1000,
        fell_by=0 if peak == NONE else peak - committed,
        since_fell=since(int(commits.fell[row])),
        gained=known(seen.gained[row]),
        over=known(seen.over[row]) or 0.0,
    )


# --- in columns alone -------------------------------------------------------------------------


def worst_verdicts(seen: Snapshot, *, patience: Patience | None = None) -> dict[str, LagVerdict]:
    """The verdict of `verdicts` on each group, without its sentences."""
    patience = patience or Patience()
    names = seen.commits.groups
    worst = np.full(len(names), _CODE[LagVerdict.UNSCORED])
    lately = np.zeros(len(names), dtype=np.bool_)
    calm, moving = _calm(seen)
    for rows in seen.portions():
        which, at = rows.commits.group, rows.commits.at
        codes = _codes(rows, calm[which], moving[which], patience)
        np.minimum.at(worst, which, codes)
        old = (at != NONE) & (_since(at, seen.at) >= patience.abandoned)
        lately[which[~old & (codes < _CODE[LagVerdict.OK])]] = True
    place = {group: index for index, group in enumerate(names)}
    found = {}
    for group, facts in seen.facts.items():
        if not facts.exists:
            continue
        index = place.get(group)
        code = _CODE[LagVerdict.UNSCORED] if index is None else worst[index]
        deserted = index is not None and code < _CODE[LagVerdict.OK] and not lately[index]
        abandoned = deserted and facts.state is GroupState.EMPTY
        found[group] = LagVerdict.ABANDONED if abandoned else _BY_CODE[code]
    return found


def _calm(seen: Snapshot) -> tuple[Floats, Rows]:
    """Of each group: seconds since it settled, and whether it rebalances."""
    nobody = GroupFacts(state=GroupState.UNKNOWN, type="unknown", members=None)
    groups = [around(seen.facts.get(name, nobody), seen.at) for name in seen.commits.groups]
    return (
        np.array([np.inf if g.since_settled is None else g.since_settled for g in groups]),
        np.array([g.state in MOVING for g in groups], dtype=np.bool_),
    )


def _codes(seen: Snapshot, calm: Floats, moving: Rows, patience: Patience) -> Longs:
    """The verdict on each row, as a place in WORST, or behind it: UNSCORED.

    `calm` and `moving`: of each row's group.
    """
    commits, lag, now = seen.commits, seen.lag, seen.at
    gap = np.where(commits.gap == NONE, 0.0, commits.gap / 1000)
    enough = np.minimum(np.maximum(patience.least, patience.gaps * gap), patience.most)
    fell = (commits.peak != NONE) & (commits.peak > commits.committed)
    rules = (
        (lag.case == _BELOW, LagVerdict.LOSS),
        ((lag.case != _OK) | (lag.records == NONE), LagVerdict.UNSCORED),
        (lag.records <= patience.allowed, LagVerdict.OK),
        (fell & (_since(commits.fell, now) < patience.rewound), LagVerdict.REWIND),
        (moving | ~(lag.waited >= enough), LagVerdict.OK),
        (np.minimum(_since(commits.at, now), calm) >= enough, LagVerdict.STOP),
        (np.minimum(_since(commits.moved, now), calm) >= enough, LagVerdict.STALL),
        (
            (seen.over > 0) & (seen.gained > np.maximum(patience.slower * seen.over, gap)),
            LagVerdict.WARN,
        ),
    )
    fits, verdicts_ = zip(*rules, strict=True)
    return np.select(fits, [_CODE[each] for each in verdicts_], _CODE[LagVerdict.OK])


def _since(ms: Longs, now: float) -> Floats:
    """Seconds since each of these; 0 where it is not known."""
    return np.where(ms == NONE, 0.0, np.maximum(0.0, now - ms / 1000))


# --- for one who looks once -----------------------------------------------------------------


def in_doubt(seen: Snapshot, named: Iterable[str]) -> frozenset[str]:
    """Groups whose past has to be known before they can be judged."""
    groups = seen.commits.groups
    late = {groups[place] for place in np.unique(seen.commits.group[_late(seen, Patience())])}
    return frozenset(late.union(name for name in named if name in seen.facts))


def judged(
    fleet: "OpenFleet", seen: Snapshot, recent: "Recent", named: Iterable[str]
) -> Mapping[str, GroupVerdict]:
    """The verdict on each group by one snapshot and its past; left out where none can be given."""
    if not recent.known or recent.old:
        return {}
    doubted, silent = in_doubt(seen, named), recent.unread
    if recent.commits is not None:
        seen = with_past(seen, recent.commits, reaches=recent.reaches, until=seen.at)
    elif recent.tables is not None:
        try:
            seen, silent = _by_tables(fleet, seen, recent.tables, doubted)
        except FleetError:  # away or damaged since they told of rebalances
            silent = doubted
    found = verdicts(with_settled(seen, recent.last))
    return {group: verdict for group, verdict in found.items() if group not in silent}


def _by_tables(
    fleet: "OpenFleet", seen: Snapshot, past: "Past", doubted: frozenset[str]
) -> tuple[Snapshot, frozenset[str]]:
    """With what the tables tell of groups in doubt, and those of which they tell nothing.

    Raises FleetError where they cannot be read.
    """
    from fleet.history.tables import Tables  # noqa: PLC0415  pyarrow, where it is used

    rows = past.rows
    assert isinstance(rows, Tables)
    manifest = rows.manifest()
    recorded = fleet.spec.history.groups.takes
    polled = manifest is None or not manifest.positions  # then commits are not known
    silent = frozenset(group for group in doubted if polled or not recorded(group))
    return with_tables(seen, rows, doubted - silent, until=past.source.as_of), silent


def with_settled(seen: Snapshot, last: Mapping[str, Rebalance]) -> Snapshot:
    """With when each group's last rebalance ended."""
    facts = {
        group: replace(facts, changed_at=last[group].ended_at) if group in last else facts
        for group, facts in seen.facts.items()
    }
    return replace(seen, facts=facts)


def with_past(
    seen: Snapshot,
    past: Commits,
    *,
    reaches: float | None,
    until: float,
    groups: frozenset[str] | None = None,
) -> Snapshot:
    """With when and how each partition was committed, as a reader tells it up to `until`.

    `reaches`: since when it read; a partition that it has not met was last committed before that.
    `groups`: those of which it was asked; None: all.
    """
    commits = seen.commits
    place = commits.places_in(past)
    asked = commits.committed != NONE
    if groups is not None:
        asked &= commits.of_groups(groups)
    met, unmet = asked & (place != NONE), asked & (place == NONE)
    # Times are told up to `until`: silence after it is not guessed.
    later, now = round((seen.at - until) * 1000), round(seen.at * 1000)
    columns = {name: getattr(commits, name).copy() for name in ("at", "moved", "peak", "fell")}
    gap = commits.gap.copy()
    rows = place[met]
    # What was committed since then shows in the offset alone, and cannot be long ago.
    same = commits.committed[met] == past.committed[rows]
    moved = np.where(past.moved[rows] == NONE, past.at[rows], past.moved[rows])
    columns["at"][met] = np.where(same, past.at[rows] + later, now)
    columns["moved"][met] = np.where(same, moved + later, now)
    columns["peak"][met], columns["fell"][met] = past.peak[rows], past.fell[rows]
    gap[met] = past.gap[rows]
    if reaches is not None:
        columns["at"][unmet] = columns["moved"][unmet] = round(reaches * 1000) + later
    return replace(seen, commits=replace(commits, gap=gap, **columns))


def with_tables(
    seen: Snapshot, tables: "Tables", groups: frozenset[str], *, until: float
) -> Snapshot:
    """The same from the rows of the last minutes of these groups; `until`: what they tell up to."""
    if not groups:
        return seen
    import pyarrow.dataset as ds  # noqa: PLC0415

    since, mine = until - HORIZON, ds.field("group_id").isin(sorted(groups))
    rows = tables.read(
        "commits",
        mine & (ds.field("timestamp") >= int(since * 1000)),
        columns=["group_id", "topic", "topic_partition", "committed", "timestamp", "log_offset"],
        since=since,
    ).sort_by("log_offset")  # a group's commits stand in one partition of the log
    positions = Positions()
    for row in rows.to_pylist():
        tp = TopicPartition(row["topic"], row["topic_partition"])
        key = key_to(row["group_id"], tp)
        if row["committed"] is None:
            positions.commit(key, None, row["timestamp"])
        else:
            positions.put(key, row["group_id"], tp, row["committed"], row["timestamp"])
    seen = with_past(seen, positions.copy(), reaches=since, until=until, groups=groups)
    return _with_growth(seen, tables, groups, since=since, until=until)


def _with_growth(
    seen: Snapshot, tables: "Tables", groups: frozenset[str], *, since: float, until: float
) -> Snapshot:
    """With how the ages grew since an older row of `lag`, and commits older than the window."""
    import pyarrow.dataset as ds  # noqa: PLC0415

    looks = tables.read(
        "lag",
        ds.field("group_id").isin(sorted(groups)) & (ds.field("sampled_at") >= until - GROWTH),
        columns=["group_id", "topic", "topic_partition", "sampled_at", "committed_at", "seconds"],
        since=until - GROWTH,
    )
    commits = seen.commits
    place = {
        (commits.groups[commits.group[row]], commits.topics[commits.topic[row]], number): row
        for row, number in enumerate(commits.partition.tolist())
    }
    at, moved = commits.at.copy(), commits.moved.copy()
    gained, over = seen.gained.copy(), seen.over.copy()
    later = round((seen.at - until) * 1000)
    first = round(since * 1000) + later
    for row in looks.sort_by([("sampled_at", "descending")]).to_pylist():  # the oldest stays
        found = place.get((row["group_id"], row["topic"], row["topic_partition"]))
        if found is None or at[found] == NONE:
            continue
        if at[found] <= first and row["committed_at"] is not None:  # no commit in the window
            told = round(row["committed_at"] * 1000) + later
            at[found], moved[found] = min(at[found], told), min(moved[found], told)
        if row["seconds"] is not None and row["sampled_at"] <= until - _SAFE:
            gained[found] = seen.lag.waited[found] - row["seconds"]
            over[found] = seen.at - row["sampled_at"]
    return replace(seen, commits=replace(commits, at=at, moved=moved), gained=gained, over=over)
