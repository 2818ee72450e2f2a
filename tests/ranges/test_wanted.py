"""Of what a fetch brings, a task keeps what is in its range: neither before nor behind it."""

import pytest

from fleet.kafka_source.pieces import OffsetRange
from fleet.kafka_source.tasks import _wanted


class Record:
    """Its offset."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        """As librdkafka's."""
        return self._offset


@pytest.mark.parametrize(
    ("fetched", "kept"),
    [((3, 8), [5, 6, 7]), ((3, 20), [5, 6, 7, 8, 9]), ((5, 10), [5, 6, 7, 8, 9]), ((1, 5), [])],
)
def test_a_fetch_may_begin_before_the_range(fetched, kept):
    """A whole batch of the log comes, compressed; a pause may bring records again."""
    todo = {("t", 0): OffsetRange("t", 0, 5, 10)}
    found = _wanted([Record(n) for n in range(*fetched)], ("t", 0), todo)
    assert [record.offset() for record in found] == kept
