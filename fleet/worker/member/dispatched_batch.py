"""The batch in hand: what Spark runs or ran, and under which membership it was dispatched."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet.model import TopicPartition
from fleet.worker.batch.batch_reader import Prepared
from fleet.worker.batch.batch_run import BatchDone
from fleet.worker.offsets.commit_metadata import Finished


@dataclass(slots=True, kw_only=True)
class DispatchedBatch:
    """From its dispatch until its commit."""

    batch: Prepared
    tokens: Mapping[TopicPartition, int]
    member: str | None
    done: BatchDone | None = None
    since: float = 0.0
    """Monotonic time of the first try to commit."""
    next_try: float = 0.0
    cut: bool = False
    """Whether it was interrupted for having outlasted a drain or a revocation."""

    def finished(self) -> tuple[Finished, ...]:
        """What of it is written: all of a partition, or what lies before what stops it."""
        done = self.done
        if done is None or done.void or done.ill:
            return ()
        ends = {each.tp: each.end for each in self.batch.ranges} | done.stops
        return tuple(
            Finished(tp=each.tp, token=self.tokens[each.tp], end=ends[each.tp])
            for each in self.batch.ranges
            if ends[each.tp] > each.start
        )

    def records(self, finished: Iterable[Finished]) -> int:
        """How many records that is."""
        ranges = {each.tp: each for each in self.batch.ranges}
        whole, parts = [], 0
        for each in finished:
            its = ranges[each.tp]
            if each.end == its.end:
                whole.append(each.tp)
            else:
                parts += self.batch.part(each.tp, its.start, each.end).records
        return self.batch.only(whole).records + parts
