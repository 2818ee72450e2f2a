"""Rebalances and members of all groups as they were told: kept for a while, and counted once.

Problem: a log that was cut is read a second time, and neither a list nor a counter may show
anything twice, nor lose what only the old log held. Choice: what was told stays, and when a
group's log is cut it is noted up to which record's time it was told of; what is told again until
then is one of those that are kept, by its place in the log, or was forgotten already. Cost: a
rebalance that ended before that moment by the clock of another broker, and is older than `keep`
or all that is kept, is not counted.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from fleet.model.rebalances import Cause, MembershipSpan, Rebalance
from fleet.model.totals import Totals

Told = TypeVar("Told", Rebalance, MembershipSpan)


class KeptRebalances:
    """Kept for `keep` seconds and at most `most` of a group. Not for several threads at once."""

    def __init__(self, *, keep: float, most: int) -> None:
        self._keep, self._most = keep, most
        self._rebalances: dict[str, deque[Rebalance]] = {}
        self._memberships: dict[str, deque[MembershipSpan]] = {}
        self._totals: dict[str, Totals] = {}
        self._until: dict[str, int] = {}
        """Up to which time (ms) groups were told of whose log was cut since."""
        self._cut_at = 0.0
        self.counting_from = 0.0
        """Wall time from which on rebalances count."""

    def add(self, made: Rebalance | MembershipSpan, now: float) -> None:
        """Keep and count one, unless it was told before its log was cut."""
        if isinstance(made, Rebalance):
            if self._keep_one(self._rebalances, made, now) and made.ended_at >= self.counting_from:
                self._totals.setdefault(made.group, Totals()).add(made)
        else:
            self._keep_one(self._memberships, made, now)

    def _keep_one(self, rows: "dict[str, deque[Told]]", made: Told, now: float) -> bool:
        kept = rows.get(made.group, deque())
        if _at(made) <= self._until.get(made.group, 0) / 1000:
            forgotten = now - self._keep
            if len(kept) == self._most:
                forgotten = max(forgotten, _at(kept[0]))
            if _at(made) < forgotten or any(_place(each) == _place(made) for each in kept):
                return False
        rows.setdefault(made.group, deque(maxlen=self._most)).append(made)
        return True

    def cut(self, groups: Mapping[str, int], now: float) -> None:
        """The log of these groups is read anew; by group the time (ms) up to which it was read."""
        self._cut_at = now
        for group, ms in groups.items():
            self._until[group] = max(ms, self._until.get(group, 0))

    def rebalances(
        self, group: str | None, since: float | None, until: float | None, cause: Cause | None
    ) -> list[Rebalance]:
        """Those kept, oldest first; of all groups where None is named."""
        kept = _of(self._rebalances, group)
        return _between((r for r in kept if cause is None or r.cause is cause), since, until)

    def memberships(
        self, group: str, since: float | None, until: float | None
    ) -> list[MembershipSpan]:
        """Those kept, oldest first."""
        return _between(_of(self._memberships, group), since, until)

    def totals(self) -> dict[str, Totals]:
        """What was counted of each group; groups without any are left out."""
        return {group: totals.copy() for group, totals in self._totals.items()}

    def prune(self, now: float, known: Collection[str]) -> None:
        """Forget what is too old, and groups that are not back (`known`) so long after a cut."""
        oldest = now - self._keep
        _drop_before(self._rebalances, oldest)
        _drop_before(self._memberships, oldest)
        if self._cut_at < oldest:
            for group in self._until.keys() - known:
                self.forget(group)

    def forget(self, group: str) -> None:
        """Count it no more."""
        self._totals.pop(group, None)
        self._until.pop(group, None)


def _at(told: Rebalance | MembershipSpan) -> float:
    return told.ended_at if isinstance(told, Rebalance) else told.at


def _place(told: Rebalance | MembershipSpan) -> tuple[object, ...]:
    """What tells it apart, whoever derives it and however often."""
    what = () if isinstance(told, Rebalance) else (told.member, told.event)
    return told.log_partition, told.log_offset, told.number, *what


def _of(kept: "Mapping[str, deque[Told]]", group: str | None) -> list[Told]:
    if group is not None:
        return list(kept.get(group, ()))
    return [each for group_s in kept.values() for each in group_s]


def _between(kept: Iterable[Told], since: float | None, until: float | None) -> list[Told]:
    found = [
        each
        for each in kept
        if (since is None or _at(each) >= since) and (until is None or _at(each) < until)
    ]
    return sorted(found, key=_at)


def _drop_before(kept: "dict[str, deque[Told]]", oldest: float) -> None:
    for group in list(kept):
        while kept[group] and _at(kept[group][0]) < oldest:
            kept[group].popleft()
        if not kept[group]:
            del kept[group]
