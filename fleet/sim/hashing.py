"""Dictionaries that are walked in the order of Java's hash tables.

Problem: which member gets which partition, and in what order records are written, follows from
the order in which Kafka walks its hash tables; with another order the model would be right in
kind and wrong in every byte. Choice: dictionaries that know their table's size, walked by the
bucket of each key: `HashOrder` for java.util.HashMap and HashSet (of Java 17), `SlotOrder` for
Kafka's own TimelineHashMap. Cost: a walk sorts. Not modelled: a bucket of eight keys or more,
which Java turns into a tree.

Keys are ints (partitions), strings, and topic ids as 16 bytes.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Self, TypeVar

K = TypeVar("K", bound=int | str | bytes)
V = TypeVar("V")

_WORD: Final = 0xFFFFFFFF
_LOAD: Final = 0.75
_DEFAULT: Final = 16
_FIBONACCI: Final = 0x9E3779B97F4A7C15
_KNOWN: Final = 1 << 16
_SMALL: Final = 1 << 16
"""An int below is its own hash."""


@lru_cache(maxsize=_KNOWN)
def java_hash(key: int | str | bytes) -> int:
    """The hash that Java's Integer, String or Kafka's Uuid has, as unsigned 32 bits."""
    if isinstance(key, int):
        return key & _WORD
    if isinstance(key, bytes):
        folded = int.from_bytes(key[:8], "big") ^ int.from_bytes(key[8:], "big")
        return (folded >> 32) ^ (folded & _WORD)
    value = 0
    units = key.encode("utf-16-be")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8) + units[at + 1]) & _WORD
    return value


@lru_cache(maxsize=_KNOWN)
def _spread(key: int | str | bytes) -> int:
    value = java_hash(key)
    return value ^ (value >> 16)


@lru_cache(maxsize=_KNOWN)
def _scattered(key: int | str | bytes) -> int:
    value = java_hash(key)
    signed = value - (1 << 32) if value >> 31 else value
    return (signed * _FIBONACCI) & 0xFFFFFFFFFFFFFFFF


def _power_of_two(least: int) -> int:
    return 1 if least <= 1 else 1 << (least - 1).bit_length()


class _Walked(dict[K, V]):
    """A dictionary whose walks go through `_in_order`, which sorts once for what stays as it is.

    It is changed by item and `pop` alone; other ways would not be noticed.
    """

    __slots__ = ("_order", "capacity")

    capacity: int
    _order: list[K] | None

    def _in_order(self) -> list[K]:
        if self._order is None:
            self._order = self._sorted()
        return self._order

    def _sorted(self) -> list[K]:
        raise NotImplementedError

    def __delitem__(self, key: K) -> None:
        super().__delitem__(key)
        self._order = None

    def pop(self, key: K, *otherwise: Any) -> Any:
        """Removes a key, as Java's `remove`."""
        self._order = None
        return super().pop(key, *otherwise)

    def __iter__(self) -> Iterator[K]:
        return iter(self._in_order())

    def keys(self) -> Any:
        """The keys in the table's order."""
        return self._in_order().copy()

    def values(self) -> Any:
        """The values in the table's order."""
        return list(map(self.__getitem__, self._in_order()))

    def items(self) -> Any:
        """Keys with their values in the table's order."""
        order = self._in_order()
        return list(zip(order, map(self.__getitem__, order), strict=True))


class HashOrder(_Walked[K, V]):
    """java.util.HashMap; a set where the values are None.

    A capacity is the number of buckets; 0 means that Java has not made the table yet.
    """

    __slots__ = ("_first", "_heads")

    def __init__(self, expected: int | None = None) -> None:
        super().__init__()
        self.capacity = 0
        self._order = None
        self._first = _DEFAULT if expected is None else _power_of_two(expected)
        self._heads: list[K] | None = None

    @classmethod
    def copied(cls, source: Mapping[K, V]) -> Self:
        """As `new HashMap<>(source)`: a table just large enough."""
        made = cls(int(len(source) / _LOAD + 1) if source else None)
        made.put_each(source)
        return made

    @classmethod
    def collected(cls, keys: Iterable[K], value: V, size: int | None = None) -> Self:
        """As `new HashSet<>(keys)`; `size` is what the collection says of itself."""
        if size is None:
            keys = list(keys)
            size = len(keys)
        made = cls(max(int(size / _LOAD) + 1, _DEFAULT))
        made.put_each(dict.fromkeys(keys, value))
        return made

    def put_each(self, new: Mapping[K, V]) -> None:
        """As one put after the other, in the order in which `new` is walked: it ends as large."""
        known = len(self)
        dict.update(self, new.items())
        if (size := len(self)) > known:
            self._order = None
            self.capacity = self.capacity or self._first
            while size * 4 > self.capacity * 3:
                self.capacity *= 2

    def __setitem__(self, key: K, value: V) -> None:
        known = len(self)
        dict.__setitem__(self, key, value)
        if (size := len(self)) == known:
            return
        self._order = None
        if not self.capacity:
            self.capacity = self._first
        if size * 4 > self.capacity * 3:  # a load of 0.75
            self.capacity *= 2

    def put_first(self, key: K, value: V) -> None:
        """As `compute` and `merge`: a new key goes before its bucket's others.

        They grow the table before they look for the key, not after they put it.
        """
        if not self.capacity:
            self.capacity = self._first
        elif len(self) > int(self.capacity * _LOAD):
            self.capacity *= 2
        self._order = None
        known = key in self
        super().__setitem__(key, value)
        if known:
            return
        self._heads = [*(self._heads or ()), key]

    def found(self, key: K, otherwise: V) -> V:
        """As `computeIfAbsent`, which grows the table even where it finds the key."""
        self.put_first(key, self.get(key, otherwise))
        return self[key]

    def __delitem__(self, key: K) -> None:
        super().__delitem__(key)
        if self._heads and key in self._heads:
            self._heads.remove(key)

    def pop(self, key: K, *otherwise: Any) -> Any:
        """Removes a key, as Java's `remove`."""
        found = super().pop(key, *otherwise)
        if self._heads and key in self._heads:
            self._heads.remove(key)
        return found

    def keep(self, wanted: Collection[K]) -> None:
        """Keeps the wanted keys, as Java's `retainAll`."""
        for key in [key for key in dict.__iter__(self) if key not in wanted]:
            del self[key]

    def _sorted(self) -> list[K]:
        found = list(dict.__iter__(self))
        if len(found) < 2:
            return found
        mask = self.capacity - 1
        bucket: Callable[[Any], int] = lambda key: _spread(key) & mask  # noqa: E731
        if isinstance(found[0], int):
            numbers: list[Any] = found
            if min(numbers) >= 0 and (most := max(numbers)) < _SMALL:
                if most <= mask:
                    return sorted(numbers)  # a bucket for each
                bucket = mask.__and__
        if self._heads:
            first = self._heads[::-1]
            found = first + [key for key in found if key not in first]
        return sorted(found, key=bucket)


class SlotOrder(_Walked[K, V]):
    """Kafka's TimelineHashMap: multiplicative hashing, a slot's newest key first."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.capacity = 2
        self._order = None

    def __setitem__(self, key: K, value: V) -> None:
        if (len(self) + 1) * _LOAD > self.capacity:
            self.capacity *= 2
        self._order = None
        super().__setitem__(key, value)

    def _sorted(self) -> list[K]:
        found = list(dict.__iter__(self))[::-1]
        shift = 65 - self.capacity.bit_length()
        return sorted(found, key=lambda key: _scattered(key) >> shift)


def emptied(table: HashOrder[K, V], keys: Iterable[K]) -> HashOrder[K, V]:
    """The table without those keys; it keeps its size."""
    # In whatever order they go: no need to walk a table by its buckets for it.
    for key in dict.keys(keys) if isinstance(keys, dict) else keys:
        if key in table:
            del table[key]
    return table
