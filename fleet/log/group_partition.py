"""Which partition of `__consumer_offsets` holds a group: the broker's own arithmetic."""

import struct


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 units, in 32 bits."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for unit in struct.unpack(f">{len(data) // 2}H", data):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(group: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that holds a group (the broker's `partitionFor`)."""
    hashed = java_hash(group)
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partitions
