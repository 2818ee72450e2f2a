"""One topic under steady input, what was done with its records, and what was committed of it.

Offsets come in at a steady rate; nothing of a record is kept but who processed it. Each batch
that the entrypoint is given is written down before it begins, as a journal would have it.
"""

from collections import deque
from dataclasses import dataclass, field

from fleet.model import TopicPartition
from tests.schedules.simulated_time import Process


@dataclass(slots=True, eq=False)
class Work:
    """One partition's part of a batch."""

    partition: int
    start: int
    end: int
    process: Process
    done: bool = False
    committed: bool = False
    void: str | None = None
    """Why it is not to be committed."""


@dataclass(slots=True)
class SimulatedTopic:
    """`rate` records a second come into each partition."""

    partitions: int
    rate: float
    before: int
    """Records that were there at the beginning."""
    stopped_at: float | None = None
    committed: dict[int, int] = field(default_factory=dict)
    latest: dict[int, deque[Work]] = field(default_factory=dict)
    """The latest batches of each partition, the last one first."""
    twice: int = 0
    """Records that were given to the entrypoint again."""

    def end(self, partition: int, now: float) -> int:
        """The next offset to be written."""
        at = now if self.stopped_at is None else min(now, self.stopped_at)
        return self.before + int(self.rate * at + 0.37 * partition)

    def begun(self, work: Work) -> None:
        """Write a batch's part down."""
        self.latest.setdefault(work.partition, deque(maxlen=6)).appendleft(work)

    def is_done(self, partition: int, start: int, end: int) -> bool:
        """Whether one of the latest batches has processed all of this."""
        latest = self.latest.get(partition, ())
        return any(w.done and w.start <= start and w.end >= end for w in latest)

    def last(self, partition: int) -> Work | None:
        """Its latest batch."""
        found = self.latest.get(partition)
        return found[0] if found else None


def tp_of(partition: int) -> TopicPartition:
    """As our code names it."""
    return _NAMES.setdefault(partition, TopicPartition("orders", partition))


_NAMES: dict[int, TopicPartition] = {}
