"""What each step of the demo did, from the coordinator's records and the rows it got.

Problem: a figure that a step's actor reports of itself proves little, and a rebalance between
two steps belongs to somebody. Choice: a step's stretch of the offsets log begins where the step
begins and ends where the next one of its group begins, so nothing falls between; the same goes
for lost and repeated records. Cost: what a step sets off late is charged to it, never hidden.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleet.clock import Clock
from fleet.demo.coverage import Due, coverage, records_between
from fleet.demo.demo_report import StepResult
from fleet.demo.held import Held
from fleet.demo.journal import JournalEntry
from fleet.log.records import Record
from fleet.log.replay.counting import count
from fleet.model.counted import Counted


class MeasuredLog(Protocol):
    """The part of fleet.log.readers.group_log.GroupLog that is used."""

    def position(self, group: str) -> int:
        """Where the group's records end now."""
        ...

    def read(self, group: str, since: int) -> tuple[Record, ...]:
        """The records from there on."""
        ...

    def last_state(self, group: str, before: int) -> tuple[Record, ...]:
        """The records that say what was so before."""
        ...


@dataclass(slots=True, kw_only=True)
class Stretch:
    """One step while it is measured. Times are wall-clock seconds."""

    name: str
    group: str
    started_at: float
    position: int
    before: tuple[Record, ...]
    expected: int = 0
    ended_at: float | None = None
    counted: Counted | None = None


@dataclass(kw_only=True)
class Meter:
    """Opens and closes the stretches of all steps."""

    log: MeasuredLog
    clock: Clock
    stretches: list[Stretch] = field(default_factory=list)

    def open_stretch(self, name: str, group: str) -> Stretch:
        """Begin a step where the group's last one, if any, is read to its end."""
        for earlier in self.stretches:
            if earlier.group == group and earlier.counted is None:
                self.close(earlier)
        position = self.log.position(group)
        opened = Stretch(
            name=name,
            group=group,
            started_at=self.clock.now(),
            position=position,
            before=self.log.last_state(group, position),
        )
        self.stretches.append(opened)
        return opened

    def end(self, stretch: Stretch, *, expected: int) -> None:
        """The change is over; what is recorded until the next step still counts for this one."""
        stretch.ended_at = self.clock.now()
        stretch.expected = expected

    def so_far(self, stretch: Stretch) -> Counted:
        """What was recorded from the beginning of the step to now."""
        return count(self.log.read(stretch.group, stretch.position), before=stretch.before)

    def close(self, stretch: Stretch) -> None:
        """Read the stretch for the last time."""
        stretch.counted = self.so_far(stretch)

    def close_all(self) -> None:
        """Read every stretch that is still open."""
        for stretch in self.stretches:
            if stretch.counted is None:
                self.close(stretch)


def generations(stretches: Sequence[Stretch]) -> str:
    """Where each step's generations begin and end, for whoever counts again in the log."""
    told = [
        f"{s.name} {s.counted.from_generation or 0} to {s.counted.to_generation}"
        for s in stretches
        if s.counted is not None
    ]
    return ", ".join(told)


def results(
    stretches: Sequence[Stretch],
    entries: Iterable[JournalEntry],
    due: Mapping[str, Due],
    held: Held,
) -> tuple[StepResult, ...]:
    """One result per closed stretch. `due` names, per group, the offsets that had to be processed;
    `held` is what the topic held when all was over.

    What was lost or repeated before a group's first step is charged to that step.
    """
    journal = tuple(entries)
    made: list[StepResult] = []
    covered = {
        group: coverage(journal, group=group, due=partitions, held=held)
        for group, partitions in due.items()
    }
    for stretch in stretches:
        if stretch.counted is None or stretch.ended_at is None:
            continue
        same = [s.started_at for s in stretches if s.group == stretch.group]
        first = stretch.started_at == min(same)
        start = float("-inf") if first else stretch.started_at
        end = min((at for at in same if at > stretch.started_at), default=float("inf"))
        found = covered[stretch.group]
        made.append(
            StepResult(
                name=stretch.name,
                group=stretch.group,
                expected_rebalances=stretch.expected,
                recorded_rebalances=stretch.counted.rebalances,
                moved_partitions=stretch.counted.moved,
                longest_pause_s=stretch.counted.longest_pause_s,
                records=records_between(
                    journal, group=stretch.group, start=stretch.started_at, end=stretch.ended_at
                ),
                lost=found.lost_between(start, end),
                twice=found.twice_between(start, end),
                seconds=stretch.ended_at - stretch.started_at,
            )
        )
    return tuple(made)
