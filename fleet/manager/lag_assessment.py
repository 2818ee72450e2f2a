"""Computes the lag status of each group from one snapshot and its past.

Problem: the exporter observes for minutes, but a command or a check reads once, and a lag alone is
not a lag status. Choice: the past comes from the tables or the offsets topic into the same columns
(`with_past`, `with_tables`), and the same rules apply. The tables are read only for named groups
and for groups with records older than the least grace period. Cost: the topic alone does not show
slow growth (WARN needs older lags, which the tables have). Without both, there is no lag status.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from fleet.decide.lag_status import (
    HORIZON,
    MOVING,
    WORST,
    Grace,
    GroupLagStatus,
    LagStatus,
    PartitionLagStatus,
)
from fleet.errors import FleetError
from fleet.lag.lag_columns import NONE, Commits, Floats, Longs, Rows, portions
from fleet.lag.snapshot import CASES, GroupFacts, Lag, Snapshot
from fleet.log.readers.positions import Positions, key_to
from fleet.model import GroupState, LagCase, TopicPartition
from fleet.model.rebalances import Rebalance

if TYPE_CHECKING:
    from fleet.history.tables import Tables
    from fleet.manager.cycle import Fleet
    from fleet.manager.past import Past, Recent


# The rules of the lag status, for every partition and group of a snapshot, in columns. Pure.
#
# Problem: alerts on lag alone are false alarms, since a busy group always has lag. LinkedIn's
# Burrow uses rules over the last ten commits; its known false alarms come from that window, since
# it does not know how long records have waited. Checking 240,000 partitions one by one is
# slow. Choice: Burrow's terms, but every alarm needs a record that is older than the group's grace
# period. That is a minute, or three usual gaps between commits, at most 15 minutes. The rules exist
# once, over columns (`_codes`; the first match counts), for command, exporter, Dagster and page.
# Before STOP or STALL, the waiting records are read (`find_still_rows`, `Observer.read_on`), since
# unreadable records do not wait. A group has the status of its worst partition; Empty for
# `abandoned` seconds, it is ABANDONED, which is not an error. Cost: a group that hangs is reported
# after its grace period, 60 s at the earliest.


Codes = NDArray[np.int8]
"""Places in `_BY_CODE`."""
_BY_CODE: Final = (*WORST, LagStatus.UNSCORED)
_CODE: Final = {status: code for code, status in enumerate(_BY_CODE)}
_OK: Final = _CODE[LagStatus.OK]
_CASE: Final = {case: code for code, case in enumerate(CASES)}
_FIGURES: Final = tuple(_CASE[case] for case in (LagCase.OK, LagCase.NOTHING, LagCase.HELD))
_GRACE: Final = Grace()


def worst_lag_status(seen: Snapshot) -> dict[str, LagStatus]:
    """Returns the lag status of each existing group, without sentences."""
    return _of_groups(seen, _compute_codes(seen))


def lag_statuses(seen: Snapshot) -> dict[str, GroupLagStatus]:
    """Returns the lag status of each existing group with its reason."""
    codes = _compute_codes(seen)
    worst, commits = _of_groups(seen, codes), seen.commits
    totals = dict(zip(commits.groups, np.bincount(commits.group).tolist(), strict=False))
    worse: dict[str, list[PartitionLagStatus]] = {}
    rows = np.flatnonzero(codes < _OK)
    order = (commits.partition[rows], commits.topic[rows], codes[rows])
    for row in rows[np.lexsort(order)].tolist():
        tp = TopicPartition(commits.topics[commits.topic[row]], int(commits.partition[row]))
        status = _BY_CODE[codes[row]]
        said = PartitionLagStatus(tp=tp, status=status, sentence=_sentence(seen, row, tp, status))
        worse.setdefault(commits.groups[commits.group[row]], []).append(said)
    cooldown = _Cooldown(seen, codes)
    return {
        group: _grouped(group, status, totals.get(group, 0), worse.get(group, []), cooldown)
        for group, status in worst.items()
    }


def find_still_rows(seen: Snapshot) -> Longs:
    """Finds rows whose waiting records must be read; none that is abandoned.

    First come rows that seem to stand still, newest first, then ends that may be a marker.
    """
    empty = [group for group, facts in seen.facts.items() if facts.state is GroupState.EMPTY]
    old = _since(seen.commits.at, seen.at) >= _GRACE.abandoned
    asked = find_late_rows(seen) & (seen.lag.case == _CASE[LagCase.OK])
    rows = np.flatnonzero(asked & ~(old & seen.commits.of_groups(empty)))
    codes = _compute_codes(seen.where(rows))
    still = rows[(codes == _CODE[LagStatus.STOP]) | (codes == _CODE[LagStatus.STALL])]
    newest = still[np.argsort(-seen.commits.moved[still], kind="stable")]
    lag = seen.lag
    few = (lag.records > 0) & (lag.records <= _GRACE.allowed) & (lag.waited >= _GRACE.least)
    found: Longs = np.concatenate([newest, np.flatnonzero(few)])
    return found


def find_late_rows(seen: Snapshot) -> Rows:
    """Finds rows with records that are older than the least grace period."""
    lag = seen.lag
    found: Rows = (lag.records > _GRACE.allowed) & (lag.waited >= _GRACE.least)
    return found | _beyond(lag)


# --- the rules ------------------------------------------------------------------------------


def _compute_codes(seen: Snapshot) -> Codes:
    """Returns the code of the lag status of each row."""
    found = np.empty(len(seen.commits), dtype=np.int8)
    cooldown, moving = _settled(seen)
    for place, rows in zip(portions(len(found)), seen.portions(), strict=True):
        which = rows.commits.group
        found[place] = _codes(rows, cooldown[which], moving[which])
    return found


def _codes(seen: Snapshot, cooldown: Floats, moving: Rows) -> Longs:
    """Applies the first matching rule to each row; `cooldown` and `moving` are of its group.

    Silence counts from the last rebalance at the earliest.
    """
    commits, lag, now = seen.commits, seen.lag, seen.at
    gap = np.where(commits.gap == NONE, 0.0, commits.gap / 1000)
    enough = np.minimum(np.maximum(_GRACE.least, _GRACE.gaps * gap), _GRACE.most)
    fell = (commits.peak != NONE) & (commits.peak > commits.committed)
    silent = np.minimum(_since(commits.at, now), cooldown)
    rules = (
        (lag.case == _CASE[LagCase.BELOW_START], LagStatus.LOSS),
        (_beyond(lag) & ~moving & (silent >= enough), LagStatus.STOP),
        (~np.isin(lag.case, _FIGURES) | (lag.records == NONE), LagStatus.UNSCORED),
        (lag.records <= _GRACE.allowed, LagStatus.OK),
        (fell & (_since(commits.fell, now) < _GRACE.rewound), LagStatus.REWIND),
        (moving | ~(lag.waited >= enough), LagStatus.OK),
        (lag.case == _CASE[LagCase.HELD], LagStatus.HELD),
        (silent >= enough, LagStatus.STOP),
        (np.minimum(_since(commits.moved, now), cooldown) >= enough, LagStatus.STALL),
        (
            (seen.over > 0) & (seen.gained > np.maximum(_GRACE.slower * seen.over, gap)),
            LagStatus.WARN,
        ),
    )
    fits, statuses_ = zip(*rules, strict=True)
    return np.select(fits, [_CODE[each] for each in statuses_], _OK)


def _beyond(lag: Lag) -> Rows:
    """Finds rows committed beyond the end of a log with records, where no reader can continue."""
    found: Rows = (lag.case == _CASE[LagCase.BEYOND_END]) & (lag.end > lag.start)
    return found


def _settled(seen: Snapshot) -> tuple[Floats, Rows]:
    """Returns for each group seconds since it settled, and whether it rebalances."""
    nobody = GroupFacts(state=GroupState.UNKNOWN, type="unknown", members=None)
    facts = [seen.facts.get(name, nobody) for name in seen.commits.groups]
    return (
        np.array([_since_settled(each, seen.at) for each in facts]),
        np.array([each.state in MOVING for each in facts], dtype=np.bool_),
    )


def _since_settled(facts: GroupFacts, now: float) -> float:
    return np.inf if facts.changed_at is None else max(0.0, now - facts.changed_at)


def _since(ms: Longs, now: float) -> Floats:
    """Returns seconds since each of these; 0 if unknown."""
    return np.where(ms == NONE, 0.0, np.maximum(0.0, now - ms / 1000))


def _of_groups(seen: Snapshot, codes: Codes) -> dict[str, LagStatus]:
    """Returns the worst lag status of each existing group, or ABANDONED."""
    names = seen.commits.groups
    worst = np.full(len(names), _CODE[LagStatus.UNSCORED], dtype=np.int8)
    np.minimum.at(worst, seen.commits.group, codes)
    bad = np.flatnonzero(codes < _OK)
    at = seen.commits.at[bad]
    old = (at != NONE) & (_since(at, seen.at) >= _GRACE.abandoned)
    lately = np.zeros(len(names), dtype=np.bool_)
    lately[seen.commits.group[bad[~old]]] = True
    place = {group: index for index, group in enumerate(names)}
    found = {}
    for group, facts in seen.facts.items():
        if not facts.exists:
            continue
        index = place.get(group)
        code = _CODE[LagStatus.UNSCORED] if index is None else worst[index]
        deserted = index is not None and code < _OK and not lately[index]
        abandoned = deserted and facts.state is GroupState.EMPTY
        found[group] = LagStatus.ABANDONED if abandoned else _BY_CODE[code]
    return found


# --- sentences ------------------------------------------------------------------------------


def _sentence(seen: Snapshot, row: int, tp: TopicPartition, status: LagStatus) -> str:
    """Describes why a row that is not OK has this lag status."""
    commits, lag, now = seen.commits, seen.lag, seen.at
    facts = seen.facts.get(commits.groups[commits.group[row]])
    cooldown = np.inf if facts is None else _since_settled(facts, now)

    def since(ms: int) -> float:
        return 0.0 if ms == NONE else max(0.0, now - ms / 1000)

    if status is LagStatus.LOSS:
        return "committed below the log start: Kafka deleted records before the group read them"
    committed = int(commits.committed[row])
    if status is LagStatus.REWIND:
        ago, fell_by = since(int(commits.fell[row])), int(commits.peak[row]) - committed
        return f"offset went back by {fell_by:,} records {ago:.0f} s ago"
    empty = facts is not None and facts.state is GroupState.EMPTY
    nobody = " and the group has no members" if empty else ""
    silent = min(since(int(commits.at[row])), cooldown)
    if lag.records[row] == NONE:
        return (
            f"committed {committed:,}, which is beyond the log end {lag.end[row]:,}, and no "
            f"commit for {silent:.0f} s{nobody}"
        )
    still = min(since(int(commits.moved[row])), cooldown)
    said = {
        LagStatus.HELD: f"blocked by {seen.held.get(tp, 'an open transaction')}",
        LagStatus.STOP: f"no commit for {silent:.0f} s{nobody}",
        LagStatus.STALL: f"commits the same offset for {still:.0f} s",
        LagStatus.WARN: f"falls behind, by {seen.gained[row]:.0f} s in {seen.over[row]:.0f} s",
    }[status]
    return f"{said}: {lag.records[row]:,} records wait, the oldest for {lag.waited[row]:.0f} s"


class _Cooldown:
    """Describes groups without a bad status."""

    def __init__(self, seen: Snapshot, codes: Codes) -> None:
        self._seen = seen
        commits, size = seen.commits, len(seen.commits.groups)
        place = {group: index for index, group in enumerate(commits.groups)}
        waits = (codes == _OK) & (seen.lag.records > _GRACE.allowed)
        sums = np.bincount(commits.group[waits], seen.lag.records[waits], minlength=size)
        self._waiting = {group: int(sums[index]) for group, index in place.items()}
        self._cases: dict[str, set[str]] = {}
        pairs = np.unique(commits.group.astype(np.int64) * len(CASES) + seen.lag.case)
        for group, case in zip(*(each.tolist() for each in divmod(pairs, len(CASES))), strict=True):
            self._cases.setdefault(commits.groups[group], set()).add(CASES[case].value)

    def keeps_up(self, group: str) -> str:
        """Describes an OK group; one without members by its waiting records."""
        waiting = self._waiting.get(group, 0)
        if waiting and self._seen.facts[group].state is GroupState.EMPTY:
            return f"no members: {waiting:,} records wait"
        return "keeps up"

    def unscored(self, group: str) -> str:
        """Describes why a group has no figure."""
        return ", ".join(sorted(self._cases.get(group, ()))) or "nothing committed"


def _grouped(
    group: str, status: LagStatus, total: int, worse: list[PartitionLagStatus], cooldown: _Cooldown
) -> GroupLagStatus:
    if status is LagStatus.OK:
        said = cooldown.keeps_up(group)
    elif status is LagStatus.UNSCORED:
        said = cooldown.unscored(group)
    elif status is LagStatus.ABANDONED:
        said = "no members, and no commit for a day; delete the group if it is not needed"
    else:
        alike = sum(each.status is status for each in worse)
        said = f"{alike} of {total} partitions, the worst {worse[0].tp}: {worse[0].sentence}"
    return GroupLagStatus(
        group=group, status=status, sentence=said, partitions=total, worse=tuple(worse)
    )


GROWTH: Final = 300.0
"""Seconds over which the growth of a lag is measured."""
_SAFE: Final = 30.0


def find_groups_in_doubt(seen: Snapshot, named: Iterable[str]) -> frozenset[str]:
    """Returns groups whose lag status depends on their past."""
    groups = seen.commits.groups
    waiting = {groups[place] for place in np.unique(seen.commits.group[find_late_rows(seen)])}
    return frozenset(waiting.union(name for name in named if name in seen.facts))


def compute_lag_statuses(
    fleet: "Fleet", snapshot: Snapshot, recent: "Recent", named: Iterable[str]
) -> tuple[Snapshot, dict[str, GroupLagStatus]]:
    """Computes the lag status of each group, if it can, from a snapshot and its past.

    Also returns the snapshot with the waiting records of groups that seem to stand still.
    """
    seen = snapshot
    if not recent.known or recent.old:
        return snapshot, {}
    doubted, silent = find_groups_in_doubt(seen, named), recent.unread
    if recent.commits is not None:
        seen = with_past(seen, recent.commits, reaches=recent.reaches, until=seen.at)
    elif recent.tables is not None:
        try:
            seen, silent = _by_tables(fleet, seen, recent.tables, doubted)
        except FleetError:  # unreachable or damaged since their rebalances were read
            silent = doubted
    seen = with_settled(seen, recent.last)
    seen = fleet.read_on(seen, find_still_rows(seen))
    found = {group: each for group, each in lag_statuses(seen).items() if group not in silent}
    return replace(snapshot, lag=seen.lag, held=seen.held), found


def _by_tables(
    fleet: "Fleet", seen: Snapshot, past: "Past", doubted: frozenset[str]
) -> tuple[Snapshot, frozenset[str]]:
    """Adds the past of groups from the tables, and returns the groups that these lack.

    Raises FleetError if they are unreadable.
    """
    from fleet.history.tables import Tables  # noqa: PLC0415  pyarrow, where it is used

    rows = past.rows
    assert isinstance(rows, Tables)
    state = rows.state()
    recorded = fleet.spec.history.groups.takes
    polled = state is None or not state.positions  # then commits are not known
    silent = frozenset(group for group in doubted if polled or not recorded(group))
    return with_tables(seen, rows, doubted - silent, until=past.source.as_of), silent


def with_settled(seen: Snapshot, last: Mapping[str, Rebalance]) -> Snapshot:
    """Adds the end of each group's last rebalance."""
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
    """Adds the commits of each partition that a reader found up to `until`.

    `reaches`: start of its reading; a partition that it did not find was last committed before.
    `groups`: the groups that it read; None: all.
    """
    commits = seen.commits
    place = commits.places_in(past)
    # The offsets topic has no records of share groups.
    shares = [group for group, facts in seen.facts.items() if facts.type == "share"]
    asked = (commits.committed != NONE) & ~commits.of_groups(shares)
    if groups is not None:
        asked &= commits.of_groups(groups)
    met, unmet = asked & (place != NONE), asked & (place == NONE)
    # Times count up to `until`; silence after it is not assumed.
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
    """Adds the commits of these groups from the tables, which reach up to `until`."""
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
    """Adds the growth of ages since an older row of `lag`, and commits before the window."""
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
            earlier = round(row["committed_at"] * 1000) + later
            at[found], moved[found] = min(at[found], earlier), min(moved[found], earlier)
        if row["seconds"] is not None and row["sampled_at"] <= until - _SAFE:
            gained[found] = seen.lag.waited[found] - row["seconds"]
            over[found] = seen.at - row["sampled_at"]
    return replace(seen, commits=replace(commits, at=at, moved=moved), gained=gained, over=over)
