"""Which of a failed batch's partitions, and of those which records, the entrypoint cannot process.

Problem: one record may stop a batch, a partition and its group; a sink that is down fails every
record just as well and must neither be called poison nor empty a topic into another [9]. Choice:
each partition runs alone; where dead letters are wanted, a failing partition is halved until
single records fail, and only what fails alone, while something else of the same batch went well,
is poison (a batch of one record has no such witness and is taken at its word). Cost: at
most 2 log2(offsets) calls per poisoned record, each with a range id of its own, so that a sink that
writes before it fails sees those records again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from fleet.model import TopicPartition
from fleet.worker.reading import Prepared

WITHOUT_WITNESS: Final = 3
"""Records that may fail alone before any part of the batch went well: no poison beyond that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One record that cannot be processed; `part` is the batch of just this record."""

    tp: TopicPartition
    offset: int
    part: Prepared
    error: str
    attempts: int
    """Calls of the entrypoint for its batch until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprits:
    """Partitions to stop, records to put aside, or why the worker has to end."""

    failed: Mapping[TopicPartition, str] = field(default_factory=dict)
    letters: tuple[Letter, ...] = ()
    fatal: str | None = None


class Narrowing(Protocol):
    """How far a batch may be narrowed."""

    def room(self, tp: TopicPartition, start: int) -> int:
        """How many records of the partition may still be put aside, from offset `start` on."""
        ...

    def refusal(self, tp: TopicPartition) -> str:
        """The sentence where there is no room."""
        ...


class Failing:
    """One failed batch under examination; `attempt` runs a part once: its error or None."""

    def __init__(
        self,
        batch: Prepared,
        error: str,
        *,
        attempt: Callable[[Prepared], str | None],
        attempts: Callable[[], int],
        narrowing: Narrowing | None,
        in_time: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._batch = batch
        self._error = error
        self._attempt = attempt
        self._attempts = attempts
        self._narrowing = narrowing
        self._in_time = in_time
        self._say = say
        self._witness = False
        """Whether anything of the batch went well."""

    def culprits(self) -> Culprits:
        """Run partitions alone, then narrow those that fail. What `attempt` raises passes."""
        failed = self._alone()
        letters: list[Letter] = []
        if self._narrowing is not None:
            for tp in sorted(failed):
                found, why = self._narrowed(tp, failed[tp], self._narrowing)
                if why is None:
                    letters += found
                    del failed[tp]
                else:
                    failed[tp] = why
                if not self._witness and self._batch.records > 1:
                    break  # it is not this partition's records, so not the next one's either
        if letters and not self._witness and self._batch.records > 1:
            failed.update({each.tp: each.error for each in letters})
            letters = []
        if len(failed) == len(self._batch.ranges) > 1 and not self._witness:
            # Not poison: what fails for every partition is the sink or the code.
            fatal = f"the entrypoint fails for every partition of its batch: {self._error}"
            return Culprits(fatal=fatal)
        return Culprits(failed=failed, letters=tuple(letters))

    def _alone(self) -> dict[TopicPartition, str]:
        if len(self._batch.ranges) == 1:
            return {self._batch.ranges[0].tp: self._error}
        self._say(f"the batch failed ({self._error}); running its partitions one by one")
        failed = {}
        for each in self._batch.ranges:
            error = self._run(self._batch.only([each.tp]))
            if error is not None:
                failed[each.tp] = error
        return failed

    def _run(self, part: Prepared) -> str | None:
        error = self._attempt(part)
        self._witness = self._witness or error is None
        return error

    def _narrowed(
        self, tp: TopicPartition, error: str, narrowing: Narrowing
    ) -> tuple[list[Letter], str | None]:
        """The records that fail alone; or why the whole partition has to stop."""
        (whole,) = (each for each in self._batch.ranges if each.tp == tp)
        room = narrowing.room(tp, whole.start)
        found: list[Letter] = []
        waiting = [(whole.start, whole.end, error, True)]
        self._say(f"narrowing {tp} at {whole.start} to {whole.end - 1} to the records that fail")
        while waiting:
            start, end, told, known = waiting.pop()
            part = self._batch.part(tp, start, end)
            if part.records == 0:
                continue
            if not known:
                outcome = self._run(part)
                if outcome is None:
                    continue
                told = outcome
            if end - start > 1:
                waiting += self._halves(tp, start, end, told)
                continue
            found.append(
                Letter(tp=tp, offset=start, part=part, error=told, attempts=self._attempts())
            )
            if len(found) > room:
                return [], f"{narrowing.refusal(tp)}: {told}"
            if len(found) >= WITHOUT_WITNESS and not self._witness:
                return [], error
            if not self._in_time():
                return [], f"it could not be narrowed within one batch_timeout: {told}"
        return found, None

    def _halves(
        self, tp: TopicPartition, start: int, end: int, told: str
    ) -> list[tuple[int, int, str, bool]]:
        """What to look at next, last first: one good half leaves the other one guilty."""
        middle = (start + end) // 2
        left = self._batch.part(tp, start, middle)
        outcome = None if left.records == 0 else self._run(left)
        if outcome is not None:
            return [(middle, end, told, False), (start, middle, outcome, True)]
        # A single record is only called poison after it has run alone.
        return [(middle, end, told, end - middle > 1)]
