"""An offsets topic that was recreated, or cut by an unclean leader: what it says now holds.

Faults: members and a generation of the old log are shown, rebalances of the new one are dropped or
told twice, positions seem to go back, and the view never is current again.
"""

from collections.abc import Sequence

from fleet.clock import ManualClock
from fleet.kafka_source.batch_fetcher import FetchedPart
from fleet.kafka_source.bounds import ListedOffset, Where
from fleet.lag.lag_columns import NONE
from fleet.log import encoding
from fleet.log.readers.log_view import KeptRebalances
from fleet.log.readers.tail import Tail
from fleet.log.records import record_key
from fleet.model.rebalances import Cause
from tests.support.rebalances import rebalance
from tests.support.written_log import NOW, Record, WrittenLog, WrittenPart, batch

PLACE = ("__consumer_offsets", 0)


def commit(offset: int, group: str = "g") -> Record:
    key = record_key(encoding.OFFSET_COMMIT, group, "t", 0)
    return key, encoding.offset_commit(offset, commit_timestamp=NOW), ()


def generation(number: int, members: Sequence[str], group: str = "g", at: int = NOW) -> Record:
    written = [encoding.WrittenMember(m, None, m, "/h", 300_000, 45_000, b"", b"") for m in members]
    value = encoding.group_metadata(
        protocol_type="consumer",
        generation=number,
        protocol="range",
        leader=members[0],
        state_timestamp_ms=at,
        members=written,
    )
    return record_key(2, group), value, ()


class Log(WrittenLog):
    """One partition, which can be recreated, and a tail that has read it to its end."""

    def __init__(self, *records: Record) -> None:
        super().__init__({PLACE: WrittenPart()})
        self.clock = ManualClock(NOW / 1000)
        self.tail = Tail({"bootstrap.servers": "memory:1"}, cluster="c", clock=self.clock)
        self.write(*records)
        assert self.tail._begin(self, [0])

    def write(self, *records: Record, first: int = 0, timestamp: int = NOW) -> None:
        """From now on it holds these."""
        part = self.parts[PLACE]
        part.batches, part.first = [], first
        part.add(batch(first, records, timestamp=timestamp), first + len(records))

    def read(self) -> None:
        """Look and fetch, as the tail's thread does."""
        for _ in range(4):
            self.tail._look(self, [0])
            self.tail._fetch(self, [0])
            self.tail._arrive()


def numbers(tail: Tail) -> list[int]:
    return [each.number for each in tail.rebalances()]


def test_a_log_that_was_made_again_is_read_anew():
    """Members, positions and rebalances are the new log's; what the old one told stays counted."""
    log = Log(
        *(commit(100 + n) for n in range(50)),
        *(generation(n + 1, ["a", "b"][: 1 + n % 2]) for n in range(10)),
        commit(5, "gone"),
        generation(1, ["z"], "gone"),
    )
    log.read()
    assert log.tail.summaries()["g"] == ("classic", 10, 2)
    assert log.tail.groups() == {"g", "gone"}
    counted = len(log.tail.rebalances(group="g"))
    later, members = NOW + 60_000, ["x", "y", "w"]
    again = [commit(7), *(generation(n + 1, members[: n + 1], at=later) for n in range(3))]
    log.write(*again, timestamp=later)
    log.clock.sleep(60.0)
    log.tail._fetch(log, [0])
    assert log.tail.age() is None
    assert log.tail.summaries() == {}
    log.read()
    assert log.tail.age() == 0.0
    assert log.tail.summaries() == {"g": ("classic", 3, 3)}
    assert log.tail.groups() == {"g"}
    assert [at for at, _ in log.tail.committed("g").values()] == [7]
    seen = log.tail.commits()
    assert (seen.peak.tolist(), seen.fell.tolist()) == ([NONE], [NONE])
    new = [each for each in log.tail.rebalances(group="g") if each.ended_at > NOW / 1000 + 59]
    assert [each.number for each in new] == [1, 2, 3]
    assert new[0].cause is Cause.CREATED
    assert len(log.tail.rebalances(group="g")) == counted + 3
    assert sum(log.tail.totals()["g"].by_cause.values()) == counted + 3


def test_a_log_that_was_cut_tells_nothing_twice():
    """An unclean leader has the beginning; what comes then counts, and so do the old rebalances."""
    first = [commit(10), *(generation(n, ["a", "b"][: 1 + n % 2]) for n in range(1, 7))]
    log = Log(*first)
    log.read()
    counted, joined = numbers(log.tail), len(log.tail.memberships(group="g"))
    assert counted == [1, 2, 3, 4, 5, 6]
    log.write(*first[:4])
    log.read()
    assert log.tail.summaries() == {"g": ("classic", 3, 2)}
    assert numbers(log.tail) == counted
    assert len(log.tail.memberships(group="g")) == joined
    part, after = log.parts[PLACE], generation(4, ["c"])
    part.add(batch(4, [after], timestamp=NOW + 60_000), 5)
    log.read()
    assert numbers(log.tail) == [*counted, 4]
    assert sum(log.tail.totals()["g"].by_cause.values()) == 7


def test_a_log_that_lost_its_front_goes_on():
    """Records that a slow reader had not read are gone; what it knows still holds."""
    log = Log(commit(10), generation(1, ["a"]))
    log.read()
    log.write(commit(12, "other"), first=9)
    log.read()
    assert log.tail.summaries() == {"g": ("classic", 1, 1)}
    assert log.tail.groups() == {"g", "other"}


class Cutting(Log):
    """It is cut after its end was asked for, and a second passes with each fetch."""

    turns = 5

    def fetch(self, positions: dict[Where, int], timeout: float) -> list[FetchedPart]:
        """The tail's thread ends where nobody waits any more, or after some of them."""
        self.clock.sleep(1.0)
        self.turns -= 1
        if not self.turns or self.tail._answered:
            self.tail._ending.set()
            self.tail._wake.set()
        return super().fetch(positions, timeout)

    def list_offsets(self, wanted: dict[Where, int], timeout: float) -> dict[Where, ListedOffset]:
        found = super().list_offsets(wanted, timeout)
        if self.tail._asked and self.parts[PLACE].end > 40:
            self.write(*(commit(n) for n in range(40)))
        return found


def test_an_end_that_fell_is_waited_for_no_more():
    """The end was asked for before the log was cut: the view is current at the end that it has."""
    log = Cutting(*(commit(n) for n in range(100)))
    log.tail._asked += 1  # as somebody who waits
    log.tail._wake.set()
    log.tail._follow(log, [0])
    assert log.tail._next == {0: 40}
    assert (log.tail._answered, log.tail.problem) == (1, None)
    age = log.tail.age()
    assert age <= 4.0


def test_a_broker_that_goes_away_while_an_end_is_waited_for_is_told():
    """Not only once the end is reached, which may be never."""
    log = Cutting(*(commit(n) for n in range(40)))
    log.sizes = [0] * 9  # nothing comes
    log.tail._wake.set()
    answers = log.list_offsets
    asked: list[int] = []

    def list_offsets(wanted: dict[Where, int], timeout: float) -> dict[Where, ListedOffset]:
        asked.append(1)
        log.problem = "broker 0 does not answer"
        return answers(wanted, timeout) if len(asked) == 1 else {}

    log.list_offsets = list_offsets
    log.tail._follow(log, [0])
    assert "broker 0 does not answer" in (log.tail.problem or "")


def test_what_was_told_and_forgotten_is_not_counted_again():
    """Rebalances older than all that are kept, of a log that is read a second time."""
    kept, now = KeptRebalances(keep=100.0, most=2), 1_000.0
    rows = [rebalance(n, now + n) for n in range(1, 5)]
    for each in rows:
        kept.add(each, now)
    kept.cut({rows[0].group: int((now + 4) * 1000)}, now)
    for each in (*rows, rebalance(5, now + 5)):
        kept.add(each, now + 5)
    assert [each.number for each in kept.rebalances(None, None, None, None)] == [4, 5]
    assert sum(kept.totals()[rows[0].group].by_cause.values()) == 5
    kept.prune(now + 200, frozenset())
    assert kept.totals() == {}
