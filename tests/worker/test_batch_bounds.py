"""What a dropped or a half-read partition leaves of a batch's bounds."""

from fleet.model import TopicPartition
from fleet.worker.batch.batches import Buffer

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Record:
    """As librdkafka hands it out: its offset, and the length of its value."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        """Its place."""
        return self._offset

    def __len__(self) -> int:
        return 100


def buffer() -> Buffer:
    made = Buffer(limit=10, max_wait=1.0, max_bytes=100_000)
    for tp in (P0, P1):
        made.add_partition(tp, topic_id="T", start=0, replay_to=None)
    return made


def test_a_dropped_partition_makes_room():
    """In records and in bytes: else a batch would close for what it no longer holds."""
    made = buffer()
    made.add(P0, [Record(n) for n in range(9)], 0.0)
    made.add(P1, [Record(0)], 0.0)
    assert made.full
    made.drop([P0])
    assert not made.full
    assert made.room == 9
    made.drop([P1])
    assert made.room == 10
    assert made.close(100.0) is None


def test_read_to_the_end_with_records_waiting_is_no_gap():
    """Their offsets are committed with their batch, not before it."""
    made = buffer()
    made.add(P0, [Record(0), Record(1)], 0.0)
    made.end_at(P0, 5)
    made.end_at(P1, 3)
    assert made.gaps() == {P1: (0, 3)}
    assert [(tp, start) for tp, _, start, _ in made.starts()] == [(P0, 0), (P1, 3)]


def test_a_planned_range_is_no_gap():
    """A predecessor's cut is repeated, though it may be markers alone."""
    made = Buffer(limit=10, max_wait=1.0)
    made.add_partition(P0, topic_id="T", start=0, replay_to=4)
    made.end_at(P0, 6)
    assert made.gaps() == {}
