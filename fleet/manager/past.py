"""Where the past of groups is read: the history's tables, else the offsets topic as it is.

Problem: rebalances are kept in tables where somebody keeps them, and everywhere else in what
compaction has left of `__consumer_offsets`; an answer is worth what its source is worth, so it
has to say which it was and how far back that goes. Choice: one value with both; of a single
group the one partition that holds it is read, commits too, since they tell when rebalances
began; of all groups the whole topic, membership alone.
Cost: without tables the topic is read anew by each command, within `grace` seconds.
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
"""Seconds after which tables are said to be old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where an answer comes from. Times are wall-clock seconds."""

    kind: str
    """tables | log."""
    place: str
    reaches: float | None
    """The oldest that it holds; None where it holds nothing."""
    as_of: float
    """Up to when it tells."""
    note: str = ""
    """What a person has to know of it, in a sentence."""
    behind: int = 0
    """Records of the log that were there then and are not in it yet."""

    def sentence(self, now: float) -> str:
        """Which it is, and how far back it reaches, in one line."""
        if self.kind == "tables":
            told = f"from the history tables in {self.place}"
        else:
            told = "from what is retained of __consumer_offsets, read just now"
        reaches = "; nothing is in it yet"
        if self.reaches is not None:
            reaches = f"; it reaches back to {clock_text(self.reaches)} UTC"
        age = now - self.as_of
        old = f", and is {duration(age)} old" if age > STALE else ""
        if self.behind:
            old += f", and {plural(self.behind, 'record')} of the log are not in it yet"
        return told + reaches + old + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Rows, and where they are from."""

    rows: "Tables | Tail | Replayed"
    source: Source


class Replayed:
    """Rows in memory."""

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
        """Rebalances that ended in [since, until), oldest first."""
        return self._kept.rebalances(group, since, until, cause)

    def memberships(
        self, *, group: str, since: float | None = None, until: float | None = None
    ) -> list[MembershipSpan]:
        """Events of a group's members in [since, until), oldest first."""
        return self._kept.memberships(group, since, until)

    def standing(self, *, group: str, at: float) -> list[MembershipSpan]:
        """Events before a time of those who are members then, since they came; oldest first."""
        return standing(self.memberships(group=group, until=at))


def past_of(fleet: "Fleet", *, group: str | None, live: bool, grace: float) -> Past:
    """The past of one group, or of all. `live` leaves tables out.

    Raises FleetError where neither tables nor the topic can be read, with what to do.
    """
    found = None if live else tables_of(fleet)
    if found is not None:
        return found
    try:
        if group is not None:
            return _of_one(fleet, group, grace)
        return _of_all(fleet, grace)
    except FleetError as error:
        raise FleetError(
            f"the past cannot be read: there are no history tables in {fleet.history_path}, and "
            f"{error}"
        ) from error


def tables_of(fleet: "Fleet") -> Past | None:
    """The history's tables; None where there are none. Raises FleetError where they are broken."""
    path = fleet.history_path
    if "://" not in path and not Path(path, "state").is_dir():
        return None  # pyarrow takes a quarter of a second to load, to say the same

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
            f"up to {lost:,} records were gone before they were read, the last of "
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
    """From the one partition that holds the group."""
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
    rows = Replayed(made)
    return Past(rows=rows, source=_log_source(fleet, rows.rebalances()))


def _of_all(fleet: "Fleet", grace: float) -> Past:
    with tail_of(fleet, names=fleet.topic_ids()) as tail:
        done = tail.catch_up(grace)
        rebalances = tail.rebalances()
        if not done and tail.problem:
            raise FleetError(tail.problem)
        note = "" if done else f"its end was not reached within {grace:.0f} s"
        return Past(rows=tail, source=_log_source(fleet, rebalances, note))


def tail_of(
    fleet: "Fleet",
    *,
    since: float | None = None,
    keep: float | None = None,
    names: Mapping[str, str] | None = None,
) -> "Tail":
    """A live view of all groups, started; close it. `names` of topics by id, for what moved."""
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
        note=note or "compaction may have taken older ones" * bool(rebalances),
    )


def by_group(rebalances: Iterable[Rebalance]) -> Mapping[str, list[Rebalance]]:
    """Rebalances of each group, in their order; groups by name."""
    found: dict[str, list[Rebalance]] = {}
    for rebalance in rebalances:
        found.setdefault(rebalance.group, []).append(rebalance)
    return dict(sorted(found.items()))


# Rebalances of the last hour and the last cause of every group, within bounded time: from tables
# where they are kept and fresh, else from the topic (from a day ago where it is not small), given
# up after `GRACE` with words. For the verdict on a few groups only their partitions are read. A
# reader that begins in the middle does not know the cause of the first rebalance it sees.


HOUR: Final = 3600.0
DAY: Final = 86400.0
GRACE: Final = 3.0
FEW: Final = 20
"""Groups whose partitions are read one after the other; more are read with all others."""
LONGEST: Final = 10.0
"""Seconds for all of them together: a tick of Dagster's sensor has 20."""
INTERVALS: Final = 3.0
"""Of `history.batch_interval`: older tables have no writer any more."""
SMALL: Final = 250_000
"""Records that are read in about a second."""
_JUST_NOW: Final = "from __consumer_offsets, read just now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """What is known of the last day. Groups without a rebalance in it are left out."""

    kind: str
    """tables | log | none."""
    sentence: str
    """Where it is from, or why nothing is known."""
    in_hour: Mapping[str, int] = field(default_factory=dict)
    last: Mapping[str, Rebalance] = field(default_factory=dict)
    rebalances: Mapping[str, Sequence[Rebalance]] = field(default_factory=dict)
    current: bool = True
    """Whether it tells up to now: else the last hour cannot be counted."""
    old: bool = False
    """Of tables that nobody writes any more, or that are catching up with a long log: whether a
    group keeps up now, they do not tell."""
    commits: "Commits | None" = None
    """The last ones, where the log was read."""
    unread: frozenset[str] = frozenset()
    """Groups that were asked for and could not be read in time."""
    reaches: float | None = None
    """Since when it was read; None: from its beginning."""
    tables: "Past | None" = None

    @property
    def known(self) -> bool:
        """Whether a group that is left out had no rebalance."""
        return self.kind != "none"

    def per_hour(self, group: str) -> int | None:
        """Rebalances of a group in the last hour; None where not known."""
        return self.in_hour.get(group, 0) if self.known and self.current else None


def recent_from(rebalances: Sequence[Rebalance], *, kind: str, sentence: str, now: float) -> Recent:
    """Counted from rows in any order."""
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


def recently(fleet: "Fleet", *, grace: float = GRACE) -> Recent:
    """The last day of all groups; raises nothing: what cannot be read is not known."""
    return _by_tables_or(fleet, partial(_by_log, fleet, grace=grace))


def _by_tables_or(fleet: "Fleet", by_log: Callable[[float], Recent]) -> Recent:
    """Fresh tables, else the log, with why tables were left; old tables where it is away."""
    now = fleet.clock.now()
    told = _by_tables(fleet, now)
    if told.known and not told.old:
        return told
    read = by_log(now)
    if not told.known:  # there are none, or they cannot be read
        return replace(read, sentence=f"{read.sentence}{told.sentence}")
    return read if read.known else told


def _by_tables(fleet: "Fleet", now: float) -> Recent:
    """What the tables tell; `none` where there are none, or they cannot be read."""
    try:
        tables = tables_of(fleet)
        if tables is None:
            return Recent(kind="none", sentence="")
        found = tables.rows.rebalances(since=now - DAY)
    except FleetError as error:
        return Recent(kind="none", sentence=f"; the history's tables cannot be read: {error}")
    age = now - tables.source.as_of
    told = tables.source.sentence(now)
    made = recent_from(found, kind="tables", sentence=told, now=now)
    behind = tables.source.behind > 0
    old = behind or age > max(STALE, INTERVALS * fleet.spec.history.batch_interval)
    return replace(made, tables=tables, current=age <= STALE and not behind, old=old)


def _by_log(fleet: "Fleet", now: float, *, grace: float) -> Recent:
    """What is retained of the offsets topic, where that is read in time."""
    try:
        reaches = beginning(fleet)
        with tail_of(fleet, since=reaches, keep=DAY) as tail:
            if tail.catch_up(grace):
                found = tail.rebalances(since=now - DAY)
                made = recent_from(found, kind="log", sentence=_JUST_NOW, now=now)
                return replace(made, commits=tail.commits(), reaches=reaches)
            why = tail.problem or (
                f"__consumer_offsets was not read within {grace:g} s; "
                "`fleet history sync --follow` "
                "keeps tables that answer at once"
            )
    except FleetError as error:
        why = str(error)
    return Recent(kind="none", sentence=f"rebalances are not known: {why}")


def minutes_of(fleet: "Fleet", groups: Collection[str], *, grace: float = GRACE) -> Recent:
    """What the verdicts on these groups need, and no more; raises nothing."""
    if len(groups) > FEW:
        return recently(fleet, grace=grace)
    return _by_tables_or(fleet, partial(_by_groups, fleet, groups, grace=grace))


def _by_groups(fleet: "Fleet", groups: Collection[str], now: float, *, grace: float) -> Recent:
    """The last minutes of the partitions of the offsets topic that hold these groups."""
    # A Kafka client, only where it is used.
    from fleet.log.readers.group_log import GroupLog, ReadTimeout

    until = fleet.clock.monotonic() + LONGEST
    positions, rebalances, unread = Positions(), list[Rebalance](), set[str]()
    try:
        with GroupLog(fleet.client, clock=fleet.clock, timeout=grace) as log:
            for place, group in enumerate(groups):
                left = until - fleet.clock.monotonic()
                log.end_within(left / (len(groups) - place))  # one that is slow stops no other
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
        return Recent(kind="none", sentence=f"commits are not known: {error}")
    found = recent_from(rebalances, kind="log", sentence=_JUST_NOW, now=now)
    return replace(found, commits=positions.copy(), reaches=now - HORIZON, unread=frozenset(unread))


def beginning(fleet: "Fleet") -> float | None:
    """From when on a reader in a hurry reads the topic: all of it (None) where it is small.

    Raises FleetError where its size cannot be asked.
    """
    size = sum(each.end - each.first for each in fleet.offsets_bounds().values())
    return None if size <= SMALL else fleet.clock.now() - DAY
