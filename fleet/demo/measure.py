"""What each step of a story cost, from the coordinator's records.

Problem: a figure that a step's actor reports of itself proves little, and a rebalance between
two steps belongs to somebody. Choice: a step's stretch of the offsets log begins where the step
begins and ends where the next one of its group begins, so nothing falls between. Cost: what a
step sets off late is charged to it, never hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleet.clock import Clock
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
