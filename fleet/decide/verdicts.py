"""Does a group keep up? A verdict for each partition and for the group, from a few facts. Pure.

Problem: lag alone pages people at night: a busy group always has some, an idle one none.
LinkedIn's Burrow answers by rules over the last ten commits, and its known false alarms come
from that window: it knows commits, not how long records have waited. Choice: Burrow's words,
but every alarm needs a record that has waited for longer than the group's patience, which is a
minute, or three of its usual gaps between commits, at most a quarter of an hour. First match:

1. UNSCORED  never committed, topic deleted, committed beyond the end, unknown: no figure
2. LOSS      committed below the log start: retention took records unread
3. OK        at most `allowed` records wait
4. REWIND    it went back, within `rewound` seconds, and is not where it was
5. OK        the group rebalances, or nothing has waited for longer than its patience
6. STOP      no commit for that long, counted from the last rebalance at the earliest
7. STALL     it commits, and stands still
8. WARN      it moves, and what waits grows older by a tenth of the time or more
9. OK

A group is as its worst partition; Empty for `abandoned` seconds it is ABANDONED, which is no
error. STOP, STALL and LOSS are level ERR, REWIND and WARN level WARN.

False alarms that this ends, each a case in the tests: a commit after a pause (the pause counts,
not the wait); a consumer that commits every ten minutes; a quiet topic's transaction marker; a
rebalance; topics deleted; groups deleted (their tombstones); an exporter that has just begun;
a busy topic whose lag never shrinks between commits; offsets committed beyond the end. Cost: a
group that hangs is told after its patience, so after 60 s at the earliest.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from fleet.model import GroupState, LagCase, TopicPartition


class LagVerdict(StrEnum):
    """A verdict; the order is that of `WORST`."""

    OK = "OK"
    WARN = "WARN"
    REWIND = "REWIND"
    LOSS = "LOSS"
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
"""Seconds of commits that a verdict looks back on: more than the longest patience."""
WORST: Final = (
    LagVerdict.STOP,
    LagVerdict.STALL,
    LagVerdict.LOSS,
    LagVerdict.REWIND,
    LagVerdict.WARN,
    LagVerdict.OK,
)
_LEVELS: Final = {
    LagVerdict.STOP: Level.ERR,
    LagVerdict.STALL: Level.ERR,
    LagVerdict.LOSS: Level.ERR,
    LagVerdict.REWIND: Level.WARN,
    LagVerdict.WARN: Level.WARN,
}
MOVING: Final = frozenset(
    {GroupState.PREPARING, GroupState.COMPLETING, GroupState.REBALANCING, GroupState.UNKNOWN}
)
"""States of a group in which nothing is said against its partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
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

    def of(self, gap: float | None) -> float:
        """The patience with a partition whose usual gap between commits is `gap`."""
        return min(max(self.least, self.gaps * (gap or 0.0)), self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """One partition of one group. Seconds; None = not known."""

    tp: TopicPartition
    case: LagCase
    lag: int | None
    waited: float | None
    """Age of the oldest record that waits, or what it is at least."""
    since_commit: float | None
    since_moved: float | None
    """Since the last commit that went forward."""
    gap: float | None = None
    """Usual time between commits that go forward."""
    fell_by: int = 0
    """Records between its place and where it was before it went back."""
    since_fell: float | None = None
    gained: float | None = None
    """By how much `waited` grew over the last `over` seconds."""
    over: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The group that a partition belongs to."""

    state: GroupState
    since_settled: float | None = None
    """Since its last rebalance ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """One partition's, with its sentence."""

    tp: TopicPartition
    verdict: LagVerdict
    sentence: str
    since_commit: float | None = None


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

    def as_json(self) -> dict[str, Any]:
        """The `verdict` of a group in JSON answers (docs/json.md)."""
        return {
            "verdict": str(self.verdict),
            "level": str(self.level),
            "sentence": self.sentence,
            "partitions": [
                {
                    "topic": each.tp.topic,
                    "partition": each.tp.partition,
                    "verdict": str(each.verdict),
                    "sentence": each.sentence,
                }
                for each in self.worse
            ],
        }


def partition_verdict(
    seen: PartitionProgress, around: Around, patience: Patience | None = None
) -> PartitionVerdict:
    """The verdict on one partition, by the first rule that fits."""
    patience = patience or Patience()
    verdict, sentence = _judged(seen, around, patience)
    return PartitionVerdict(
        tp=seen.tp, verdict=verdict, sentence=sentence, since_commit=seen.since_commit
    )


def _judged(seen: PartitionProgress, around: Around, patience: Patience) -> tuple[LagVerdict, str]:
    if seen.case is LagCase.BELOW_START:
        return LagVerdict.LOSS, "committed below the log start: records went before they were read"
    if seen.case is not LagCase.OK or seen.lag is None:
        return LagVerdict.UNSCORED, str(seen.case)
    if seen.lag <= patience.allowed:
        return LagVerdict.OK, "nothing waits"
    if seen.fell_by > 0 and (seen.since_fell or 0.0) < patience.rewound:
        ago = seen.since_fell or 0.0
        return LagVerdict.REWIND, f"went back {ago:.0f} s ago, by {seen.fell_by:,} records"
    enough = patience.of(seen.gap)
    waits = f"{seen.lag:,} records wait, the oldest for {seen.waited or 0.0:.0f} s"
    if around.state in MOVING or seen.waited is None or seen.waited < enough:
        return LagVerdict.OK, waits
    calm = float("inf") if around.since_settled is None else around.since_settled
    silent = min(seen.since_commit if seen.since_commit is not None else 0.0, calm)
    if silent >= enough:
        nobody = " and the group has no members" if around.state is GroupState.EMPTY else ""
        return LagVerdict.STOP, f"no commit for {silent:.0f} s{nobody}: {waits}"
    still = min(seen.since_moved if seen.since_moved is not None else 0.0, calm)
    if still >= enough:
        return LagVerdict.STALL, f"commits the same offset for {still:.0f} s: {waits}"
    if seen.gained is not None and seen.over > 0:
        least = max(patience.slower * seen.over, seen.gap or 0.0)
        if seen.gained > least:
            return (
                LagVerdict.WARN,
                f"falls behind, by {seen.gained:.0f} s in {seen.over:.0f} s: {waits}",
            )
    return LagVerdict.OK, waits


def group_verdict(
    group: str,
    partitions: Iterable[PartitionProgress],
    around: Around,
    *,
    others: int = 0,
    patience: Patience | None = None,
) -> GroupVerdict:
    """The verdict on a group; `others` are partitions known to be OK, left out of `partitions`."""
    patience = patience or Patience()
    seen = list(partitions)
    found = [partition_verdict(each, around, patience) for each in seen]
    total = len(found) + others
    scored = [each for each in found if each.verdict is not LagVerdict.UNSCORED]
    worse = sorted(
        (each for each in scored if each.verdict is not LagVerdict.OK),
        key=lambda each: (WORST.index(each.verdict), each.tp),
    )
    if not scored and not others:
        why = ", ".join(sorted({each.sentence for each in found})) or "nothing committed"
        return GroupVerdict(
            group=group, verdict=LagVerdict.UNSCORED, sentence=why, partitions=total
        )
    if not worse:
        return GroupVerdict(
            group=group,
            verdict=LagVerdict.OK,
            sentence=_calm(seen, around, patience),
            partitions=total,
        )
    if around.state is GroupState.EMPTY and _deserted(worse, patience):
        return GroupVerdict(
            group=group,
            verdict=LagVerdict.ABANDONED,
            sentence="no members, and no commit for a day: delete the group if nobody needs it",
            partitions=total,
            worse=tuple(worse),
        )
    first = worse[0]
    alike = sum(each.verdict is first.verdict for each in worse)
    sentence = f"{alike} of {total} partitions: {first.sentence} ({first.tp})"
    return GroupVerdict(
        group=group,
        verdict=first.verdict,
        sentence=sentence,
        partitions=total,
        worse=tuple(worse),
    )


def _calm(seen: Iterable[PartitionProgress], around: Around, patience: Patience) -> str:
    """Of a group without a complaint: "keeps up" is not said where nobody is there to."""
    waiting = sum(each.lag for each in seen if each.lag is not None and each.lag > patience.allowed)
    if around.state is GroupState.EMPTY and waiting:
        return f"no members: {waiting:,} records wait"
    return "keeps up"


def _deserted(worse: Iterable[PartitionVerdict], patience: Patience) -> bool:
    return all(
        each.since_commit is not None and each.since_commit >= patience.abandoned for each in worse
    )
