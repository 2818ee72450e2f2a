"""Errors that the client tells of beside its answers: one ends the worker, weather is told.

A login that brokers refuse is weather too: an identity provider may be away, a broker start. It is
none where the files of that login were replaced meanwhile: this client will never read them, and
would be alive and idle for ever [10]. Then the worker ends, and starts again with what is there.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.worker.events import Events
from fleet.worker.member.protocols import verdict

_HANDSHAKE: Final = -181
_LASTS: Final = {-169: 20.0, _HANDSHAKE: 20.0, -187: 300.0}
"""Seconds after which the same refusal of the same broker is no restart of it: a login, or a TLS
handshake, that failed; librdkafka tells it again after 30. Or no broker is connected, told every
ten: brokers that are away show the same, so that it counts only when the session is over anyway."""
_LOST: Final = -195
_ALERT: Final = "SSL alert number"
"""In what a lost connection is told with: TLS 1.3 refuses a client's certificate only once the
handshake is over (20 of these a second)."""
_FORGOTTEN: Final = 120.0
"""Seconds after which it is another one."""


class ClientErrors:
    """Of one membership; told on its thread [1].

    replaced: files of its login that hold something else than when its client was made.
    """

    def __init__(
        self, events: Events, *, clock: Clock, replaced: Callable[[], Sequence[str]]
    ) -> None:
        self._events = events
        self._clock = clock
        self._replaced = replaced
        self._refused: dict[str, tuple[float, float]] = {}
        """By broker: when it refused us first, and last."""
        self._fatal: FleetError | None = None

    def tell(self, error: Any) -> None:
        """A KafkaError: the first fatal one is kept, weather is told once in a while."""
        self._fatal = self._fatal or verdict(error) or self._outdated(error)
        if self._fatal is None:
            self._events.log_rarely(f"kafka: {error.str()}", key=f"kafka {error.code()}")

    def check(self) -> None:
        """Raise the fatal one."""
        if self._fatal:
            raise self._fatal

    def _outdated(self, error: Any) -> FleetError | None:
        """Why this client's login is not the one that its files hold; None where it is."""
        code = _HANDSHAKE if error.code() == _LOST and _ALERT in error.str() else error.code()
        if (lasts := _LASTS.get(code)) is None:
            return None
        broker, now = error.str().partition(": ")[0], self._clock.monotonic()
        first, last = self._refused.get(broker, (now, now))
        if now - last > _FORGOTTEN:
            first = now
        self._refused[broker] = (first, now)
        if now - first < lasts or not (files := self._replaced()):
            return None
        return FleetError(
            f"brokers do not let this process in ({error.str()}), and {', '.join(files)} was "
            "replaced since it logged in: it ends, to start again with what is there now"
        )
