"""Processes on simulated time: what they call runs as it is, waits are moments of a queue.

Problem: the code that is tried here is written for threads that block, in a request or in a wait.
Choice: each thread is a greenlet; whatever would block puts it into one queue by time (and then by
the order in which it was put there), so that one seed makes one trace. A process can be killed or
stopped wherever one of its threads waits. Cost: a thread is not interrupted between two waits;
every request to the store is one.
"""

import heapq
import random
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from greenlet import getcurrent, greenlet

WALL = 1_700_000_000.0
"""Seconds since the epoch when a schedule begins."""


class Killed(BaseException):
    """The process is gone: no line of its own runs after this."""


class Simulation:
    """One queue of moments, one source of chance; seconds from the schedule's beginning."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.story: list[tuple[float, str, str]] | None = None
        """When, who, what; None: nothing listens."""
        self.broken: str | None = None
        """What does not hold."""
        self.hub = getcurrent()
        """Where every thread goes back to when it waits."""
        self.processes: list[Process] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Do it then, or now where that is past."""
        heapq.heappush(self._queue, (max(moment, self.now), next(self._order), action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Do it that much later."""
        heapq.heappush(self._queue, (self.now + delay, next(self._order), action))

    def tell(self, who: str, what: str) -> None:
        """One line of the story."""
        if self.story is not None:
            self.story.append((self.now, who, what))

    def violated(self, what: str) -> None:
        """Something does not hold: the schedule ends here."""
        if self.broken is None:
            self.broken = what
            self.tell("!", what)

    def run(self, until: float) -> None:
        """Everything up to this moment, or to what does not hold."""
        queue = self._queue
        while queue and queue[0][0] <= until and self.broken is None:
            self.now, _, action = heapq.heappop(queue)
            action()
        self.now = max(self.now, until)

    def end(self) -> None:
        """Nothing goes on: a thread that waits for ever is never collected."""
        self._queue.clear()
        for process in self.processes:
            process.kill()


class Process:
    """Threads that live and die together, and a machine's clock."""

    def __init__(self, name: str, world: Simulation) -> None:
        self.name = name
        self.world = world
        self.alive = True
        self.stopped_until = 0.0
        """A stopped process does nothing before then; what reaches it waits."""
        self.wall_offset = 0.0
        self.hurt_at = -1e9
        """When something last was wrong with this very process or its connections."""
        self.stops_at_targets = 0.0
        """Seconds for which it is stopped before it next reads the slot targets, in order to
        write it.
        """
        self._threads: set[greenlet] = set()
        world.processes.append(self)

    # --- as a Clock ---------------------------------------------------------------------------

    def now(self) -> float:
        """Wall time, as this machine has it."""
        return WALL + self.world.now + self.wall_offset

    def monotonic(self) -> float:
        """Seconds."""
        return self.world.now

    def sleep(self, seconds: float) -> None:
        """Let others go first for so long."""
        if not self.alive:
            raise Killed
        thread = getcurrent()
        self.world.after(seconds, lambda: self._resume(thread))
        self.world.hub.switch()
        if not self.alive:
            raise Killed

    # --- its life -----------------------------------------------------------------------------

    def start(self, act: Callable[[], Any]) -> None:
        """One more thread."""

        def runs() -> None:
            try:
                act()
            except Killed:
                return

        thread = greenlet(runs, self.world.hub)
        self._threads.add(thread)
        self.world.after(0.0, lambda: self._resume(thread))

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """An action of this process; it comes later where the process is stopped, or never."""
        self.world.after(delay, partial(self._acts, action))

    def _acts(self, action: Callable[[], None]) -> None:
        # Not a function in `later` that names itself: a cycle for each, left to the collector.
        if self.alive:
            if self.stopped_until > self.world.now:
                self.world.at(self.stopped_until, partial(self._acts, action))
            else:
                action()

    def kill(self) -> None:
        """Gone, wherever its threads are. Not to be called by one of them: see `end`."""
        self.alive = False
        for thread in list(self._threads):
            if thread and not thread.dead:
                thread.throw(Killed)
        self._threads.clear()

    def end(self) -> None:
        """The same by one of its own threads, which does nothing after it."""
        self.alive = False
        self.world.after(0.0, self.kill)

    def stop(self, seconds: float) -> None:
        """Stopped for so long, as by SIGSTOP."""
        self.stopped_until = max(self.stopped_until, self.world.now + seconds)

    def reaches_targets(self) -> None:
        """Stopped here, where that was asked for."""
        if self.stops_at_targets:
            seconds, self.stops_at_targets = self.stops_at_targets, 0.0
            self.world.tell(self.name, f"is stopped at the slot targets, for {seconds:.1f} s")
            self.hurt_at = max(self.hurt_at, self.world.now + seconds)
            self.stop(seconds)
            self.sleep(0.0)

    def _resume(self, thread: greenlet) -> None:
        if not self.alive:
            return
        if self.stopped_until > self.world.now:
            late = self.world.random.random()  # threads do not wake all at once
            self.world.at(self.stopped_until + late, lambda: self._resume(thread))
            return
        if not thread.dead:
            thread.switch()
        if thread.dead:
            self._threads.discard(thread)


class Bell:
    """What a thread of a process waits for; rung by any."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._rung = False
        self._waiting: tuple[greenlet, int] | None = None
        self._turn = 0

    def ring(self, delay: float = 0.0) -> None:
        """Whoever waits goes on, or does not wait at all the next time."""
        self._rung = True
        if self._waiting is not None:
            thread, turn = self._waiting
            self._process.later(delay, lambda: self._wake(thread, turn))

    set = ring
    """As an Event; `clear` is what `wait` does."""

    def clear(self) -> None:
        """Nothing."""

    def wait(self, seconds: float) -> bool:
        """Until it is rung, at most so long; whether it was."""
        if not self._rung:
            thread, self._turn = getcurrent(), self._turn + 1
            turn = self._turn
            self._waiting = thread, turn
            self._process.later(seconds, lambda: self._wake(thread, turn))
            self._process.world.hub.switch()
            if not self._process.alive:
                raise Killed
        rung, self._rung = self._rung, False
        return rung

    def _wake(self, thread: greenlet, turn: int) -> None:
        if self._waiting == (thread, turn):
            self._waiting = None
            thread.switch()


class Mutex:
    """A lock between threads of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._held = False

    def __enter__(self) -> "Mutex":
        while self._held:
            self._process.sleep(0.01)
        self._held = True
        return self

    def __exit__(self, *_: object) -> None:
        self._held = False
