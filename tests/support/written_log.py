"""Record batches as a broker keeps them, and a log of them that is read like a broker's.

Written by kafka-python, which is somebody else's reading of the same format.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka.record.default_records import DefaultRecordBatchBuilder

from fleet.kafka_source.batch_fetcher import OUT_OF_RANGE, BatchFetcher, FetchedPart
from fleet.kafka_source.bounds import EARLIEST, ListedOffset, Where

NOW = 1_700_000_000_123
Record = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
CONTROL = 1 << 5


def batch(
    base: int,
    records: Mapping[int, Record] | Sequence[Record],
    *,
    codec: int = 0,
    producer: int = -1,
    control: bool = False,
    after: int | None = None,
    epoch: int = 0,
    timestamp: int = NOW,
) -> bytes:
    """Records by their distance from the base offset; a producer's are in a transaction."""
    within = producer >= 0
    made = DefaultRecordBatchBuilder(2, codec, within, producer, 0 if within else -1, -1, 1 << 30)
    rows = records.items() if isinstance(records, Mapping) else enumerate(records)
    last = 0
    for last, (key, value, headers) in rows:
        made.append(last, timestamp + last, key, value, list(headers))
    data = bytearray(made.build())
    data[:8] = base.to_bytes(8, "big")
    data[12:16] = epoch.to_bytes(4, "big")
    if control:
        data[22] |= CONTROL
    if after is not None:
        last = after - base - 1
    data[23:27] = last.to_bytes(4, "big")
    return signed(bytes(data))


def signed(data: bytes) -> bytes:
    """A batch with the checksum that it should have."""
    import google_crc32c

    return data[:17] + google_crc32c.value(data[21:]).to_bytes(4, "big") + data[21:]


def marker(base: int, producer: int, *, committed: bool) -> bytes:
    """The end of a transaction."""
    key = bytes(3) + bytes([committed])
    return batch(base, [(key, bytes(6), ())], producer=producer, control=True)


@dataclass
class WrittenPart:
    """One partition: batches with the offset behind each, and what is told of them."""

    batches: list[tuple[int, bytes]] = field(default_factory=list)
    first: int = 0
    stable: int | None = None
    aborted: list[tuple[int, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Behind its last batch."""
        return self.batches[-1][0] if self.batches else 0

    def add(self, data: bytes, after: int) -> None:
        """Write a batch."""
        self.batches.append((after, data))


class WrittenLog(BatchFetcher):
    """Partitions in memory, given away in answers of so many batches: `sizes`, then all of them."""

    def __init__(self, parts: Mapping[Where, WrittenPart], sizes: Sequence[int] = ()) -> None:
        super().__init__({"bootstrap.servers": "memory:1"}, client_id="test", committed=True)
        self.parts, self.sizes = parts, list(sizes)
        self.errors: list[int] = []
        self.closed = False

    def close(self) -> None:
        """Nothing is open."""
        self.closed = True

    def send(self, positions: Mapping[Where, int]) -> None:
        """It answers at once."""

    def fetch(self, positions: Mapping[Where, int], timeout: float) -> list[FetchedPart]:
        """From the batch on that holds the position, whole ones."""
        return [self._answer(where, at) for where, at in positions.items()]

    def _answer(self, where: Where, at: int) -> FetchedPart:
        part = self.parts[where]
        error = self.errors.pop(0) if self.errors else 0
        if not part.first <= at <= part.end:
            error = OUT_OF_RANGE
        stable = part.end if part.stable is None else part.stable
        there = [data for after, data in part.batches if at < after <= stable]
        size = self.sizes.pop(0) if self.sizes else len(there)
        data = b"" if error else b"".join(there[:size])
        return FetchedPart(where, data, error, tuple(part.aborted))

    def list_offsets(
        self, wanted: Mapping[Where, int], timeout: float
    ) -> dict[Where, ListedOffset]:
        """Where its logs begin and end."""
        return {
            where: ListedOffset(
                self.parts[where].first if at == EARLIEST else self.parts[where].end
            )
            for where, at in wanted.items()
        }


def of(*rows: Any) -> list[Record]:
    """Records of values alone."""
    return [(None, row, ()) for row in rows]
