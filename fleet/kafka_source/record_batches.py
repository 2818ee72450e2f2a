"""Record batches in a log and in a Fetch answer: their headers and their payloads.

Problem: a client that creates an object per record costs more than everything else done with it. It
also hides what only batches have: the transaction of a record, its end, the leader that wrote it.
Choice: a Fetch answer is taken as bytes. Headers are found one after another and read together by
numpy; the payloads of all batches are laid end to end for fleet.kafka_source.record_fields. Each
batch is checked by its CRC-32C, as Kafka's own consumer does. Cost: 1.5 µs a batch; formats older
than Kafka 0.11 are read record by record.

Source: Kafka's protocol guide, "Record Batch"; KIP-98 (transactions, control batches).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

# cramjam (4 MB) unpacks payloads if it is installed, else Arrow (176 MB, which executors have).
# Both stop at MOST, because a few bytes may unpack to more than the memory holds. Source: Kafka's
# protocol guide, "Record Batch": attributes, bits 0-2.


_CODECS: Final = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_XERIAL: Final = b"\x82SNAPPY\x00"
"""Framing of snappy by Kafka's Java clients: blocks, each with its length."""
_XERIAL_HEADER: Final = 16
_FIRST: Final = 8
"""Size of the first buffer as a multiple of the packed bytes."""
_LEAST: Final = 1 << 14
_FULL: Final = "failed to write whole buffer"
MOST: Final = 1 << 30
"""Bytes that one batch may unpack to."""


def decompress(packed: bytes, codec: int) -> bytes | memoryview:
    """Returns a batch's payload without its compression; ValueError or OSError if damaged."""
    name = _CODECS.get(codec)
    if name is None:
        raise ValueError(f"Kafka has no codec {codec}")
    try:
        import cramjam  # noqa: PLC0415 - only where something is packed
    except ImportError:
        return _by_arrow(packed, name)
    try:
        if name == "snappy":
            return b"".join(
                _snappy(packed, lambda block, _: bytes(cramjam.snappy.decompress_raw(block)))
            )
        return _into_buffer(getattr(cramjam, name).decompress_into, packed)
    except cramjam.DecompressionError as error:
        raise ValueError(str(error)) from error


def _into_buffer(unpack: Callable[[bytes, bytearray], int], packed: bytes) -> memoryview:
    room = max(_LEAST, min(MOST, _FIRST * len(packed)))
    while True:
        buffer = bytearray(room)
        try:
            return memoryview(buffer)[: unpack(packed, buffer)]
        except Exception as error:  # cramjam has one class for all errors
            if _FULL not in str(error):
                raise
        if room >= MOST:
            raise ValueError(f"it unpacks to more than {MOST:,} bytes")
        room = min(MOST, 4 * room)


def _by_arrow(packed: bytes, name: str) -> bytes:
    import pyarrow as pa  # noqa: PLC0415 - executors have it, who only looks does not

    if name == "snappy":
        codec = pa.Codec("snappy")
        return b"".join(
            _snappy(packed, lambda block, size: codec.decompress(block, size, asbytes=True))
        )
    with pa.CompressedInputStream(pa.BufferReader(packed), name) as stream:
        found: bytes = stream.read(MOST + 1)
    if len(found) > MOST:
        raise ValueError(f"it unpacks to more than {MOST:,} bytes")
    return found


def _snappy(packed: bytes, unpack: Callable[[bytes, int], bytes]) -> Iterator[bytes]:
    if not packed.startswith(_XERIAL):
        yield unpack(packed, _snappy_size(packed))
        return
    at, total = _XERIAL_HEADER, 0
    while at + 4 <= len(packed):
        length = int.from_bytes(packed[at : at + 4], "big")
        block = packed[at + 4 : at + 4 + length]
        if len(block) < length or not length:
            raise ValueError("a block of snappy is cut short")
        size = _snappy_size(block)
        total += size
        if total > MOST:
            raise ValueError(f"it unpacks to more than {MOST:,} bytes")
        yield unpack(block, size)
        at += 4 + length


def _snappy_size(block: bytes) -> int:
    """Returns the unpacked size that a block of snappy declares: a varint at its beginning."""
    size = 0
    for place, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            if size > min(MOST, 64 * len(block) + 64):  # snappy's best is 1 to 64 / 3
                raise ValueError(f"a block of {len(block)} bytes cannot unpack to {size}")
            return size
    raise ValueError("a block of snappy without its size")


# Brokers before Kafka 4 return messages of formats 0 and 1 as they were written. kafka-python reads
# them and writes batches of format 2, so that all other code knows one format.


_APPEND_TIME = 8
_ATTRIBUTES_AT = 21
_MAX_TIME_AT = 35


def as_batch(message: bytes) -> bytes:
    """Returns one message, packed or not, as a batch; ValueError if it is damaged."""
    import google_crc32c  # noqa: PLC0415
    from kafka.errors import KafkaError  # noqa: PLC0415 - hardly ever needed
    from kafka.record import MemoryRecords  # noqa: PLC0415
    from kafka.record.default_records import DefaultRecordBatchBuilder  # noqa: PLC0415

    try:
        found = MemoryRecords(message).next_batch()
        if found is None or not found.validate_crc():
            raise ValueError("its checksum does not fit")
        records = list(found)
    except (KafkaError, IndexError, AssertionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if not records:
        raise ValueError("it has no message")
    made = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    base = records[0].offset
    for each in records:
        time = -1 if each.timestamp is None else each.timestamp
        made.append(each.offset - base, time, each.key, each.value, [])
    data = bytearray(made.build())
    data[:8] = base.to_bytes(8, "big", signed=True)
    if records[-1].timestamp_type == 1:
        data[_ATTRIBUTES_AT + 1] |= _APPEND_TIME
        data[_MAX_TIME_AT : _MAX_TIME_AT + 8] = records[-1].timestamp.to_bytes(
            8, "big", signed=True
        )
    data[17:21] = google_crc32c.value(bytes(data[_ATTRIBUTES_AT:])).to_bytes(4, "big")
    return bytes(data)


Ints = npt.NDArray[np.int64]

BEHIND: Final = bytes(80)
"""Bytes behind the last payload, so that a damaged record is not read beyond the data: eight
numbers of ten bytes."""
_ENOUGH: Final = 64 << 20
"""Bytes of unpacked payloads after which no further batch is unpacked. A well-packed megabyte could
fill gigabytes, more than memory or a column of Arrow holds."""
_BEFORE_LENGTH: Final = 12
"""Bytes of a batch that its own length does not count."""
_CRC_AT: Final = 17
_HEADER: Final = 61
_MAGIC_AT: Final = 16
_MAGIC: Final = 2
_CODEC: Final = 7
_TRANSACTIONAL: Final = 16
_CONTROL: Final = 32
_FIELDS: Final[Mapping[str, tuple[int, str]]] = {
    "base": (0, ">i8"),
    "epoch": (12, ">i4"),
    "attributes": (21, ">i2"),
    "last_delta": (23, ">i4"),
    "first_time": (27, ">i8"),
    "max_time": (35, ">i8"),
    "producer": (43, ">i8"),
    "records": (57, ">i4"),
}


class DamagedBatch(ValueError):
    """A batch that cannot be valid: `offset` is its first offset, `after` that of the next batch.

    `after` is None if its length cannot be trusted either.
    """

    def __init__(self, offset: int, after: int | None, why: str) -> None:
        super().__init__(f"the record batch at offset {offset} is damaged: {why}")
        self.offset, self.after = offset, after


class Marker(NamedTuple):
    """A transaction ended here: its offset, its producer, whether it was committed."""

    offset: int
    producer: int
    committed: bool


class Batches(NamedTuple):
    """Headers of batches with records, in columns, and their payloads end to end.

    `appended`: times are the broker's (LogAppendTime), the same for all records of a batch.
    `producer` is -1 outside of transactions. The payload of batch i is payloads[starts[i]:starts[i
    + 1]]; some zeros follow the last one.
    """

    base: Ints
    after: Ints
    epoch: Ints
    first_time: Ints
    max_time: Ints
    appended: npt.NDArray[np.bool_]
    producer: Ints
    records: Ints
    payloads: bytes
    starts: Ints


class Cut(NamedTuple):
    """The content of some bytes of a log: record batches, ends of transactions, and damage.

    `next`: the offset to go on from, None if there is no whole batch. `damaged`: the batch at which
    reading stopped.
    """

    batches: Batches
    markers: tuple[Marker, ...]
    next: int | None
    damaged: DamagedBatch | None = None


def before(found: Cut, offset: int) -> Cut:
    """Returns the batches that begin before an offset and the transactions that ended by then."""
    batches = found.batches
    rows = int(np.searchsorted(batches.base, offset))
    return Cut(
        batches=Batches(
            base=batches.base[:rows],
            after=batches.after[:rows],
            epoch=batches.epoch[:rows],
            first_time=batches.first_time[:rows],
            max_time=batches.max_time[:rows],
            appended=batches.appended[:rows],
            producer=batches.producer[:rows],
            records=batches.records[:rows],
            payloads=batches.payloads,
            starts=batches.starts[: rows + 1],
        ),
        markers=tuple(each for each in found.markers if each.offset < offset),
        next=offset,
    )


def cut(data: bytes) -> Cut:
    """Returns the batches in `data`; an incomplete last one is left for the next call.

    Stops before a damaged batch, and after the batch that makes it _ENOUGH.
    """
    if len(data) > _MAGIC_AT and data[_MAGIC_AT] < _MAGIC:
        data = _of_now(data)
    at, damaged = _places(data)
    table = _table(data, at)
    plain: list[int] = []
    markers: list[Marker] = []
    for row, place in enumerate(at):
        attributes = int(table["attributes"][row])
        if not attributes & _CONTROL:
            plain.append(row)
            continue
        try:
            markers += _markers(data, place, table, row)
        except DamagedBatch as error:
            damaged, at = error, at[:row]
            break
    payloads: list[bytes | memoryview] = []
    view, size = memoryview(data), 0
    for done, row in enumerate(plain):
        if size >= _ENOUGH:
            damaged, plain, at = None, plain[:done], at[:row]
            markers = [each for each in markers if each.offset < int(table["base"][row])]
            break
        start, end = at[row] + _HEADER, _end(data, at[row])
        codec = int(table["attributes"][row]) & _CODEC
        try:
            payloads.append(decompress(data[start:end], codec) if codec else view[start:end])
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            why = f"it cannot be unpacked ({str(error)[:100]})"
            base = int(table["base"][row])
            damaged = DamagedBatch(base, base + int(table["last_delta"][row]) + 1, why)
            plain, at = plain[:done], at[:row]
            markers = [each for each in markers if each.offset < damaged.offset]
            break
        size += len(payloads[-1])
    after = table["base"] + table["last_delta"] + 1
    return Cut(
        batches=_batches({name: column[plain] for name, column in table.items()}, payloads),
        markers=tuple(markers),
        next=int(after[len(at) - 1]) if at else None,
        damaged=damaged,
    )


def _of_now(data: bytes) -> bytes:
    """Returns messages of an older format at the beginning, up to the first of format 2, as
    batches.
    """
    made, place = [], 0
    while place + _MAGIC_AT < len(data) and data[place + _MAGIC_AT] < _MAGIC:
        end = _end(data, place)
        if not place < end <= len(data):
            break
        try:
            made.append(as_batch(data[place:end]))
        except ValueError:
            break  # reported as damaged when reading comes to it
        place = end
    return b"".join(made) + data[place:]


def _places(data: bytes) -> tuple[list[int], DamagedBatch | None]:
    """Returns where whole batches begin, up to the first with a wrong header or checksum."""
    import google_crc32c  # noqa: PLC0415 - an executor may lack it: see tasks.reading

    found: list[int] = []
    place, size = 0, len(data)
    while place + _HEADER <= size:
        end = _end(data, place)
        if end - place < _HEADER or data[place + _MAGIC_AT] != _MAGIC:
            return found, _damaged(data, place, "its header is not of Kafka's format 2", sure=False)
        if end > size:
            break
        wanted = int.from_bytes(data[place + _CRC_AT : place + _ATTRIBUTES_AT], "big")
        if google_crc32c.value(data[place + _ATTRIBUTES_AT : end]) != wanted:
            return found, _damaged(data, place, "its checksum does not fit")
        found.append(place)
        place = end
    return found, None


def _end(data: bytes, place: int) -> int:
    return place + _BEFORE_LENGTH + int.from_bytes(data[place + 8 : place + 12], "big", signed=True)


def _damaged(data: bytes, place: int, why: str, *, sure: bool = True) -> DamagedBatch:
    base = int.from_bytes(data[place : place + 8], "big", signed=True)
    end = _end(data, place)
    after = None
    if sure and end + 8 <= len(data):
        after = int.from_bytes(data[end : end + 8], "big", signed=True)
    return DamagedBatch(base, after if after is not None and after > base else None, why)


def _table(data: bytes, at: list[int]) -> dict[str, Ints]:
    """Returns the fields of all headers, by name."""
    if not at:
        return {name: np.zeros(0, np.int64) for name in _FIELDS}
    whole = np.frombuffer(data, np.uint8)
    headers = whole[np.asarray(at)[:, None] + np.arange(_HEADER)]
    return {
        name: headers[:, begin : begin + int(kind[-1])].copy().view(kind)[:, 0].astype(np.int64)
        for name, (begin, kind) in _FIELDS.items()
    }


def _batches(table: Mapping[str, Ints], payloads: list[bytes | memoryview]) -> Batches:
    attributes = table["attributes"]
    return Batches(
        base=table["base"],
        after=table["base"] + table["last_delta"] + 1,
        epoch=table["epoch"],
        first_time=table["first_time"],
        max_time=table["max_time"],
        appended=(attributes & _APPEND_TIME) != 0,
        producer=np.where(attributes & _TRANSACTIONAL, table["producer"], -1),
        records=table["records"],
        payloads=b"".join((*payloads, BEHIND)),
        starts=np.concatenate([[0], np.cumsum([len(each) for each in payloads])]).astype(np.int64),
    )


def _markers(data: bytes, place: int, table: Mapping[str, Ints], row: int) -> Iterator[Marker]:
    """Returns the end of a transaction: the control record's key is version and type (0 abort, 1
    commit).

    Unknown types (of a later Kafka) end nothing.
    """
    # length, attributes, two deltas, length of the key: a byte each, for a batch holds one record
    key = place + _HEADER + 5
    if key + 4 > _end(data, place):
        raise _damaged(data, place, "a control batch without its record")
    kind = int.from_bytes(data[key + 2 : key + 4], "big")
    if kind <= 1:
        yield Marker(int(table["base"][row]), int(table["producer"][row]), kind == 1)


def select_committed(
    found: Cut, aborted: Sequence[tuple[int, int]]
) -> npt.NDArray[np.bool_] | None:
    """Returns for each batch of a Fetch answer whether it stays; None if all do.

    aborted: producer and first offset of each aborted transaction, as the broker answers. Its
    batches lie between that offset and its abort marker in the log (KIP-98).
    """
    if not aborted:
        return None
    batches = found.batches
    to_come = sorted(aborted, key=lambda each: each[1])
    ends = [(marker.offset, marker.producer) for marker in found.markers if not marker.committed]
    open_now: set[int] = set()
    stays = np.ones(len(batches.base), np.bool_)
    rows = zip(
        batches.base.tolist(), batches.after.tolist(), batches.producer.tolist(), strict=True
    )
    for row, (base, after, producer) in enumerate(rows):
        while ends and ends[0][0] < base:
            offset, ended = ends.pop(0)
            _begin(open_now, to_come, before=offset)
            open_now.discard(ended)
        _begin(open_now, to_come, before=after)
        stays[row] = producer not in open_now
    return stays


def _begin(open_now: set[int], to_come: list[tuple[int, int]], *, before: int) -> None:
    while to_come and to_come[0][1] < before:
        open_now.add(to_come.pop(0)[0])
