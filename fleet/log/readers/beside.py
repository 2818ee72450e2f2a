"""What a live view of groups needs and the offsets topic does not hold, asked beside it.

Problem: sessions of KIP-848 groups are configuration. Choice: one thread asks for all of them
every few seconds, sooner than a changed session can run out, so that a departure is judged by what
held then. It asks no coordinator. Cost: one request in five seconds.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from fleet.clock import Clock
from fleet.kafka_source.group_sessions import AskedSessions
from fleet.model.sessions import SessionThen
from fleet.system.closing import Closing

_EVERY: Final = 5.0


class Beside(Closing):
    """Asks from `start` to `close`; `groups` tells names and protocols of KIP-848 groups."""

    def __init__(
        self, config: Mapping[str, Any], *, clock: Clock, groups: Callable[[], Mapping[str, str]]
    ) -> None:
        self._groups = groups
        self._sessions = AskedSessions(config, clock=clock)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, on a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="beside-offsets", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(timeout=10.0)
        self._sessions.close()

    def session(self, group: str, protocol: str, at: float) -> SessionThen | None:
        """A group's session, for a member that was removed at that time."""
        return self._sessions.of(group, protocol, at, live=True)

    def _run(self) -> None:
        while not self._ending.wait(_EVERY):
            self._sessions.ask(self._groups())
