"""Whether each group keeps up, for one who looks once: a snapshot with the past that is at hand.

Problem: the exporter judges what it has watched for minutes, while a command or a check looks once,
and a lag alone is no verdict. Choice: the past is put into the same columns first (`with_past`,
`with_tables`), from the tables or the offsets topic, and then the same judge decides
(`fleet.manager.lag_judge`). Of the tables only groups are read in which something has waited for as
long as the least patience, or those that were named.
Cost: from the topic alone a group that falls behind slowly is not told (WARN needs older figures of
its lag, which the tables have); where neither can be read there is no verdict.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from fleet.decide.verdicts import HORIZON, GroupVerdict
from fleet.errors import FleetError
from fleet.lag.lag_columns import NONE, Commits
from fleet.lag.snapshot import Snapshot
from fleet.log.readers.positions import Positions, key_to
from fleet.manager.lag_judge import late, standing, verdicts
from fleet.model import TopicPartition
from fleet.model.rebalances import Rebalance

if TYPE_CHECKING:
    from fleet.history.tables import Tables
    from fleet.manager.cycle import Fleet
    from fleet.manager.past import Past
    from fleet.manager.recent import Recent

GROWTH: Final = 300.0
"""Seconds over which a lag is held against what it was."""
_SAFE: Final = 30.0


def in_doubt(seen: Snapshot, named: Iterable[str]) -> frozenset[str]:
    """Groups whose past has to be known before they can be judged."""
    groups = seen.commits.groups
    waiting = {groups[place] for place in np.unique(seen.commits.group[late(seen)])}
    return frozenset(waiting.union(name for name in named if name in seen.facts))


def judged(
    fleet: "Fleet", snapshot: Snapshot, recent: "Recent", named: Iterable[str]
) -> tuple[Snapshot, dict[str, GroupVerdict]]:
    """Judge each group by one snapshot and its past; left out where no verdict can be given.

    The snapshot comes back with what waits where a group seems to stand still.
    """
    seen = snapshot
    if not recent.known or recent.old:
        return snapshot, {}
    doubted, silent = in_doubt(seen, named), recent.unread
    if recent.commits is not None:
        seen = with_past(seen, recent.commits, reaches=recent.reaches, until=seen.at)
    elif recent.tables is not None:
        try:
            seen, silent = _by_tables(fleet, seen, recent.tables, doubted)
        except FleetError:  # away or damaged since they told of rebalances
            silent = doubted
    seen = with_settled(seen, recent.last)
    seen = fleet.read_on(seen, standing(seen))
    found = {group: each for group, each in verdicts(seen).items() if group not in silent}
    return replace(snapshot, lag=seen.lag, held=seen.held), found


def _by_tables(
    fleet: "Fleet", seen: Snapshot, past: "Past", doubted: frozenset[str]
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
    # What a share group has done stands in no record of the offsets topic.
    shares = [group for group, facts in seen.facts.items() if facts.type == "share"]
    asked = (commits.committed != NONE) & ~commits.of_groups(shares)
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
