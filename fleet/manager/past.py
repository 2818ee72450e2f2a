"""Where the past of groups is read: the history's tables, else the offsets topic as it is.

Problem: rebalances are kept in tables where somebody keeps them, and everywhere else in what
compaction has left of `__consumer_offsets`; an answer is worth what its source is worth, so it
has to say which it was and how far back that goes. Choice: one value with both; of a single
group the one partition that holds it is read, commits too, since they tell when rebalances
began; of all groups the whole topic, membership alone.
Cost: without tables the topic is read anew by each command, within `patience` seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from fleet.config.acls import OFFSETS
from fleet.errors import FleetError
from fleet.model.rebalances import Cause, MembershipSpan, Rebalance, standing
from fleet.report.wording import clock_text
from fleet.text import duration, plural

if TYPE_CHECKING:
    from fleet.log.readers.tail import Tail
    from fleet.manager.cycle import Fleet

STALE: Final = 120.0
"""Seconds after which tables are said to be old."""


class Rows(Protocol):
    """What answers about the past: `fleet.history.tables.Tables` and others alike."""

    def rebalances(
        self,
        *,
        group: str | None = None,
        since: float | None = None,
        until: float | None = None,
        cause: Cause | None = None,
    ) -> list[Rebalance]:
        """Rebalances that ended in [since, until), oldest first."""
        ...

    def memberships(
        self, *, group: str, since: float | None = None, until: float | None = None
    ) -> list[MembershipSpan]:
        """Events of a group's members in [since, until), oldest first."""
        ...

    def standing(self, *, group: str, at: float) -> list[MembershipSpan]:
        """Events before a time of those who are members then, since they came; oldest first."""
        ...


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

    rows: Rows
    source: Source


class Replayed:
    """Rows in memory."""

    def __init__(self, made: Iterable[Rebalance | MembershipSpan]) -> None:
        self._rebalances: list[Rebalance] = []
        self._memberships: list[MembershipSpan] = []
        for row in made:
            if isinstance(row, Rebalance):
                self._rebalances.append(row)
            else:
                self._memberships.append(row)
        self._rebalances.sort(key=lambda r: (r.ended_at, r.log_offset))
        self._memberships.sort(key=lambda m: (m.at, m.log_offset))

    def rebalances(
        self,
        *,
        group: str | None = None,
        since: float | None = None,
        until: float | None = None,
        cause: Cause | None = None,
    ) -> list[Rebalance]:
        """Rebalances that ended in [since, until), oldest first."""
        return [
            r
            for r in self._rebalances
            if (group is None or r.group == group)
            and _within(r.ended_at, since, until)
            and (cause is None or r.cause is cause)
        ]

    def memberships(
        self, *, group: str, since: float | None = None, until: float | None = None
    ) -> list[MembershipSpan]:
        """Events of a group's members in [since, until), oldest first."""
        return [m for m in self._memberships if m.group == group and _within(m.at, since, until)]

    def standing(self, *, group: str, at: float) -> list[MembershipSpan]:
        """Events before a time of those who are members then, since they came; oldest first."""
        return standing(self.memberships(group=group, until=at))


def _within(at: float, since: float | None, until: float | None) -> bool:
    return (since is None or at >= since) and (until is None or at < until)


def past_of(fleet: "Fleet", *, group: str | None, live: bool, patience: float) -> Past:
    """The past of one group, or of all. `live` leaves tables out.

    Raises FleetError where neither tables nor the topic can be read, with what to do.
    """
    found = None if live else tables_of(fleet)
    if found is not None:
        return found
    try:
        if group is not None:
            return _of_one(fleet, group, patience)
        return _of_all(fleet, patience)
    except FleetError as error:
        raise FleetError(
            f"the past cannot be read: there are no history tables in {fleet.history_path}, and "
            f"{error}"
        ) from error


def tables_of(fleet: "Fleet") -> Past | None:
    """The history's tables; None where there are none. Raises FleetError where they are broken."""
    from fleet.history.tables.table_manifests import FOLDER

    path = fleet.history_path
    if "://" not in path and not Path(path, FOLDER).is_dir():
        return None  # pyarrow takes a quarter of a second to load, to say the same

    from fleet.history.tables import Tables

    tables = Tables(path)
    manifest = tables.manifest()
    if manifest is None:
        return None
    days = [file.day for file in manifest.of("rebalances") if file.day]
    oldest = datetime.fromisoformat(min(days)).replace(tzinfo=UTC).timestamp() if days else None
    note = ""
    if manifest.lost:
        lost = sum(end - start for _, start, end in manifest.lost)
        number, start, end = manifest.lost[-1]
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
            as_of=manifest.at,
            note=note,
            behind=manifest.behind,
        ),
    )


def _of_one(fleet: "Fleet", group: str, patience: float) -> Past:
    """From the one partition that holds the group."""
    from fleet.log.readers.group_log import GroupLog
    from fleet.log.replay.causes import Replay

    with GroupLog(fleet.client, clock=fleet.clock, timeout=patience) as log:
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


def _of_all(fleet: "Fleet", patience: float) -> Past:
    with tail_of(fleet, names=fleet.topic_ids()) as tail:
        done = tail.catch_up(patience)
        rebalances = tail.rebalances()
        if not done and tail.problem:
            raise FleetError(tail.problem)
        note = "" if done else f"its end was not reached within {patience:.0f} s"
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
