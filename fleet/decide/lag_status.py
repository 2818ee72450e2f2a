"""Defines the lag status of groups and partitions: whether they keep up.

`fleet.manager.lag_assessment` holds the rules and applies them to all partitions in columns.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fleet.model import GroupState, TopicPartition


class LagStatus(StrEnum):
    """Tells whether commits keep up, in the order of `WORST`."""

    OK = "OK"
    WARN = "WARN"
    REWIND = "REWIND"
    LOSS = "LOSS"
    HELD = "HELD"
    """An open transaction blocks the waiting records."""
    STALL = "STALL"
    STOP = "STOP"
    UNSCORED = "UNSCORED"
    """The status cannot be determined."""
    ABANDONED = "ABANDONED"
    """Only for groups: no members, and no commit for a day."""

    @property
    def level(self) -> "Level":
        """Returns the level of the status."""
        return _LEVELS.get(self, Level.OK)


class Level(StrEnum):
    """Grades a lag status."""

    OK = "OK"
    WARN = "WARN"
    ERR = "ERR"


HORIZON: Final = 1200.0
"""Seconds of commits that a lag status reads: more than the longest grace period."""
WORST: Final = (
    LagStatus.STOP,
    LagStatus.STALL,
    LagStatus.LOSS,
    LagStatus.HELD,
    LagStatus.REWIND,
    LagStatus.WARN,
    LagStatus.OK,
)
_LEVELS: Final = {
    LagStatus.STOP: Level.ERR,
    LagStatus.STALL: Level.ERR,
    LagStatus.LOSS: Level.ERR,
    LagStatus.HELD: Level.WARN,
    LagStatus.REWIND: Level.WARN,
    LagStatus.WARN: Level.WARN,
}
MOVING: Final = frozenset(
    {GroupState.PREPARING, GroupState.COMPLETING, GroupState.REBALANCING, GroupState.UNKNOWN}
)
"""States of a group in which its partitions have no bad status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """Sets the limits of normal behaviour, in seconds."""

    least: float = 60.0
    gaps: float = 3.0
    """Usual gaps between commits."""
    most: float = 900.0
    allowed: int = 1
    """Records that may wait for ever, since a transaction marker takes an offset."""
    rewound: float = 600.0
    slower: float = 0.1
    """Growth of the oldest record's age per second from which a group falls behind."""
    abandoned: float = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLagStatus:
    """Holds one partition's lag status with its sentence."""

    tp: TopicPartition
    status: LagStatus
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLagStatus:
    """Holds a group's lag status: that of its worst partition, and the reason."""

    group: str
    status: LagStatus
    sentence: str
    partitions: int = 0
    worse: tuple[PartitionLagStatus, ...] = ()
    """Partitions that are not OK, the worst first."""

    @property
    def level(self) -> Level:
        """Returns the level of the status."""
        return self.status.level
