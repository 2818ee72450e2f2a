"""The lag status of groups and partitions: whether they keep up, and how bad that is.

The rules stand in `fleet.manager.keeping_up`, which judges all partitions of all groups in columns.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fleet.model import GroupState, TopicPartition


class LagStatus(StrEnum):
    """Whether commits keep up; the order is that of `WORST`."""

    OK = "OK"
    WARN = "WARN"
    REWIND = "REWIND"
    LOSS = "LOSS"
    HELD = "HELD"
    """An open transaction holds back what waits."""
    STALL = "STALL"
    STOP = "STOP"
    UNSCORED = "UNSCORED"
    """Nothing can be said of it."""
    ABANDONED = "ABANDONED"
    """Of groups only: nobody is in it, and nobody has committed for a day."""

    @property
    def level(self) -> "Level":
        """How bad it is."""
        return _LEVELS.get(self, Level.OK)


class Level(StrEnum):
    """How bad that is."""

    OK = "OK"
    WARN = "WARN"
    ERR = "ERR"


HORIZON: Final = 1200.0
"""Seconds of commits that a lag status looks back on: more than the longest grace period."""
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
"""States of a group in which nothing is said against its partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """What is still ordinary; seconds."""

    least: float = 60.0
    gaps: float = 3.0
    """Usual gaps between commits."""
    most: float = 900.0
    allowed: int = 1
    """Records that may wait for ever: docs/contributing/protocol.md 3.1."""
    rewound: float = 600.0
    slower: float = 0.1
    """Seconds by which the oldest record grows older in each second."""
    abandoned: float = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLagStatus:
    """One partition's, with its sentence."""

    tp: TopicPartition
    status: LagStatus
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLagStatus:
    """A group's: its worst partition's, how many are no better than WARN, and why."""

    group: str
    status: LagStatus
    sentence: str
    partitions: int = 0
    worse: tuple[PartitionLagStatus, ...] = ()
    """Those that are not OK, the worst first."""

    @property
    def level(self) -> Level:
        """How bad it is."""
        return self.status.level
