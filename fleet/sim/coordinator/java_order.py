"""Maps that are walked through in the order of Java's HashMap.

Problem: Kafka keeps a group's members in a HashMap, and its order is visible: who leads when a
leader is gone, which of two protocols with equal votes wins, in which order members stand in a
record and their timers are set. Choice: a dictionary that also knows how large Java's table would
be, and sorts by the place in it: keys by the hash of their string (java.lang.String.hashCode), and
in one place as they came. Cost: the order is worked out after each change; a table with eight keys
in one place, which Java turns into a tree, is not modelled.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Generic, TypeVar

Value = TypeVar("Value")

_LEAST = 16
_MASK = 0xFFFFFFFF


@lru_cache(maxsize=65_536)
def spread(name: str) -> int:
    """The hash that HashMap takes the place from: a string's own, its upper half mixed in."""
    units = name.encode("utf-16-be")
    found = 0
    for at in range(0, len(units), 2):
        found = (31 * found + (units[at] << 8 | units[at + 1])) & _MASK
    return found ^ (found >> 16)


class JavaMap(Generic[Value]):
    """A map from texts, walked through as java.util.HashMap would."""

    __slots__ = ("_held", "_order", "_places")

    def __init__(self) -> None:
        self._held: dict[str, Value] = {}
        self._places = _LEAST
        self._order: list[str] | None = None

    def __setitem__(self, name: str, value: Value) -> None:
        if name not in self._held:
            self._order = None
        self._held[name] = value
        if len(self._held) > self._places * 3 // 4:
            self._places *= 2
            self._order = None

    def __getitem__(self, name: str) -> Value:
        return self._held[name]

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def get(self, name: str) -> Value | None:
        """None where it is not there."""
        return self._held.get(name)

    def pop(self, name: str) -> Value | None:
        """Taken out; None where it is not there."""
        if name in self._held:
            self._order = None
        return self._held.pop(name, None)

    def keys(self) -> list[str]:
        """In Java's order."""
        if self._order is None:
            last = self._places - 1
            self._order = sorted(self._held, key=lambda name: spread(name) & last)
        return self._order

    def values(self) -> list[Value]:
        """In Java's order."""
        return [self._held[name] for name in self.keys()]
