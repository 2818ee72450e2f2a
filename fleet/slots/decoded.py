"""What was decoded last of each stored object, so that a look costs what has changed since.

Problem: any renewal of any slot is a reason to look, and a look at hundreds of slots decodes them
all for the few that were written. Choice: what is stored is kept beside what it means; as long as
the same is stored, the same value is told. Values are frozen. Cost: the last of both stay.
"""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")
Stored = TypeVar("Stored")


class LastDecoded(Generic[Stored, Value]):
    """By key; thread-safe. same: whether two stored objects mean the same."""

    def __init__(self, same: Callable[[Stored, Stored], bool]) -> None:
        self._same = same
        self._known: dict[Hashable, tuple[Stored, Value]] = {}

    def of(self, key: Hashable, stored: Stored, decode: Callable[[Stored], Value]) -> Value:
        """What `stored` means. Raises what `decode` does."""
        known = self._known.get(key)
        if known is not None and self._same(known[0], stored):
            return known[1]
        value = decode(stored)
        self._known[key] = (stored, value)
        return value
