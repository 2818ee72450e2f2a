"""Ranges that were begun again and again without an end: records that kill their process.

Problem: a record that brings its process down (out of memory, a crash in native code) leaves no
error behind; its successor repeats the range and goes down too, and so on, with no name told.
Choice: the commit that plans a range also counts how often it was begun (`tries`), so whoever is
assigned the partition next knows, in every store and protocol. A range that was begun `TOGETHER`
times is run alone in at most `PIECES` parts, a commit after each; a part that is begun and does
not end is cut again; a single offset that was begun alone `ALONE` times is condemned, unread. A
living worker takes the count back: where a batch fails, hangs or is drained nobody was killed. So
whoever is killed from outside repeats a little more slowly, and loses nothing. Cost: 3 + 2 ends
for one record among at most 32, one more for each further factor of 32.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from fleet.model import TopicPartition
from fleet.model.batch_context import BatchRange
from fleet.worker.batch.batch_reader import Prepared
from fleet.worker.offsets.commit_metadata import Begun

TOGETHER: Final = 3
ALONE: Final = 2
PIECES: Final = 32

_Key = tuple[int, int]
"""First offset, next after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectRange:
    """What is begun next of one partition. `until`: how far its partition is run in pieces."""

    start: int
    end: int
    tries: int = 0
    """How often it was begun before, without an end."""
    until: int | None = None

    def as_begun(self, revision: str) -> Begun:
        """What its commit would have told, had it not been begun."""
        return Begun(
            start=self.start,
            next=self.end,
            tries=self.tries,
            revision=revision,
            until=self.until,
        )

    @property
    def planned(self) -> tuple[int, int, int | None]:
        """What the commit before it says: its end, how often it will have been begun, `until`."""
        return self.end, self.tries + 1, self.until

    @property
    def condemned(self) -> bool:
        """A single offset that ended its process each time that it was alone."""
        return self.until is not None and self.end - self.start == 1 and self.tries >= ALONE


def pieces(start: int, end: int, begun: Begun | None) -> tuple[SuspectRange, ...]:
    """How [start, end) is to be begun: as a whole, unless `begun` says that it ends processes."""
    if begun is None or begun.start != start or not start < begun.next <= end:
        return (SuspectRange(start=start, end=end),)
    if begun.until is None and begun.tries < TOGETHER:
        return (SuspectRange(start=start, end=end, tries=begun.tries if begun.next == end else 0),)
    until = max(end, begun.until or 0)
    if begun.next - start == 1:
        tries = 0 if begun.until is None else begun.tries
        first: tuple[SuspectRange, ...] = (
            SuspectRange(start=start, end=begun.next, tries=tries, until=until),
        )
    elif begun.until is not None and begun.tries == 0:  # its worker lived: not this part's doing
        first = (SuspectRange(start=start, end=begun.next, until=until),)
    else:
        first = _cut(start, begun.next, until)
    return first + _cut(begun.next, end, until)


def _cut(start: int, end: int, until: int) -> tuple[SuspectRange, ...]:
    size = max(1, -(-(end - start) // PIECES))
    return tuple(
        SuspectRange(start=at, end=min(at + size, end), until=until)
        for at in range(start, end, size)
    )


class SuspectRanges:
    """What one membership begins of its closed batches, and in which order."""

    def __init__(self, *, revision: str) -> None:
        self._revision = revision
        self._waiting: deque[Prepared] = deque()
        """What is run before anything else is read into a batch."""
        self._noted: dict[TopicPartition, dict[_Key, SuspectRange]] = {}
        """Of ranges that were begun before, or are run in pieces."""

    def take(self) -> Prepared | None:
        """The next one, where some wait."""
        return self._waiting.popleft() if self._waiting else None

    def cut(
        self,
        closed: Prepared,
        begun: Mapping[TopicPartition, Begun | None],
        say: Callable[[TopicPartition, Begun, str], None],
    ) -> Prepared:
        """What is to be begun first of a closed batch; the rest waits.

        What is run as a whole goes together, first; pieces go alone, one partition after the
        other. begun: what the commits told of the partitions' positions. say: told of those that
        were begun more than once.
        """
        cuts = {each.tp: self._cut(each, begun.get(each.tp), say) for each in closed.ranges}
        whole = [tp for tp, cut in cuts.items() if len(cut) == 1 and cut[0].until is None]
        if len(whole) == len(cuts):
            return closed
        if whole:
            self._waiting.append(closed.only(whole))
        in_pieces = [(tp, cut) for tp, cut in cuts.items() if tp not in whole]
        # Suspects last: who lives through the others and ends with them is a witness.
        for tp, cut in sorted(in_pieces, key=lambda each: each[1][0].tries):
            self._waiting.extend(closed.part(tp, piece.start, piece.end) for piece in cut)
        return self._waiting.popleft()

    def of(self, each: BatchRange) -> SuspectRange:
        """What is known of a range that was cut here."""
        whole = SuspectRange(start=each.start, end=each.end)
        return self._noted.get(each.tp, {}).get((each.start, each.end), whole)

    def weighed(self, ranges: Iterable[BatchRange]) -> list[tuple[TopicPartition, SuspectRange]]:
        """Of these, what was begun before or alone; as if it had not been begun now."""
        return [
            (each.tp, replace(piece, tries=-1))
            for each in ranges
            if (piece := self.of(each)).tries > 0 or piece.until is not None
        ]

    def drop(self, tps: frozenset[TopicPartition]) -> None:
        """Forget what waits of partitions."""
        left = (without(each, tps) for each in self._waiting)
        self._waiting = deque(each for each in left if each is not None)

    def forget(self, tp: TopicPartition) -> None:
        """It begins anew, by what its commit tells: what was noted of it is of another life."""
        self._noted.pop(tp, None)

    def passed(self, tp: TopicPartition, position: int) -> None:
        """Nothing before `position` is begun again."""
        noted = self._noted.pop(tp, {})
        left = {key: piece for key, piece in noted.items() if key[1] > position}
        if left:
            self._noted[tp] = left

    def _cut(
        self,
        each: BatchRange,
        begun: Begun | None,
        say: Callable[[TopicPartition, Begun, str], None],
    ) -> tuple[SuspectRange, ...]:
        if begun is not None and (begun.revision != self._revision or begun.start != each.start):
            begun = None  # other code, or further on
        made = pieces(each.start, each.end, begun)
        weighed = {(p.start, p.end): p for p in made if p.tries or p.until is not None}
        if weighed:
            self._noted.setdefault(each.tp, {}).update(weighed)
        if begun is not None and begun.tries > 1:
            say(each.tp, begun, told(each.tp, begun, len(made)))
        return made


def without(batch: Prepared, gone: frozenset[TopicPartition]) -> Prepared | None:
    """A batch without these partitions; None where nothing is left."""
    kept = [each.tp for each in batch.ranges if each.tp not in gone]
    if len(kept) == len(batch.ranges):
        return batch
    return batch.only(kept) if kept else None


def told(tp: TopicPartition, begun: Begun, parts: int) -> str:
    """A sentence for people: what is repeated, and how."""
    how = f"it is run in {parts} parts" if begun.until or begun.tries >= TOGETHER else "again"
    return (
        f"{tp}: offsets {begun.start} to {begun.next - 1} were begun {begun.tries} times, and each "
        f"time their worker ended without a word: {how}"
    )


def condemned(piece: SuspectRange) -> str:
    """Why a single offset is not begun once more."""
    return (
        f"its batch ended the worker's process each time that it was begun, {TOGETHER} times with "
        f"others and {piece.tries} times alone (killed, out of memory, or crashed)"
    )
