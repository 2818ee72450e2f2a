"""Reads the past of groups from the history tables, else from the offsets topic.

Problem: not every cluster has history tables, and compaction removes records of
`__consumer_offsets`, so that an answer must name its source and how far back it reaches. Choice:
one value with both. For a single group, its one partition is read with commits, which show when
rebalances began. For all groups, the whole topic is read without commits. Cost: without tables,
each command reads the topic again, for at most `grace` seconds.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleet.config.acls import OFFSETS
from fleet.decide.lag_status import HORIZON
from fleet.errors import FleetError
from fleet.log.readers.log_view import KeptRebalances
from fleet.log.readers.positions import Positions
from fleet.log.records import OffsetCommit, Tombstone
from fleet.log.replay.causes import Replay
from fleet.model.rebalances import Cause, MembershipSpan, Rebalance, standing
from fleet.report.wording import clock_text
from fleet.text import duration, plural

if TYPE_CHECKING:
    from fleet.history.tables import Tables
    from fleet.lag.lag_columns import Commits
    from fleet.log.readers.tail import Tail
    from fleet.manager.cycle import Fleet


STALE: Final = 120.0
"""Seconds after which tables are reported as old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Describes the source of an answer. Times are wall-clock seconds."""

    kind: str
    """tables | log."""
    place: str
    reaches: float | None
    """Time of the oldest row; None if there is none."""
    as_of: float
    """Time up to which it is complete."""
    note: str = ""
    """Remark for the user."""
    behind: int = 0
    """Records of the log that it lacks."""

    def sentence(self, now: float) -> str:
        """Describes the source and its reach in one line."""
        if self.kind == "tables":
            origin = f"from the history tables in {self.place}"
        else:
            origin = "from the retained records of __consumer_offsets, read just now"
        reaches = "; it has no rows yet"
        if self.reaches is not None:
            reaches = f"; it reaches back to {clock_text(self.reaches)} UTC"
        age = now - self.as_of
        old = f", and is {duration(age)} old" if age > STALE else ""
        if self.behind:
            old += f", and lacks {plural(self.behind, 'record')} of the log"
        return origin + reaches + old + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Holds rows and their source."""

    rows: "Tables | Tail | ReplayedRows"
    source: Source


class ReplayedRows:
    """Holds the rows of a replay in memory."""

    def __init__(self, made: Iterable[Rebalance | MembershipSpan]) -> None:
        self._kept = KeptRebalances(keep=inf, most=sys.maxsize)
        for row in sorted(made, key=lambda row: row.log_offset):
            self._kept.add(row, now=0.0)

    def rebalances(
        self,
        *,
        group: str | None = None,
        since: float | None = None,
        until: float | None = None,
        cause: Cause | None = None,
    ) -> list[Rebalance]:
        """Returns rebalances that ended in [since, until), oldest first."""
        return self._kept.rebalances(group, since, until, cause)

    def memberships(
        self, *, group: str, since: float | None = None, until: float | None = None
    ) -> list[MembershipSpan]:
        """Returns events of a group's members in [since, until), oldest first."""
        return self._kept.memberships(group, since, until)

    def standing(self, *, group: str, at: float) -> list[MembershipSpan]:
        """Returns the events of the members at a time, since they joined; oldest first."""
        return standing(self.memberships(group=group, until=at))


def read_past(fleet: "Fleet", *, group: str | None, live: bool, grace: float) -> Past:
    """Reads the past of one group or of all; `live` ignores the tables.

    Raises FleetError if neither tables nor the topic are readable.
    """
    found = None if live else open_tables(fleet)
    if found is not None:
        return found
    try:
        if group is not None:
            return _of_one(fleet, group, grace)
        return _of_all(fleet, grace)
    except FleetError as error:
        raise FleetError(
            f"cannot read the past: {fleet.history_path} has no history tables, and {error}"
        ) from error


def open_tables(fleet: "Fleet") -> Past | None:
    """Opens the history tables; None if there are none. Raises FleetError if they are broken."""
    path = fleet.history_path
    if "://" not in path and not Path(path, "state").is_dir():
        return None  # without loading pyarrow, which takes a quarter of a second

    from fleet.history.tables import Tables

    tables = Tables(path)
    state = tables.state()
    if state is None:
        return None
    days = [file.day for file in tables.files(state, "rebalances")]
    oldest = datetime.fromisoformat(min(days)).replace(tzinfo=UTC).timestamp() if days else None
    note = ""
    if state.lost:
        lost = sum(end - start for _, start, end in state.lost)
        number, start, end = state.lost[-1]
        note = (
            f"Kafka deleted up to {lost:,} records before Fleet read them, last in "
            f"{OFFSETS}-{number}: offsets {start} to {end - 1}"
        )
    return Past(
        rows=tables,
        source=Source(
            kind="tables",
            place=path,
            reaches=oldest,
            as_of=state.at,
            note=note,
            behind=state.behind,
        ),
    )


def _of_one(fleet: "Fleet", group: str, grace: float) -> Past:
    """Reads the partition that holds the group."""
    from fleet.log.readers.group_log import GroupLog

    with GroupLog(fleet.client, clock=fleet.clock, timeout=grace) as log:
        partition = log.partition_of(group)
        records = () if partition is None else log.read(group, 0)
    replay = Replay(fleet.spec.cluster.name, group)
    replay.name_topics(fleet.topic_ids())
    replay.ask_session(partial(fleet.sessions.of, group))
    made: list[Rebalance | MembershipSpan] = []
    for record in records:
        made += replay.feed(partition or 0, record)
    rows = ReplayedRows(made)
    return Past(rows=rows, source=_log_source(fleet, rows.rebalances()))


def _of_all(fleet: "Fleet", grace: float) -> Past:
    with open_tail(fleet, names=fleet.topic_ids()) as tail:
        done = tail.catch_up(grace)
        rebalances = tail.rebalances()
        if not done and tail.problem:
            raise FleetError(tail.problem)
        note = "" if done else f"the end was not reached within {grace:.0f} s"
        return Past(rows=tail, source=_log_source(fleet, rebalances, note))


def open_tail(
    fleet: "Fleet",
    *,
    since: float | None = None,
    keep: float | None = None,
    names: Mapping[str, str] | None = None,
) -> "Tail":
    """Starts a live view of all groups, to be closed; `names` are topics by id."""
    from fleet.log.readers.tail import Tail

    tail = Tail(
        fleet.client,
        cluster=fleet.spec.cluster.name,
        clock=fleet.clock,
        since=since,
        keep=keep or fleet.spec.history.retention,
    )
    tail.name_topics(names or {})
    return tail.start()


def _log_source(fleet: "Fleet", rebalances: Sequence[Rebalance], note: str = "") -> Source:
    return Source(
        kind="log",
        place=OFFSETS,
        reaches=min((r.ended_at for r in rebalances), default=None),
        as_of=fleet.clock.now(),
        note=note or "compaction may have removed older ones" * bool(rebalances),
    )


def by_group(rebalances: Iterable[Rebalance]) -> Mapping[str, list[Rebalance]]:
    """Groups rebalances by group, sorted by name."""
    found: dict[str, list[Rebalance]] = {}
    for rebalance in rebalances:
        found.setdefault(rebalance.group, []).append(rebalance)
    return dict(sorted(found.items()))


# Rebalances of the last hour and the last cause of every group, within bounded time. They come from
# fresh tables, else from the topic (a large one from a day ago), until `GRACE` has passed. For the
# lag status of a few groups, only their partitions are read. A reader that begins in the middle
# does not know the cause of its first rebalance.


HOUR: Final = 3600.0
DAY: Final = 86400.0
GRACE: Final = 3.0
FEW: Final = 20
"""Most groups whose partitions are read one by one; more are read with all others."""
LONGEST: Final = 10.0
"""Most seconds for all of them; a tick of Dagster's sensor has 20."""
INTERVALS: Final = 3.0
"""Multiple of `history.batch_interval`; older tables have no writer."""
SMALL: Final = 250_000
"""Records that can be read in about a second."""
_JUST_NOW: Final = "from __consumer_offsets, read just now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """Holds the rebalances of the last day; groups without one are left out."""

    kind: str
    """tables | log | none."""
    sentence: str
    """Source, or why nothing is known."""
    in_hour: Mapping[str, int] = field(default_factory=dict)
    last: Mapping[str, Rebalance] = field(default_factory=dict)
    rebalances: Mapping[str, Sequence[Rebalance]] = field(default_factory=dict)
    current: bool = True
    """Whether it reaches up to now; if not, the last hour cannot be counted."""
    old: bool = False
    """Whether the tables have no writer or are far behind the log, so that they give no lag
    status."""
    commits: "Commits | None" = None
    """Last commits, if the log was read."""
    unread: frozenset[str] = frozenset()
    """Groups that could not be read in time."""
    reaches: float | None = None
    """Start of the reading; None: the log's beginning."""
    tables: "Past | None" = None

    @property
    def known(self) -> bool:
        """Tells whether a group that is left out had no rebalance."""
        return self.kind != "none"

    def per_hour(self, group: str) -> int | None:
        """Counts a group's rebalances in the last hour; None if unknown."""
        return self.in_hour.get(group, 0) if self.known and self.current else None


def make_recent(rebalances: Sequence[Rebalance], *, kind: str, sentence: str, now: float) -> Recent:
    """Builds it from rows in any order."""
    groups = by_group(rebalances)
    return Recent(
        kind=kind,
        sentence=sentence,
        in_hour={
            group: sum(now - HOUR <= r.ended_at for r in found) for group, found in groups.items()
        },
        last={
            group: max(found, key=lambda r: (r.ended_at, r.log_offset))
            for group, found in groups.items()
        },
        rebalances=groups,
    )


def read_recent(fleet: "Fleet", *, grace: float = GRACE) -> Recent:
    """Reads the last day of all groups; unreadable parts are unknown, nothing is raised."""
    return _by_tables_or(fleet, partial(_by_log, fleet, grace=grace))


def _by_tables_or(fleet: "Fleet", by_log: Callable[[float], Recent]) -> Recent:
    """Reads fresh tables, else the log; old tables if the log is unreadable."""
    now = fleet.clock.now()
    stored = _by_tables(fleet, now)
    if stored.known and not stored.old:
        return stored
    read = by_log(now)
    if not stored.known:  # there are none, or they are unreadable
        return replace(read, sentence=f"{read.sentence}{stored.sentence}")
    return read if read.known else stored


def _by_tables(fleet: "Fleet", now: float) -> Recent:
    """Reads the tables; `none` if there are none, or if they are unreadable."""
    try:
        tables = open_tables(fleet)
        if tables is None:
            return Recent(kind="none", sentence="")
        found = tables.rows.rebalances(since=now - DAY)
    except FleetError as error:
        return Recent(kind="none", sentence=f"; cannot read the history tables: {error}")
    age = now - tables.source.as_of
    sentence = tables.source.sentence(now)
    made = make_recent(found, kind="tables", sentence=sentence, now=now)
    behind = tables.source.behind > 0
    old = behind or age > max(STALE, INTERVALS * fleet.spec.history.batch_interval)
    return replace(made, tables=tables, current=age <= STALE and not behind, old=old)


def _by_log(fleet: "Fleet", now: float, *, grace: float) -> Recent:
    """Reads the retained records of the offsets topic, if there is time."""
    try:
        reaches = find_start(fleet)
        with open_tail(fleet, since=reaches, keep=DAY) as tail:
            if tail.catch_up(grace):
                found = tail.rebalances(since=now - DAY)
                made = make_recent(found, kind="log", sentence=_JUST_NOW, now=now)
                return replace(made, commits=tail.commits(), reaches=reaches)
            why = tail.problem or (
                f"__consumer_offsets was not read within {grace:g} s; run `fleet history sync "
                "--follow` to keep tables, which answer at once"
            )
    except FleetError as error:
        why = str(error)
    return Recent(kind="none", sentence=f"rebalances are unknown: {why}")


def read_last_minutes(fleet: "Fleet", groups: Collection[str], *, grace: float = GRACE) -> Recent:
    """Reads what the lag status of these groups needs; raises nothing."""
    if len(groups) > FEW:
        return read_recent(fleet, grace=grace)
    return _by_tables_or(fleet, partial(_by_groups, fleet, groups, grace=grace))


def _by_groups(fleet: "Fleet", groups: Collection[str], now: float, *, grace: float) -> Recent:
    """Reads the last minutes of the partitions that hold these groups."""
    # Loads a Kafka client, so it is imported on use.
    from fleet.log.readers.group_log import GroupLog, ReadTimeout

    until = fleet.clock.monotonic() + LONGEST
    positions, rebalances, unread = Positions(), list[Rebalance](), set[str]()
    try:
        with GroupLog(fleet.client, clock=fleet.clock, timeout=grace) as log:
            for place, group in enumerate(groups):
                left = until - fleet.clock.monotonic()
                log.end_within(left / (len(groups) - place))  # a slow one does not block others
                try:
                    first = log.position_at(group, now - HORIZON)
                    records = (*log.last_state(group, first), *log.read(group, first))
                except ReadTimeout:
                    unread.add(group)
                    continue
                replay = Replay(fleet.spec.cluster.name, group)
                replay.ask_session(partial(fleet.sessions.of, group))
                for record in records:
                    if isinstance(record, OffsetCommit | Tombstone):
                        positions.take(record)
                    rebalances += [
                        made for made in replay.feed(0, record) if isinstance(made, Rebalance)
                    ]
    except FleetError as error:
        return Recent(kind="none", sentence=f"commits are unknown: {error}")
    found = make_recent(rebalances, kind="log", sentence=_JUST_NOW, now=now)
    return replace(found, commits=positions.copy(), reaches=now - HORIZON, unread=frozenset(unread))


def find_start(fleet: "Fleet") -> float | None:
    """Returns where a quick reader starts in the topic; None, its beginning, if it is small.

    Raises FleetError if its size is unreadable.
    """
    size = sum(each.end - each.first for each in fleet.offsets_bounds().values())
    return None if size <= SMALL else fleet.clock.now() - DAY
