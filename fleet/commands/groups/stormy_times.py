"""Storms as a person sees them: who is in one now, and when a group was in one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from fleet.config.spec import FleetSpec
from fleet.config.spec import StormSpec as Budget
from fleet.decide.storms.assessment import Excused, Storm, charged, reach, whole_from
from fleet.decide.storms.storm_watch import StormWatch, budget_of, excuses_of
from fleet.decide.storms.storm_window import Course, Window
from fleet.model.rebalances import Rebalance
from fleet.report.timeline import Span
from fleet.slots import Change

_FAIR: Final = Course()
_FURTHER: Final = (1, 8, 64)
"""How far back is read, in reaches of a budget, before all is."""


class StormLooks:
    """Looks after looks, so that a storm ends as calmly as it does elsewhere."""

    def __init__(self, spec: FleetSpec) -> None:
        self._spec = spec
        self._state = StormWatch()

    def look(
        self,
        rebalances: Iterable[Rebalance],
        *,
        now: float,
        changes: Mapping[str, Sequence[Change]],
    ) -> Mapping[str, Storm]:
        """Groups in a storm; our `changes` are not held against."""
        self._state = self._state.look(self._spec, rebalances, now=now, changes=changes)
        return self._state.storms


class StormRows(NamedTuple):
    """Storms of one group from some time on, and the rebalances that tell them."""

    rebalances: list[Rebalance]
    storms: tuple[Span, ...]


def storm_spans(
    spec: FleetSpec,
    rebalances: Sequence[Rebalance],
    *,
    until: float,
    changes: Sequence[Change] = (),
) -> tuple[Span, ...]:
    """The storms of one group by its budget, oldest first, up to `until`."""
    if not rebalances:
        return ()
    group = rebalances[0].group
    excuses = excuses_of(spec, group, changes)
    return _spans(rebalances, budget_of(spec, group), excuses, until=until)


def storms_since(
    spec: FleetSpec,
    read: Callable[[float | None], list[Rebalance]],
    *,
    group: str,
    since: float,
    until: float,
    changes: Sequence[Change] = (),
) -> StormRows:
    """The same from `since` on, from as little of the past as tells them.

    `read` gives the group's rebalances from a time on, or all.
    """
    budget, excuses = budget_of(spec, group), excuses_of(spec, group, changes)
    for further in _FURTHER:
        first = whole_from(excuses, since - reach(budget) * further)
        rows = read(first)
        # What there was before lies between fair weather and a storm that has not begun to calm:
        # where both tell the same, it tells that too.
        fair, storm = (
            _spans(rows, budget, excuses, until=until, course=course, after=first + budget.window)
            for course in (Course(), Course(first))
        )
        if (told := _since(fair, since)) == _since(storm, since):
            return StormRows(rows, told)
    rows = read(None)
    return StormRows(rows, _since(_spans(rows, budget, excuses, until=until), since))


def _spans(
    rebalances: Iterable[Rebalance],
    budget: Budget,
    excuses: Sequence[Excused],
    *,
    until: float,
    course: Course = _FAIR,
    after: float = -inf,
) -> tuple[Span, ...]:
    """What looks after looks would tell, in one go; from `after` on, where it stood at `course`."""
    seen = [r for r in rebalances if r.ended_at <= until]
    window = Window(charged(seen, excuses), budget, until)
    # A storm begins with a rebalance and ends by time alone: look at both.
    ends = {r.ended_at for r in seen}
    quiet = {at + budget.window + budget.calm + 0.001 for at in ends}
    looks = {at for at in ends | quiet if at <= until} | {until}
    spans: list[Span] = []
    before, last = _FAIR, until
    for at in sorted({*window.moments(after=None), *looks, after}):
        if at < after:
            continue
        course = course.then(at, window)
        if at not in looks:
            continue
        storm = _FAIR if course.ended(at, budget) else course
        if before.since is not None and before.since != storm.since:
            spans.append(Span(before.since, before.calm_since or last))
        before, last = storm, at
    if before.since is not None:
        spans.append(Span(before.since, before.calm_since or until))
    return tuple(spans)


def _since(spans: Iterable[Span], at: float) -> tuple[Span, ...]:
    return tuple(Span(max(each.start, at), each.end) for each in spans if each.end >= at)
