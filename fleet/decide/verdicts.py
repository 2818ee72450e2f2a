"""The words of a verdict on lag: whether a group keeps up, how bad that is, and what is ordinary.

The rules stand in `fleet.manager.keeping_up`, which judges all partitions of all groups in columns.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fleet.model import GroupState, TopicPartition


class LagVerdict(StrEnum):
    """A verdict; the order is that of `WORST`."""

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
"""Seconds of commits that a verdict looks back on: more than the longest grace period."""
WORST: Final = (
    LagVerdict.STOP,
    LagVerdict.STALL,
    LagVerdict.LOSS,
    LagVerdict.HELD,
    LagVerdict.REWIND,
    LagVerdict.WARN,
    LagVerdict.OK,
)
_LEVELS: Final = {
    LagVerdict.STOP: Level.ERR,
    LagVerdict.STALL: Level.ERR,
    LagVerdict.LOSS: Level.ERR,
    LagVerdict.HELD: Level.WARN,
    LagVerdict.REWIND: Level.WARN,
    LagVerdict.WARN: Level.WARN,
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
    """Records that may wait for ever: a marker takes an offset (docs/design/protocol.md 3.1)."""
    rewound: float = 600.0
    slower: float = 0.1
    """Seconds by which the oldest record grows older in each second."""
    abandoned: float = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """One partition's, with its sentence."""

    tp: TopicPartition
    verdict: LagVerdict
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupVerdict:
    """A group's: its worst partition's, how many are no better than WARN, and why."""

    group: str
    verdict: LagVerdict
    sentence: str
    partitions: int = 0
    worse: tuple[PartitionVerdict, ...] = ()
    """Those that are not OK, the worst first."""

    @property
    def level(self) -> Level:
        """How bad it is."""
        return self.verdict.level
