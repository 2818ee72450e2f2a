"""Record batches as columns: what somebody else wrote, and what nobody would write.

kafka-python reads the same bytes record by record. Faults: a field at the wrong place, a codec
mixed up, damage read as records, damage that ends the process or never ends.
"""

import random
import struct
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka.errors import KafkaError
from kafka.record import MemoryRecords
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from fleet.kafka_source import record_batches
from fleet.kafka_source.arrow_arrays import sliced
from fleet.kafka_source.record_batches import Batches, Cut, DamagedBatch, cut
from fleet.kafka_source.record_fields import _marks, _numbers, fields
from tests.support.sampling import LONG
from tests.support.written_log import NOW, Record, batch, marker, of, signed

DAMAGED = 100_000 if LONG else 1_000
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def rows(found: Cut) -> list[Row]:
    """What we read."""
    read = fields(found.batches)
    headers = read.headers or [()] * len(read.offset)
    named = [tuple((key.decode(), value) for key, value in each) for each in headers]
    keys = sliced(read.data, read.key_at, read.key_size)
    values = sliced(read.data, read.value_at, read.value_size)
    assert keys.to_pylist() == read.key_list()
    columns = (read.offset, read.timestamp, keys, values)
    return list(zip(*(each.tolist() for each in columns), named, strict=True))


def rows_of_others(data: bytes) -> list[Row]:
    """What kafka-python reads."""
    found: list[Any] = []
    records = MemoryRecords(data)
    while (each := records.next_batch()) is not None:
        if not getattr(each, "is_control_batch", False):
            found += each
    return [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in found]


def records_of(rnd: random.Random, most: int) -> list[Record]:
    """Null, empty, short and long keys and values; headers on some."""

    def some() -> bytes | None:
        kind = rnd.random()
        return None if kind < 0.1 else rnd.randbytes(rnd.choice((0, 1, 63, 64, 200, 9000)))

    def headers() -> list[tuple[str, bytes | None]]:
        return [(rnd.choice(("", "a", "key")), some()) for _ in range(rnd.randrange(4))]

    return [(some(), some(), headers() if rnd.random() < 0.2 else []) for _ in range(most)]


@pytest.mark.parametrize("seed", range(12))
def test_as_kafka_python_reads_them(seed: int):
    """Several batches, whole and the beginning of one more."""
    rnd = random.Random(seed)
    data, base = b"", rnd.randrange(1 << 40)
    for _ in range(rnd.randrange(1, 8)):
        records = records_of(rnd, rnd.randrange(1, 60))
        data += batch(base, records, codec=rnd.choice((0, 0, 1, 4)), producer=rnd.choice((-1, 5)))
        base += len(records)
        if rnd.random() < 0.3:
            data += marker(base, 5, committed=rnd.random() < 0.5)
            base += 1
    found = cut(data + batch(base, of(b"cut short"))[: rnd.randrange(1, 60)])
    assert rows(found) == rows_of_others(data)
    assert (found.next, found.damaged) == (base, None)


def test_records_of_every_length():
    """Where the number that tells it takes one, two, three or four bytes."""
    lengths = (*range(200), *range(8170, 8200), (1 << 20) - 1, 1 << 20)
    records: list[Record] = [(None, bytes(length), []) for length in lengths]
    data = batch(7, records)
    assert rows(cut(data)) == rows_of_others(data)


@pytest.mark.parametrize("library", ["cramjam", "Arrow"])
@pytest.mark.parametrize("codec", ["gzip", "snappy", "snappy in Java's frames", "lz4", "zstd"])
def test_every_codec_by_either_library(codec: str, library: str, monkeypatch):
    """Packed by Arrow, the way that producers do; many records, so that no first buffer does."""
    if library == "Arrow":
        monkeypatch.setitem(sys.modules, "cramjam", None)
    plain = batch(3, of(b"x" * 500_000, b"y"))
    data = packed_by_arrow(plain, codec)
    assert rows(cut(data)) == rows_of_others(plain)
    monkeypatch.setattr(record_batches, "MOST", 1 << 18)
    assert "cannot be unpacked" in str(cut(data).damaged)
    cut_short = cut(of_length(data[:-9]))
    assert "cannot be unpacked" in str(cut_short.damaged)


def packed_by_arrow(plain: bytes, codec: str) -> bytes:
    """The batch with its payload packed."""
    if codec.startswith("snappy"):
        packed = pa.Codec("snappy").compress(plain[61:], asbytes=True)
        if codec != "snappy":
            packed = b"\x82SNAPPY\x00" + bytes(8) + struct.pack(">i", len(packed)) + packed
    else:
        with pa.BufferOutputStream() as out, pa.CompressedOutputStream(out, codec) as packing:
            packing.write(plain[61:])
            packing.close()
            packed = out.getvalue().to_pybytes()
    told = bytearray(plain[:61] + packed)
    told[22] |= {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[codec.partition(" ")[0]]
    return of_length(bytes(told))


def of_length(data: bytes) -> bytes:
    """One batch whose header tells the length that it has, and its checksum."""
    return signed(data[:8] + struct.pack(">i", len(data) - 12) + data[12:])


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1], ids=["plain", "gzip"])
def test_messages_from_before_batches(magic: int, codec: int):
    """Alone and before batches; a damaged one is told."""
    made = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for offset in range(5):
        made.append(offset, NOW + offset, None if offset == 2 else b"k", b"v%d" % offset)
    old = bytes(made.build())
    wanted = rows_of_others(old)
    assert len(wanted) == 5
    found = cut(old + batch(5, of(b"x")))
    times = [None if each[1] == -1 else each[1] for each in rows(found)]
    assert times == [each[1] for each in wanted] + [NOW]
    assert [each[::2] for each in rows(found)[:5]] == [each[::2] for each in wanted]
    assert found.next == 6
    assert cut(old[:20] + bytes([old[20] ^ 1]) + old[21:]).damaged is not None


def test_transactions_ends_and_leaders():
    """Who wrote, and where a transaction ended how."""
    data = batch(0, of(b"a"), producer=5, epoch=2) + batch(1, of(b"b", b"c"), epoch=3)
    found = cut(data + marker(3, 5, committed=True) + marker(4, 6, committed=False))
    assert found.batches.producer.tolist() == [5, -1]
    assert found.batches.epoch.tolist() == [2, 3]
    assert [tuple(each) for each in found.markers] == [(3, 5, True), (4, 6, False)]
    assert found.next == 5


def test_reading_goes_on_behind_what_is_damaged():
    """Where its length can be believed: what came before is given, and where the next begins."""
    good, bad, behind = (batch(base, of(b"x")) for base in (0, 1, 2))
    found = cut(good + bad[:-1] + b"\xff" + behind)
    assert [row[0] for row in rows(found)] == [0]
    assert found.damaged is not None
    assert (found.damaged.offset, found.damaged.after) == (1, 2)


def number(value: int) -> bytes:
    """As records have them: zigzag, seven bits a byte."""
    left, made = ((value << 1) ^ (value >> 63)) & (1 << 64) - 1, bytearray()
    while left >= 0x80:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*made, left])


@pytest.mark.parametrize("odd", [-(2**63), -2, 2**31, 2**62, 2**63 - 2, 2**63 - 1])
@pytest.mark.parametrize("field", ["offset", "key", "value", "headers"])
def test_a_number_that_fits_nothing_is_damage(field: str, odd: int):
    """However large: no sum with it is a place in the bytes, or an offset of the batch."""
    told = {"offset": 0, "key": -1, "value": -1, "headers": 0, field: odd}
    body = bytes(1) + number(0) + b"".join(map(number, told.values()))
    payload = number(len(body)) + body
    one = [np.array([each], np.int64) for each in (5, 6, 0, 0, 0, 0, -1, 1)]
    made = Batches(*one, payload, np.array([0, len(payload)], np.int64))  # type: ignore[arg-type]
    with pytest.raises(DamagedBatch):
        fields(made._replace(appended=np.array([False])))


def attributed(found: Cut) -> bool:
    """Whether a record's attributes, a byte that nothing uses, are what kafka-python misreads.

    It takes them for a number of variable length, and a bit that says "more" shifts all fields.
    """
    data = found.batches.payloads
    octets = np.frombuffer(data + bytes(80), np.uint8)
    _, at = _numbers(octets, _marks(found.batches, data + bytes(80)))
    return bool((octets[at] & 0x80).any())


def test_no_damage_is_read_as_records():
    """One to three bytes of a batch changed, with the checksum that was there and with a new one.

    Whatever is read then is what kafka-python reads, too.
    """
    rnd = random.Random(7)
    read = 0
    for number in range(DAMAGED):
        codec = rnd.choice((0, 0, 0, 1, 4))
        data = bytearray(batch(100, records_of(rnd, rnd.randrange(1, 5)), codec=codec, producer=9))
        for _ in range(rnd.randrange(1, 4)):
            data[rnd.randrange(12, min(len(data), 200))] = rnd.randrange(256)
        sealed = number % 2 == 0
        found = cut(signed(bytes(data)) if sealed else bytes(data))
        try:
            ours = rows(found)
        except (DamagedBatch, UnicodeDecodeError):
            continue
        if found.damaged is not None or found.next is None or not ours or attributed(found):
            continue
        read += 1
        try:
            others = rows_of_others(bytes(data))
        except (KafkaError, ValueError, IndexError, struct.error):
            continue
        assert ours == others, (number, bytes(data))
    assert read


def test_what_unpacks_to_much_is_cut_behind_a_batch(monkeypatch: pytest.MonkeyPatch):
    """With what ended before the next one, and no damage behind it."""
    monkeypatch.setattr(record_batches, "_ENOUGH", 1)
    data = batch(0, of(b"a")) + marker(1, 5, committed=True) + batch(2, of(b"b"))
    found = cut(data + marker(3, 5, committed=True) + bytes(80))
    assert (found.next, found.damaged, [each.offset for each in found.markers]) == (2, None, [1])
    assert [each[0] for each in rows(found)] == [0]
