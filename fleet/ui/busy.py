"""How busy a group's workers are, and how many are too many. Pure.

Problem: lag says when there are too few workers; nothing says when there are too many, and each
costs a Spark session. Choice: a worker's report has the seconds that it spent inside batches; how
these grew over the last minute is its busy ratio, and the sum over the group is how many workers
would do. A member that owns no partition is too many whatever it does. Cost: a report comes once a
lease, so that nothing is known in the first seconds, and batches longer than the window make the
ratio jump.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any, Final

from fleet.decide.verdicts import GroupVerdict, Level
from fleet.model import GroupSnapshot, GroupState
from fleet.slots import WorkerReport
from fleet.text import duration, plural

WINDOW: Final = 60.0
"""Seconds over which a busy ratio is taken."""
LEAST: Final = 10.0
"""From less, nothing is said."""
FULL: Final = 0.8
"""The busy ratio up to which a worker keeps some room for a peak."""


class BusyTimes:
    """The reports of the last `WINDOW` seconds, of all workers."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int, float]]] = {}

    def look(self, reports: Iterable[WorkerReport], *, at: float) -> None:
        """Take what stands in the store at this moment (monotonic seconds)."""
        living = set()
        for report in reports:
            living.add(report.worker)
            seen = self._seen.setdefault(report.worker, deque())
            if seen and (report.counter, report.busy_seconds) < seen[-1][1:]:
                seen.clear()  # another process under the same name
            if not seen or report.counter > seen[-1][1]:
                seen.append((at, report.counter, report.busy_seconds))
            while len(seen) > 1 and at - seen[1][0] >= WINDOW:
                seen.popleft()
        for worker in self._seen.keys() - living:
            del self._seen[worker]

    def ratio(self, worker: str) -> float | None:
        """The part of its time that a worker spent inside batches; None where not known."""
        seen = self._seen.get(worker)
        if not seen or seen[-1][0] - seen[0][0] < LEAST:
            return None
        spent = (seen[-1][2] - seen[0][2]) / (seen[-1][0] - seen[0][0])
        return min(1.0, max(0.0, spent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a group's workers have to do. None = not known."""

    busy: float | None = None
    """Mean over the workers that hold a slot."""
    slots: Mapping[int, float] = field(default_factory=dict)
    """By slot, those that are known."""
    without_partitions: int | None = None
    """Members that own nothing while the group is settled."""
    too_many: int | None = None
    sentence: str = ""

    def as_json(self) -> dict[str, Any]:
        """For the page."""
        return {**asdict(self), "slots": {str(number): each for number, each in self.slots.items()}}


def load_of(
    seen: GroupSnapshot | None,
    *,
    held: Mapping[int, str],
    times: BusyTimes,
    verdict: GroupVerdict | None,
) -> Load:
    """A group's load; `held` are its slots with their workers, none where it is not ours."""
    ratios = {slot: times.ratio(worker) for slot, worker in held.items()}
    known = {slot: ratio for slot, ratio in ratios.items() if ratio is not None}
    complete = bool(held) and len(known) == len(held)
    idle = _without_partitions(seen)
    told, counts = [], [] if idle is None else [idle]
    if idle:
        told.append(f"{plural(idle, 'member')} without a partition")
    busy = sum(known.values()) / len(known) if complete else None
    if busy is not None:
        needed = max(1, ceil(sum(known.values()) / FULL))
        said = f"busy for {busy * 100:.0f} % of the last {duration(WINDOW)}"
        behind = verdict is not None and verdict.level is not Level.OK
        if needed < len(held) and not behind:
            counts.append(len(held) - needed)
            said += f": {plural(needed, 'worker')} would do"
        told.append(said)
    return Load(
        busy=busy,
        slots=known,
        without_partitions=idle,
        too_many=max(counts, default=0 if busy is not None else None),
        sentence="; ".join(told),
    )


def _without_partitions(seen: GroupSnapshot | None) -> int | None:
    """None while it is unsettled, and where nobody owns anything: then assignments are not told."""
    if seen is None or seen.state is not GroupState.STABLE:
        return None
    idle = sum(not member.partitions for member in seen.members)
    return None if idle == len(seen.members) else idle
