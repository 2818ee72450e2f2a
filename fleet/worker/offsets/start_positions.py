"""Positions that nobody committed yet: they are committed before a record is read from them [42].

Problem: where reading begins without a commit (`latest`, `earliest`, a topic made again, a
partition added, a loss that is skipped) is decided at an assignment, and forgotten with it: the
next owner decides anew, and with `latest` skips whatever came in between. Choice: such a
position waits here, its partition paused, until its commit went through; one that is answered
`retriable` (the group is rebalancing) is tried again for as long as the partition is ours. Cost:
one commit per assignment that has such a partition; none where all of them are committed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fleet.model import TopicPartition
from fleet.worker.offsets.assigning import Start
from fleet.worker.offsets.commit_metadata import Finished, Ownership, commitable


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    position: Finished
    member: str | None
    reads: bool
    lost: bool


class StartPositions:
    """At most one position per partition; pure."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, _Waiting] = {}
        self.next_try = 0.0
        """Monotonic time before which no commit is tried."""

    def add(self, start: Start, *, token: int, member: str | None, reads: bool) -> None:
        """A position to be committed under this token and member; reads: and then to be read."""
        self._waiting[start.tp] = _Waiting(
            position=Finished(tp=start.tp, token=token, end=start.position),
            member=member,
            reads=reads,
            lost=start.lost is not None,
        )

    def drop(self, tps: Iterable[TopicPartition]) -> None:
        """Not ours any more, begun otherwise, or gone."""
        for tp in tps:
            self._waiting.pop(tp, None)

    def waiting(self, stopped: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Partitions whose commit is due.

        One that is `stopped` with a loss keeps its old commit, which names the loss to the next
        owner too, until somebody lifts the quarantine [7].
        """
        held = frozenset(stopped)
        return frozenset(tp for tp, w in self._waiting.items() if not (w.lost and tp in held))

    def due(
        self, tps: Iterable[TopicPartition], owned: Ownership, member_now: str | None
    ) -> tuple[Finished, ...]:
        """Which of the waiting may be committed [2]."""
        found = (self._waiting[tp] for tp in sorted(tps))
        return tuple(
            each
            for w in found
            for each in commitable([w.position], owned, member_then=w.member, member_now=member_now)
        )

    def committed(self, tp: TopicPartition) -> bool:
        """It waits no more; whether it is to be read now."""
        waiting = self._waiting.pop(tp, None)
        return waiting is not None and waiting.reads
