"""How a test waits for something real: as long as anything moves.

Problem: a deadline in seconds says how fast a machine must be, and a slow one fails where nothing
is wrong. Choice: a test names what moves meanwhile (`progress`: a journal's length, slots,
the sizes of logs); the deadline begins anew whenever that changes, and a total that no slow
machine needs ends what moves in circles. Cost: what stands still for good is found late.
"""

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from fleet.clock import Clock, SystemClock
from fleet.errors import Unreachable
from fleet.slots.store import Store

STILL = 90.0
"""Seconds without any change after which nothing is expected any more."""
UNSEEN = 300.0
"""The same, where nobody can see what moves: a slow machine needs minutes to start a program."""
MOST = 900.0
"""Seconds in all."""
_LOOK = 1.0
"""Seconds between two looks at what moves: it may cost more than the condition."""

_MOST_QUEUE = 3.0
"""Times as long at most, however many wait: what will never be is to be told while a run lasts."""

Answer = TypeVar("Answer")


def until(
    condition: Callable[[], Answer],
    what: str,
    *,
    progress: Callable[[], Hashable] | None = None,
    still: float | None = None,
    most: float = MOST,
    every: float = 0.1,
    picture: Callable[[], str] = str,
    clock: Clock | None = None,
) -> Answer:
    """The condition's first true answer, asked for every so many seconds.

    AssertionError, with `what` was awaited and a `picture` of how things are, where `progress`
    stays the same for `still` seconds or all took more than `most`, of a machine that is not
    overloaded.
    """
    if still is None:
        still = UNSEEN if progress is None else STILL
    progress = progress or (lambda: None)
    clock = clock or SystemClock()
    began = looked = moved = clock.monotonic()
    seen = progress()
    while not (answer := condition()):
        now = clock.monotonic()
        if now - looked >= _LOOK:
            looked, found = now, progress()
            if found != seen:
                seen, moved = found, now
        queue = _queue()
        if now - moved > still * queue or now - began > most * queue:
            raise AssertionError(
                f"waited {now - began:.0f} s for {what}: nothing moved for the last"
                f" {now - moved:.0f} s; last seen: {seen}\n{picture()}"
            )
        clock.sleep(every)
    return answer


@contextmanager
def meanwhile(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """A thread that works until its event is set, which the end of the block does."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _queue() -> float:
    """How many processes wanted each core in the last minute; 1 where none had to wait."""
    return min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), _MOST_QUEUE)


def stored(store: Store, group: str) -> Hashable:
    """What moves in a group's state; renewed leases alone are no progress."""
    try:
        return _stored(store, group)
    except Unreachable:  # as some tests make it
        return None


def _stored(store: Store, group: str) -> Hashable:
    change = store.change(group)
    return (
        store.targets(group).version,
        tuple((s.number, s.owner, s.token, str(s.phase), s.batches) for s in store.slots(group)),
        frozenset((r.worker, str(r.phase)) for r in store.reports(group)),
        change and (change.token, str(change.state), change.step, len(change.receipts)),
    )


def sizes(files: Iterable[Path]) -> Hashable:
    """Of those that are there: logs and journals grow while their writers live."""
    found = []
    for file in files:
        try:
            found.append((file.name, file.stat().st_size))
        except FileNotFoundError:
            continue
    return tuple(sorted(found))
