"""XXH3, 64 bits, seed 0: the hash by which a coordinator notices changed topics (KIP-1101).

Problem: the hash stands in every group epoch's record, and no library of the standard library
makes it. Choice: the public algorithm in plain integers, for 4 bytes and more, which is the
least that a coordinator hashes. Cost: about 10 µs for a small topic; callers keep a topic's hash.
Source: the XXH3 specification, doc/xxhash_spec.md of xxHash.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Self, TypeVar

# Dictionaries that are walked in the order of Java's hash tables.
#
# Problem: which member gets which partition, and in what order records are written, follows from
# the order in which Kafka walks its hash tables; with another order the model would be right in
# kind and wrong in every byte. Choice: dictionaries that know their table's size, walked by the
# bucket of each key: `HashOrder` for java.util.HashMap and HashSet (of Java 17), `SlotOrder` for
# Kafka's own TimelineHashMap. Cost: a walk sorts. Not modelled: a bucket of eight keys or more,
# which Java turns into a tree.
#
# Keys are ints (partitions), strings, and topic ids as 16 bytes.


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


_M: Final = (1 << 64) - 1
_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_PM1, _PM2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_STRIPE: Final = 64
_PER_BLOCK: Final = (192 - _STRIPE) // 8
_LAST_SECRET: Final = 192 - _STRIPE - 7


def xxh3_64(data: bytes) -> int:
    """The hash as an unsigned number. Raises ValueError for fewer than 4 bytes."""
    size = len(data)
    if size < 4:
        raise ValueError(f"{size} bytes to hash; a coordinator hashes 4 or more")
    if size <= 8:
        return _tiny(data, size)
    if size <= 16:
        return _small(data, size)
    if size <= 128:
        return _avalanche(_middle(data, size))
    if size <= 240:
        return _upper(data, size)
    return _long(data, size)


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _fold(left: int, right: int) -> int:
    product = left * right
    return (product & _M) ^ (product >> 64)


def _avalanche(value: int) -> int:
    value &= _M
    value ^= value >> 37
    value = (value * _PM1) & _M
    return value ^ (value >> 32)


def _mix(data: bytes, at: int, secret: int) -> int:
    low = _u64(data, at) ^ _u64(_SECRET, secret)
    return _fold(low, _u64(data, at + 8) ^ _u64(_SECRET, secret + 8))


def _tiny(data: bytes, size: int) -> int:
    flip = _u64(_SECRET, 8) ^ _u64(_SECRET, 16)
    value = (_u32(data, size - 4) + (_u32(data, 0) << 32)) ^ flip

    def turned(by: int) -> int:
        return ((value << by) | (value >> (64 - by))) & _M

    value ^= turned(49) ^ turned(24)
    value = (value * _PM2) & _M
    value ^= ((value >> 35) + size) & _M
    value = (value * _PM2) & _M
    return value ^ (value >> 28)


def _small(data: bytes, size: int) -> int:
    low = _u64(data, 0) ^ _u64(_SECRET, 24) ^ _u64(_SECRET, 32)
    high = _u64(data, size - 8) ^ _u64(_SECRET, 40) ^ _u64(_SECRET, 48)
    swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
    return _avalanche(size + swapped + high + _fold(low, high))


def _middle(data: bytes, size: int) -> int:
    total = size * _P1
    for pair in range((size - 1) // 32, -1, -1):
        total += _mix(data, 16 * pair, 32 * pair)
        total += _mix(data, size - 16 * (pair + 1), 32 * pair + 16)
    return total


def _upper(data: bytes, size: int) -> int:
    total = size * _P1 + sum(_mix(data, 16 * i, 16 * i) for i in range(8))
    total = _avalanche(total)
    total += sum(_mix(data, 16 * i, 16 * (i - 8) + 3) for i in range(8, size // 16))
    return _avalanche(total + _mix(data, size - 16, 136 - 17))


def _accumulate(sums: list[int], data: bytes, at: int, secret: int) -> None:
    words = struct.unpack_from("<8Q", data, at)
    keys = struct.unpack_from("<8Q", _SECRET, secret)
    for lane in range(8):
        keyed = words[lane] ^ keys[lane]
        sums[lane ^ 1] = (sums[lane ^ 1] + words[lane]) & _M
        sums[lane] = (sums[lane] + (keyed & 0xFFFFFFFF) * (keyed >> 32)) & _M


def _long(data: bytes, size: int) -> int:
    sums = [_P32_3, _P1, _P2, _P3, _P4, _P32_2, _P5, _P32_1]
    stripes = (size - 1) // _STRIPE
    for stripe in range(stripes):
        within = stripe % _PER_BLOCK
        _accumulate(sums, data, stripe * _STRIPE, 8 * within)
        if within == _PER_BLOCK - 1:
            for lane in range(8):
                value = sums[lane] ^ (sums[lane] >> 47) ^ _u64(_SECRET, 128 + 8 * lane)
                sums[lane] = (value * _P32_1) & _M
    _accumulate(sums, data, size - _STRIPE, _LAST_SECRET)
    total = size * _P1
    for pair in range(4):
        first = sums[2 * pair] ^ _u64(_SECRET, 11 + 16 * pair)
        total += _fold(first, sums[2 * pair + 1] ^ _u64(_SECRET, 19 + 16 * pair))
    return _avalanche(total)
