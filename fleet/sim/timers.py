"""A queue of timers on simulated time.

Problem: which of two timers goes off first decides what a group becomes, so one seed makes one
trace only where that order is fixed. Choice: one timer per key, as Kafka's coordinator has it
(setting it again replaces it); the earliest deadline first, and at one deadline the one that was
set first. Kafka promises no order there. Cost: a timer that was replaced or cancelled stays in the
heap until its time has come.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

Action = TypeVar("Action")
"""What is to be done when a timer goes off; the queue only hands it back."""


class Due(NamedTuple, Generic[Action]):
    """A timer that goes off."""

    deadline: int
    """Milliseconds."""
    key: str
    action: Action


class Timers(Generic[Action]):
    """Timers by key; times are milliseconds on whatever clock the caller keeps."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str]] = []
        self._set: dict[str, tuple[int, int, Action]] = {}
        self._count = 0

    def schedule(self, key: str, deadline: int, action: Action) -> None:
        """Set a timer, in place of the one that has this key."""
        self._count += 1
        self._set.pop(key, None)  # what is set anew stands last, also among equals
        self._set[key] = (deadline, self._count, action)
        heapq.heappush(self._heap, (deadline, self._count, key))

    def cancel(self, key: str) -> None:
        """Take a timer away; nothing where there is none."""
        self._set.pop(key, None)

    def clear(self) -> None:
        """Take all away."""
        self._set.clear()
        self._heap.clear()

    def take(self, until: int) -> Due[Action] | None:
        """The next timer that is due by then, taken out of the queue; None where none is."""
        while self._heap and self._heap[0][0] <= until:
            deadline, number, key = heapq.heappop(self._heap)
            found = self._set.get(key)
            if found is not None and found[1] == number:
                del self._set[key]
                return Due(deadline, key, found[2])
        return None

    @property
    def next_deadline(self) -> int | None:
        """When the next timer goes off."""
        heap, known = self._heap, self._set
        while heap and ((found := known.get(heap[0][2])) is None or found[1] != heap[0][1]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def deadlines(self) -> dict[str, int]:
        """Key → deadline of all that are set, in the order in which they were."""
        return {key: deadline for key, (deadline, _, _) in self._set.items()}

    def __contains__(self, key: object) -> bool:
        return key in self._set

    def __len__(self) -> int:
        return len(self._set)

    def __iter__(self) -> Iterator[str]:
        return iter(self._set)


def advance(
    timers: Timers[Callable[[], None]], until: int, now: Callable[[int], None]
) -> Iterator[str]:
    """Let time go on to `until`: each timer goes off at its own moment, told to `now` before.

    Yields the key of each, after it went off.
    """
    while (due := timers.take(until)) is not None:
        now(due.deadline)
        due.action()
        yield due.key
    now(until)
