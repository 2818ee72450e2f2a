"""What other threads ask of the one that owns the consumer: posted here, run there [1]."""

import contextlib
import queue
from collections.abc import Callable


class Commands:
    """A queue of calls."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def put(self, call: Callable[[], None]) -> None:
        """To be run soon; returns at once."""
        self._calls.put(call)

    def serve(self, timeout: float) -> None:
        """Run what is posted; waits at most `timeout` seconds for the first."""
        with contextlib.suppress(queue.Empty):
            call = self._calls.get(timeout=timeout) if timeout else self._calls.get_nowait()
            while True:
                call()
                call = self._calls.get_nowait()
