"""Tokens are given once, and a count of beginnings is of one range alone."""

from fleet.model import TopicPartition
from fleet.worker.batch.batches import InlineBatch
from fleet.worker.member.crash_search import pieces
from fleet.worker.offsets.commit_metadata import Begun, Ownership
from tests.worker.test_poison_search import Entry, batch, examined, found

P0 = TopicPartition("t", 0)


def test_a_token_is_never_given_again():
    """What came back is another assignment: a batch of the one before may not be committed [2]."""
    owned = Ownership()
    tokens = [owned.gain(P0), owned.gain(P0), owned.gain(P0)]
    owned.lose([P0])
    assert not owned.holds(P0, tokens[-1])
    tokens.append(owned.gain(P0))
    assert len(set(tokens)) == 4
    assert [owned.holds(P0, token) for token in tokens] == [False, False, False, True]


def test_a_longer_range_was_not_begun_as_often():
    """Its predecessor's cut was another one: what ended there says nothing of the rest."""
    begun = Begun(start=0, next=10, tries=2, revision="r")
    (same,) = pieces(0, 10, begun)
    (longer,) = pieces(0, 20, begun)
    assert (same.tries, longer.tries) == (2, 0)


class Passing(Entry):
    """One record fails twice alone, and then goes well."""

    alone = 0

    def __call__(self, part: InlineBatch) -> str | None:
        """One call."""
        rows = [(r["partition"], r["offset"]) for r in part.table().to_pylist()]
        self.calls.append((len(rows), len(part.ranges)))
        if rows == [(0, 5)]:
            self.alone += 1
            return "E" if self.alone <= 2 else None
        return "E" if (0, 5) in rows else None


def test_a_suspect_is_asked_after_every_rest():
    """It is poison where it fails each time, not most times."""
    result = examined(batch(p0=list(range(10)), p1=[0]), Passing())
    assert (found(result), result.ill) == ([], None)
