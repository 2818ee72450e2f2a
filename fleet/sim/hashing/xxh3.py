"""XXH3, 64 bits, seed 0: the hash by which a coordinator notices changed topics (KIP-1101).

Problem: the hash stands in every group epoch's record, and no library of the standard library
makes it. Choice: the public algorithm in plain integers, for 4 bytes and more, which is the
least that a coordinator hashes. Cost: about 10 µs for a small topic; callers keep a topic's hash.
Source: the XXH3 specification, doc/xxhash_spec.md of xxHash.
"""

import struct
from typing import Final

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
