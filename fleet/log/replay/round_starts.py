"""When a classic round began, from looks at which groups are unsettled. Pure.

Problem: a classic group's log tells when a round ended, never when it began, and half a minute of
standstill looks like none. Choice: who asks every second which groups are preparing or completing
a rebalance knows two moments of each round: one at which it had not begun, one at which it had, or
its end. Between them it began. Cost: brokers' clocks and this machine's are compared, so they
should agree within 0.2 s; a round that was not looked at before it began has only a latest start.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

_KEPT: Final = 900
"""Looks, and runs of a group, that are kept."""
_CLOCKS: Final = 0.2
CLOSE_S: Final = 1.0
"""A start is known that is right within a second ..."""
_PART: Final = 0.25
"""... or within a quarter of the duration."""


class StartBounds(NamedTuple):
    """When a round began, seconds by the wall clock; `earliest` None: nobody looked before."""

    earliest: float | None
    latest: float

    def within(self, latest: float) -> "StartBounds":
        """The same where something else shows that it began no later."""
        latest = min(self.latest, latest)
        return StartBounds(None if self.earliest is None else min(self.earliest, latest), latest)

    def excludes(self, moment: float) -> bool:
        """Whether the group was seen settled after that moment."""
        return self.earliest is not None and moment < self.earliest - _CLOCKS

    def known(self, ended: float) -> float | None:
        """The start, where the bounds are close enough to say one."""
        if self.earliest is None:
            return None
        off = (self.latest - self.earliest) / 2
        return self.earliest + off if off <= max(CLOSE_S, _PART * (ended - self.latest)) else None


@dataclass(slots=True)
class _Run:
    """Looks in a row that found a group unsettled; each look is a question and its answer."""

    before: float | None
    asked: float
    answered: float
    last: float


class RoundStarts:
    """Looks in, bounds out. Not for several threads."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        """Of all brokers: when asked, when answered."""
        self._open: dict[str, _Run] = {}
        self._runs: dict[str, deque[_Run]] = {}
        self._listed: frozenset[str] = frozenset()

    def listed(self, groups: Collection[str]) -> None:
        """Groups that a look may find at all: of others (no Describe) nothing can be told."""
        self._listed = frozenset(groups)
        oldest = self._looks[0][0] if self._looks else 0.0
        for group in [g for g, runs in self._runs.items() if runs[-1].last < oldest]:
            del self._runs[group]

    def look(
        self, unsettled: Collection[str], *, asked: float, answered: float, whole: bool
    ) -> None:
        """One look; `whole`: every broker answered, so that all other groups were settled."""
        before = self._looks[-1][0] if self._looks else None
        for group in unsettled:
            run = self._open.get(group)
            if run is None:
                run = self._open[group] = _Run(before, asked, answered, asked)
                self._runs.setdefault(group, deque(maxlen=_KEPT)).append(run)
            run.last = asked
        if whole:
            self._looks.append((asked, answered))
            for group in self._open.keys() - set(unsettled):
                del self._open[group]

    def of(self, group: str, *, after: float | None, ended: float) -> StartBounds | None:
        """For a round that ended then, the group's last record before it being of `after`."""
        least = float("-inf") if after is None else after
        for run in reversed(self._runs.get(group, ())):
            if run.asked > ended:
                continue
            if run.last < least + _CLOCKS:
                break
            if run.asked >= least:
                return StartBounds(_later(run.before, after), min(run.answered, ended))
            # It went from one round into the next: the first look after the record between them.
            first = bisect_left(self._looks, least + _CLOCKS, key=lambda look: look[0])
            seen = self._looks[first][1] if first < len(self._looks) else ended
            return StartBounds(after, min(seen, ended))
        if group not in self._listed and group not in self._runs:
            return None
        # No look fell into it: it began after the last one before its end that found no round.
        last = bisect_right(self._looks, ended, key=lambda look: look[1]) - 1
        for run in reversed(self._runs.get(group, ())):
            if last >= 0 and run.asked <= self._looks[last][0] <= run.last:
                last = bisect_left(self._looks, run.asked, key=lambda look: look[0]) - 1
        settled = self._looks[last][0] if last >= 0 else None
        earliest = _later(settled, after)
        return None if earliest is None else StartBounds(earliest, ended)


def _later(one: float | None, other: float | None) -> float | None:
    return max((each for each in (one, other) if each is not None), default=None)
