"""A queue of timers on simulated time.

Problem: which of two timers goes off first decides what a group becomes, so one seed makes one
trace only where that order is fixed. Choice: one timer per key, as Kafka's coordinator has it
(setting it again replaces it); the earliest deadline first, and at one deadline the one that was
set first. Kafka promises no order there. A timer that is set again for later, as every heartbeat
does with its member's session, keeps its place in the heap, and gets its own when that has come.
Cost: a timer that was set for earlier or cancelled leaves its place behind until then.
"""

import heapq
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

Action = TypeVar("Action")
"""What is to be done when a timer goes off; the queue only hands it back."""


_Place = tuple[int, int, str]
"""In the heap: deadline, number, key."""


class Due(NamedTuple, Generic[Action]):
    """A timer that goes off."""

    deadline: int
    """Milliseconds."""
    key: str
    action: Action


class Timers(Generic[Action]):
    """Timers by key; times are milliseconds on whatever clock the caller keeps."""

    def __init__(self) -> None:
        self._heap: list[_Place] = []
        self._set: dict[str, tuple[int, int, Action, _Place]] = {}
        """Deadline, number and action, and the one place in the heap that counts."""
        self._count = 0

    def schedule(self, key: str, deadline: int, action: Action) -> None:
        """Set a timer, in place of the one that has this key."""
        self._count = number = self._count + 1
        known = self._set.pop(key, None)  # what is set anew stands last, also among equals
        if known is None or known[3][0] > deadline:
            place = (deadline, number, key)
            heapq.heappush(self._heap, place)
        else:
            place = known[3]
        self._set[key] = (deadline, number, action, place)

    def cancel(self, key: str) -> None:
        """Take a timer away; nothing where there is none."""
        self._set.pop(key, None)

    def clear(self) -> None:
        """Cancels all timers."""
        self._set.clear()
        self._heap.clear()

    def take(self, until: int) -> Due[Action] | None:
        """The next timer that is due by then, taken out of the queue; None where none is."""
        deadline = self.next_deadline
        if deadline is None or deadline > until:
            return None
        key = heapq.heappop(self._heap)[2]
        return Due(deadline, key, self._set.pop(key)[2])

    @property
    def next_deadline(self) -> int | None:
        """When the next timer goes off."""
        heap, known = self._heap, self._set
        while heap:
            place = heap[0]
            found = known.get(place[2])
            if found is None or found[3] is not place:
                heapq.heappop(heap)
            elif found[1] != place[1]:
                deadline, number, action, _ = found
                fresh = (deadline, number, place[2])
                heapq.heapreplace(heap, fresh)
                known[place[2]] = (deadline, number, action, fresh)
            else:
                return place[0]
        return None

    def deadlines(self) -> dict[str, int]:
        """Key → deadline of all that are set, in the order in which they were."""
        return {key: deadline for key, (deadline, *_) in self._set.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._set)
