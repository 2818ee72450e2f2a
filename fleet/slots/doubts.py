"""Takes whose end nobody could tell: they are given back when the store answers again."""

import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fleet.slots import Slot

T = TypeVar("T")


@dataclass(slots=True)
class Doubts(Generic[T]):
    """What may stand in the store, with the slot as it was before. Thread-safe."""

    _open: dict[Hashable, tuple[T, Slot]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, where: Hashable, attempt: T, before: Slot) -> None:
        """This one may stand."""
        with self._lock:
            self._open[where] = (attempt, before)

    def drop(self, where: Hashable) -> None:
        """It stands, and shall."""
        with self._lock:
            self._open.pop(where, None)

    def pop_all(self) -> list[tuple[T, Slot]]:
        """All, to be settled now."""
        with self._lock:
            found = list(self._open.values())
            self._open.clear()
        return found
