"""Rebalances of the last hour and the last cause of every group, within bounded time.

Problem: `fleet status` is looked at often and answers in a second for a thousand groups; the
offsets topic of such a cluster takes minutes to read. Choice: tables where they are kept; else
the topic, from its beginning where it is small and from a day ago where it is not, given up
after `PATIENCE`; so it is read where the tables are broken, or so old that whoever wrote them has
ended. What was given up is absent, with words. Who asks for the verdict on a few
groups alone reads their partitions, from some minutes ago.
Cost: a reader that begins in the middle does not know the cause of the first rebalance it sees.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from fleet.decide.verdicts import HORIZON
from fleet.errors import FleetError
from fleet.log.readers.positions import Positions
from fleet.log.records import OffsetCommit, Tombstone
from fleet.log.replay.causes import Replay
from fleet.manager.past import STALE, by_group, tables_of, tail_of
from fleet.model.rebalances import Rebalance

if TYPE_CHECKING:
    from fleet.lag.lag_columns import Commits
    from fleet.manager.cycle import Fleet
    from fleet.manager.past import Past

HOUR: Final = 3600.0
DAY: Final = 86400.0
PATIENCE: Final = 3.0
FEW: Final = 20
"""Groups whose partitions are read one after the other; more are read with all others."""
LONGEST: Final = 10.0
"""Seconds for all of them together: a tick of Dagster's sensor has 20."""
INTERVALS: Final = 3.0
"""Of `history.every`: older tables have no writer any more."""
SMALL: Final = 250_000
"""Records that are read in about a second."""


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


def recently(fleet: "Fleet", *, patience: float = PATIENCE, unread: str = "") -> Recent:
    """The last day of all groups; raises nothing: what cannot be read is not known.

    unread: why the tables cannot be read, where the caller has just found it; not asked again.
    """
    now = fleet.clock.now()
    told = _unread(unread) if unread else _by_tables(fleet, now)
    if told.known and not told.old:
        return told
    return _rather(_by_log(fleet, now, patience=patience), told)


def _rather(read: Recent, told: Recent) -> Recent:
    """The log, with why tables that are there were left; tables that are old where it is away."""
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
        return _unread(f"the history's tables cannot be read: {error}")
    age = now - tables.source.as_of
    told = tables.source.sentence(now)
    made = recent_from(found, kind="tables", sentence=told, now=now)
    behind = tables.source.behind > 0
    old = behind or age > max(STALE, INTERVALS * fleet.spec.history.every)
    return replace(made, tables=tables, current=age <= STALE and not behind, old=old)


def _unread(why: str) -> Recent:
    return Recent(kind="none", sentence=f"; {why}")


def _by_log(fleet: "Fleet", now: float, *, patience: float) -> Recent:
    """What is retained of the offsets topic, where that is read in time."""
    done, commits, reaches = False, None, None
    try:
        reaches = beginning(fleet)
        with tail_of(fleet, since=reaches, keep=DAY) as tail:
            done = tail.catch_up(patience)
            found, why = tail.rebalances(since=now - DAY), tail.problem
            commits = tail.commits()
    except FleetError as error:
        done, found, why = False, [], str(error)
    if done:
        told = "from __consumer_offsets, read just now"
        made = recent_from(found, kind="log", sentence=told, now=now)
        return replace(made, commits=commits, reaches=reaches)
    why = why or (
        f"__consumer_offsets was not read within {patience:g} s; `fleet history tail` keeps "
        "tables that answer at once"
    )
    return Recent(kind="none", sentence=f"rebalances are not known: {why}")


def minutes_of(
    fleet: "Fleet", groups: Collection[str], *, patience: float = PATIENCE, unread: str = ""
) -> Recent:
    """What the verdicts on these groups need, and no more; raises nothing. `unread` as above."""
    now = fleet.clock.now()
    if len(groups) > FEW:
        return recently(fleet, patience=patience, unread=unread)
    told = _unread(unread) if unread else _by_tables(fleet, now)
    if told.known and not told.old:
        return told
    return _rather(_by_groups(fleet, groups, now, patience=patience), told)


def _by_groups(fleet: "Fleet", groups: Collection[str], now: float, *, patience: float) -> Recent:
    """The last minutes of the partitions of the offsets topic that hold these groups."""
    # A Kafka client, only where it is used.
    from fleet.log.readers.group_log import GroupLog, OutOfTime

    until = fleet.clock.monotonic() + LONGEST
    positions, rebalances, unread = Positions(), list[Rebalance](), set[str]()
    try:
        with GroupLog(fleet.client, clock=fleet.clock, timeout=patience) as log:
            for place, group in enumerate(groups):
                left = until - fleet.clock.monotonic()
                log.end_within(left / (len(groups) - place))  # one that is slow stops no other
                try:
                    first = log.position_at(group, now - HORIZON)
                    records = (*log.last_state(group, first), *log.read(group, first))
                except OutOfTime:
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
    told = "from __consumer_offsets, read just now"
    found = recent_from(rebalances, kind="log", sentence=told, now=now)
    return replace(found, commits=positions.copy(), reaches=now - HORIZON, unread=frozenset(unread))


def beginning(fleet: "Fleet") -> float | None:
    """From when on a reader in a hurry reads the topic: all of it (None) where it is small.

    Raises FleetError where its size cannot be asked.
    """
    size = sum(each.end - each.first for each in fleet.offsets_bounds().values())
    return None if size <= SMALL else fleet.clock.now() - DAY
