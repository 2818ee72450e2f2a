"""Errors that the client tells of beside its answers: one ends the worker, weather is told."""

from typing import Any

from fleet.errors import FleetError
from fleet.worker.events import Events
from fleet.worker.member.protocols import verdict


class ClientErrors:
    """Of one membership; told on its thread [1]."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._fatal: FleetError | None = None

    def tell(self, error: Any) -> None:
        """A KafkaError: the first fatal one is kept, weather is told once in a while."""
        self._fatal = self._fatal or verdict(error)
        if self._fatal is None:
            self._events.log_rarely(f"kafka: {error.str()}", key=f"kafka {error.code()}")

    def check(self) -> None:
        """Raise the fatal one."""
        if self._fatal:
            raise self._fatal
