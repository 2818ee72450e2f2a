"""What a live view of groups needs and the offsets topic does not hold, asked beside it.

Problem: sessions of KIP-848 groups are configuration, and when a classic round began nobody writes
down. Choice: one thread asks every second which groups are unsettled (one request to each broker),
and every few seconds for all sessions, sooner than a changed one can run out, so that a departure
is judged by what held then. No coordinator request is among them, and nothing here can end the
process. Cost: half a millisecond of CPU a second for each broker, and 0.2 s at the start.
"""

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fleet.clock import Clock
from fleet.kafka_source.connections import NoAnswer
from fleet.kafka_source.group_sessions import AskedSessions
from fleet.kafka_source.unsettled import every_group, unsettled
from fleet.model.sessions import SessionThen
from fleet.system.closing import Closing

if TYPE_CHECKING:
    from fleet.log.readers.log_view import LogView

_log = logging.getLogger("fleet")
_EVERY: Final = 1.0
_SESSIONS: Final = 5
"""Sessions are asked for at one look in so many."""
_BROKERS: Final = 30
"""And brokers and all groups at one in so many."""
_TIMEOUT: Final = 2.0


class Beside(Closing):
    """Asks from `start` to `close`, for a view that is told."""

    def __init__(self, config: Mapping[str, Any], *, clock: Clock, view: "LogView") -> None:
        self._view, self._clock = view, clock
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
        looks, due, said = 0, self._clock.monotonic(), ""
        while not self._ending.wait(max(0.0, due - self._clock.monotonic())):
            due = max(due + _EVERY, self._clock.monotonic())
            try:
                self._look(anew=looks % _BROKERS == 0)
                looks += 1
                if looks % _SESSIONS == 0:
                    self._sessions.ask(self._view.configured())
            except NoAnswer:
                looks = 0  # brokers may be others now
            except Exception as error:  # noqa: BLE001 - what asks goes on, and says why not
                looks, failed = 0, f"{type(error).__name__}: {error}"
                if failed != said:
                    _log.warning("starts and sessions of rebalances are not asked for: %s", failed)
                said = failed

    def _look(self, *, anew: bool) -> None:
        if anew:
            with self._sessions.connected() as connections:
                told = every_group(connections, _TIMEOUT)
            self._view.listed(told.groups)
        with self._sessions.connected() as connections:
            asked = self._clock.now()
            found = unsettled(connections, _TIMEOUT)
            answered = self._clock.now()
        self._view.unsettled(found.groups, asked=asked, answered=answered, whole=found.whole)
