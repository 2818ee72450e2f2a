"""Takes whose end nobody could tell: they are given back when the store answers again."""

import threading
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fleet.slots import Slot

T = TypeVar("T")


@dataclass(slots=True)
class Doubts(Generic[T]):
    """What may stand in the store, with the slot as it was before. Thread-safe."""

    _open: dict[tuple[str, int], tuple[T, Slot]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, attempt: T, before: Slot) -> None:
        """This one may stand."""
        with self._lock:
            self._open[before.group, before.number] = (attempt, before)

    def drop(self, before: Slot) -> None:
        """It stands, and shall."""
        with self._lock:
            self._open.pop((before.group, before.number), None)

    def pop_all(self) -> list[tuple[T, Slot]]:
        """All, to be settled now."""
        with self._lock:
            found = list(self._open.values())
            self._open.clear()
        return found
