"""Positions that nobody committed yet: they are committed before a record is read from them [42].

Problem: where reading begins without a commit (`latest`, `earliest`, a topic made again, a
partition added, a loss that is skipped) is decided at an assignment, and forgotten with it: the
next owner decides anew, and with `latest` skips whatever came in between. Choice: such a
position waits here, its partition paused, until its commit went through; one that is answered
`retriable` (the group is rebalancing) is tried again for as long as the partition is ours. Cost:
one commit per assignment that has such a partition; none where all of them are committed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fleet.model import TopicPartition
from fleet.worker.offsets.commit_metadata import Begun, Finished, Ownership, commitable


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One partition's beginning.

    committed is None where nothing was ever committed. lost is (first, next after) of offsets
    that are gone and were never read; position is already behind them. gone: there is no such
    topic now, or no leader of it (then `silent` has why), so nothing is read. anew: the topic was
    deleted and made again under its name; former: the deleted one's offset, which is not believed.
    cluster: Kafka's id of it. parts: how many partitions the topic had when the group began it at
    its end. expired: Kafka deleted the group's commit, and the partition ends there now; resumes:
    position is that commit's.
    """

    tp: TopicPartition
    topic_id: str
    position: int
    committed: int | None
    replay_to: int | None
    lost: tuple[int, int] | None = None
    gone: bool = False
    silent: str | None = None
    anew: bool = False
    former: int | None = None
    begun: Begun | None = None
    """How often the planned range was begun without an end."""
    cluster: str | None = None
    parts: int | None = None
    expired: int | None = None
    resumes: bool = False

    @property
    def chosen(self) -> bool:
        """Whether nobody committed this position: it has to be before it is read from [42]."""
        return not self.gone and self.committed != self.position

    def moved(self, position: int, replay_to: int | None = None) -> "Start":
        """As it is once `position` is committed."""
        return replace(
            self,
            position=position,
            committed=position,
            replay_to=replay_to,
            lost=None,
            gone=False,
            silent=None,
            anew=False,
            former=None,
            begun=None,
            expired=None,
        )

    @property
    def known_id(self) -> str | None:
        """The topic's id; None where the name stands in for it."""
        return None if self.topic_id == self.tp.topic else self.topic_id


def absent(tp: TopicPartition, *, silent: str | None = None) -> Start:
    """A partition that was assigned, but is not there by now, or has no leader (`silent`)."""
    return Start(
        tp=tp,
        topic_id=tp.topic,
        position=0,
        committed=None,
        replay_to=None,
        gone=True,
        silent=silent,
    )


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
