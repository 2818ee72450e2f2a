"""The batch in hand: under which membership it was dispatched, and what may be committed of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleet.model import TopicPartition
from fleet.worker.plans import Finished
from fleet.worker.reading import Prepared
from fleet.worker.runs import BatchDone


@dataclass(slots=True, kw_only=True)
class InHand:
    """A batch that Spark runs or ran."""

    batch: Prepared
    tokens: Mapping[TopicPartition, int]
    member: str | None
    done: BatchDone | None = None
    since: float = 0.0
    """Monotonic time of the first try to commit."""
    next_try: float = 0.0

    def finished(self) -> tuple[Finished, ...]:
        """What was written of each partition: all of its range, or what lies before its failure."""
        done = self.done
        if done is None or done.void or done.ill:
            return ()
        ends = {
            each.tp: done.reached.get(each.tp, each.start) if each.tp in done.failed else each.end
            for each in self.batch.ranges
        }
        return tuple(
            Finished(tp=each.tp, token=self.tokens[each.tp], end=ends[each.tp])
            for each in self.batch.ranges
            if ends[each.tp] > each.start
        )

    def records(self, committed: Iterable[Finished]) -> int:
        """How many records of it lie before what was committed."""
        ends = {each.tp: each.end for each in committed}
        reached = self.done.reached if self.done is not None else {}
        whole = self.batch.only([tp for tp in ends if tp not in reached]).records
        return whole + sum(
            self.batch.part(each.tp, each.start, ends[each.tp]).records
            for each in self.batch.ranges
            if each.tp in ends and each.tp in reached
        )
