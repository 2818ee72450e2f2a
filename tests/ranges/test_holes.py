"""What compaction took of a range is told with its place; what nobody is given is no gap."""

from fleet.kafka_source.pieces import OffsetRange
from fleet.kafka_source.tasks import read_ranges
from tests.support.written_log import WrittenLog, WrittenPart, batch, marker, of

WHERE = ("t", 0)


def told(part, since, start=0, end=100, sizes=()):
    """Stretches and how many offsets are missing in each, and the offsets that were read."""
    lost, read = [], []
    for made in read_ranges(
        WrittenLog({WHERE: part}, sizes),
        [OffsetRange(*WHERE, start, end)],
        read_timeout=5.0,
        make=lambda pieces: ("read", [int(o) for piece in pieces for o in piece.records.offset]),
        gone=lambda each, count: ("lost", (each.start, each.end, count)),
        since=since,
    ):
        (lost if made[0] == "lost" else read).append(made[1])
    return lost, [offset for part in read for offset in part]


def compacted():
    """0 to 9 whole; of 10 to 29 four are left; 40 to 44, the end of a transaction at 45."""
    part = WrittenPart(aborted=[(7, 40)])
    part.add(batch(0, of(*[b"x"] * 10)), 10)
    left = dict(zip((2, 3, 9, 15), of(*[b"x"] * 4), strict=True))
    part.add(batch(10, left, after=30), 30)
    part.add(batch(40, of(*[b"y"] * 5), producer=7), 45)
    part.add(marker(45, 7, committed=False), 46)
    part.add(batch(46, of(b"z")), 47)
    return part


def test_missing_offsets_are_told_once_with_their_number():
    """In one answer or in several; between batches and inside of one."""
    lost, read = told(compacted(), {WHERE: 0}, end=47)
    assert lost == [(10, 40, 26)]
    assert read == [*range(10), 12, 13, 19, 25, 46]
    lost, _ = told(compacted(), {WHERE: 0}, end=47, sizes=[1, 1, 1, 1, 1])
    assert lost == [(10, 30, 16), (30, 40, 10)]


def test_only_behind_what_was_there_when_recording_began():
    """And only in the range that was asked for."""
    assert told(compacted(), {WHERE: 20}, end=47)[0] == [(20, 40, 19)]
    assert told(compacted(), {WHERE: 40}, end=47)[0] == []
    assert told(compacted(), {}, end=47)[0] == []
    assert told(compacted(), {WHERE: 0}, start=12, end=14)[0] == []
    assert told(compacted(), {WHERE: 0}, start=12, end=18)[0] == [(14, 18, 4)]
