"""A storm's course: what the window held at each moment, and what that makes of a storm. Pure.

Problem: the present is asked about one moment, a picture about every moment of a day, and both
have to give the same storms; assessed moment by moment, a day of rebalances costs their square.
Choice: times are sorted once, so that the window behind any moment is two bisections, and the
step from one moment to the next (`Course`) is the same for whoever goes through them.
Cost: a moment for each rebalance that comes and one for each that leaves the window.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from fleet.config.spec import StormSpec as Budget
from fleet.model.rebalances import Rebalance


class Window:
    """Rebalances by time, and what the window behind any moment up to `now` holds of them."""

    def __init__(self, counted: Sequence[Rebalance], budget: Budget, now: float) -> None:
        self._counted = counted
        self.budget = budget
        self._now = now
        # A coordinator's clock may be ahead of ours: what it has written has happened.
        self._times = [min(r.ended_at, now) for r in counted]
        self._leaves = [t + budget.window for t in self._times]
        self._moved = [0, *accumulate(len(r.moved) for r in counted)]

    def moments(self, *, after: float | None) -> list[float]:
        """When something may have changed: a rebalance came, or left the window; and now."""
        # From `known` on the window is wholly seen, though nothing may have happened in it.
        known = self._now - self.budget.window - self.budget.calm
        events = {*self._times, *self._leaves, known, self._now}
        return sorted(t for t in events if t <= self._now and (after is None or t > after))

    def _bounds(self, at: float) -> tuple[int, int]:
        return bisect_right(self._leaves, at), bisect_right(self._times, at)

    def inside(self, at: float) -> Sequence[Rebalance]:
        """In the window behind a moment."""
        first, last = self._bounds(at)
        return self._counted[first:last]

    def moved(self, at: float) -> int:
        """Partitions moved in the window behind a moment."""
        first, last = self._bounds(at)
        return self._moved[last] - self._moved[first]

    def _above(self, at: float, *, share: int) -> bool:
        first, last = self._bounds(at)
        budget = self.budget
        churn = budget.moved is not None and self.moved(at) > budget.moved // share
        return last - first > budget.rebalances // share or churn

    def over(self, at: float) -> bool:
        """Above the budget."""
        return self._above(at, share=1)

    def low(self, at: float) -> bool:
        """At most half of it."""
        return not self._above(at, share=2)


class Course(NamedTuple):
    """Since when there is a storm, and since when it is calming; None = it is not."""

    since: float | None = None
    calm_since: float | None = None

    def ended(self, at: float, budget: Budget) -> bool:
        """Whether it has been calm for so long that it is no storm any more."""
        return self.calm_since is not None and at - self.calm_since >= budget.calm

    def then(self, at: float, window: Window) -> "Course":
        """At the next moment."""
        since, calm_since = (None, None) if self.ended(at, window.budget) else self
        if since is None:
            return Course(at if window.over(at) else None)
        if not window.low(at):
            return Course(since)
        return Course(since, at if calm_since is None else calm_since)
