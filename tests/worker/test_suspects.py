"""How many records may be put aside, to the record; what fails with others only is no poison."""

import pytest

from fleet.worker.batch.batches import InlineBatch
from tests.worker.test_poison_search import Entry, batch, examined, found


@pytest.mark.parametrize(("bad", "letters"), [(2, [0, 9]), (3, [])])
def test_the_room_is_exact(bad, letters):
    """One more than there is room for stops the partition."""
    entry = Entry(*[(0, at) for at in (0, 9, 18)[:bad]])
    result = examined(batch(p0=list(range(30)), p1=[0]), entry, most=2)
    assert found(result) == [(0, at) for at in letters]
    assert bool(result.failed) is not bool(letters)


class Pair(Entry):
    """Fails where two records come together."""

    def __call__(self, part: InlineBatch) -> str | None:
        """One call."""
        rows = [r["offset"] for r in part.table().to_pylist() if r["partition"] == 0]
        self.calls.append((len(rows), len(part.ranges)))
        return "E" if len(rows) > 1 else None


def test_what_fails_together_alone_is_no_poison():
    """Each record went well by itself: nothing of it may be put aside."""
    result = examined(batch(p0=[0, 1], p1=[0]), Pair())
    assert (found(result), dict(result.failed), result.ill) == ([], {}, None)
