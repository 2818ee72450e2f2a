"""The offsets topic is made again, or cut by an unclean leader: what it says now is told."""

import threading
from typing import Any

import numpy as np

from fleet.clock import ManualClock, SystemClock
from fleet.kafka_source.batch_fetcher import OUT_OF_RANGE, Fetched
from fleet.kafka_source.list_offsets import EARLIEST, ListedOffset
from fleet.lag.lag_columns import NONE
from fleet.log import encoding
from fleet.log.readers.tail import Tail
from fleet.model import TopicPartition
from tests.support.waiting import until
from tests.support.written_log import NOW, batch

Record = tuple[bytes, bytes | None]
TP = TopicPartition("t", 0)


def committed(offset: int) -> Record:
    key = encoding.offset_commit_key("g", "t", 0)
    return key, encoding.offset_commit(offset, commit_timestamp=NOW)


def generation(number: int, *members: str) -> Record:
    made = [encoding.WrittenMember(m, None, m, "/h", 300_000, 45_000, b"", b"") for m in members]
    value = encoding.group_metadata(
        protocol_type="consumer", generation=number, protocol="range", leader=members[0],
        current_state_timestamp=NOW, members=made,
    )  # fmt: skip
    return encoding.key(2, "g"), value


class Log:
    """The one partition of an offsets topic; what a fetcher answers of it."""

    problem = None

    def __init__(self, *records: Record) -> None:
        self.records = list(records)

    def fetch(self, positions: dict[Any, int], _: float) -> list[Fetched]:
        """As BatchFetcher.fetch."""
        ((where, at),) = positions.items()
        if at > len(self.records):
            return [Fetched(where, b"", OUT_OF_RANGE, ())]
        found = [(*record, ()) for record in self.records[at:]]
        return [Fetched(where, batch(at, found), 0, ())] if found else []

    def listed(self, wanted: dict[Any, int], _: float) -> dict[Any, ListedOffset]:
        """As BatchFetcher.listed."""
        ends = {EARLIEST: 0}
        return {w: ListedOffset(ends.get(at, len(self.records))) for w, at in wanted.items()}


def reading(log: Log) -> tuple[Tail, Any]:
    """A tail of it, and a turn of its thread."""
    tail = Tail({"bootstrap.servers": "memory:1"}, cluster="c", clock=ManualClock(NOW / 1000))
    asked: Any = log
    assert tail._begin(asked, [0])

    def turn() -> None:
        tail._look(asked, [0])
        tail._arrive()
        tail._fetch(asked, [0])
        tail._arrive()

    return tail, turn


def test_a_log_that_was_made_again_is_read_as_it_is():
    """Members and generation of the new one, no rewind, and each rebalance once."""
    old = [generation(n + 1, *["a", "b"][: 1 + n % 2]) for n in range(10)]
    log = Log(*(committed(100 + n) for n in range(50)), *old)
    tail, turn = reading(log)
    for _ in range(3):
        turn()
    assert tail.summaries()["g"].generation == 10
    before = len(tail.rebalances())
    assert before
    assert tail.age() is not None

    log.records = [committed(7), generation(1, "x"), generation(2, "x", "y")]
    for _ in range(4):
        turn()
    told = tail.summaries()["g"]
    assert (told.generation, told.members) == (2, 2)
    assert tail.committed("g")[TP][0] == 7
    assert {m.member_id for m in tail._replays["g"].members()} == {"x", "y"}
    kept = tail.commits()
    assert np.all(kept.peak == NONE)
    assert len(tail.rebalances()) > before
    assert tail.age() is not None

    records = len(tail.rebalances())
    log.records = log.records[:2]  # cut, and written on as it was
    for _ in range(3):
        turn()
    log.records.append(generation(2, "x", "y"))
    for _ in range(3):
        turn()
    assert tail.summaries()["g"].generation == 2
    assert len(tail.rebalances()) == records


class CutLater(Log):
    """Once it told an end that it has no more."""

    asked = 0

    def listed(self, wanted: dict[Any, int], timeout: float) -> dict[Any, ListedOffset]:
        self.asked += 1
        found = super().listed(wanted, timeout)
        return {w: ListedOffset(100) for w in found} if self.asked == 2 else found


def test_an_end_that_is_never_reached_is_waited_for_no_longer():
    """A leader with less data took over after the end was asked for: the new end counts."""
    log: Any = CutLater(*(committed(n) for n in range(40)))
    tail, _ = reading(log)
    tail._clock = SystemClock()
    thread = threading.Thread(target=tail._follow, args=(log, [0]))
    thread.start()
    try:
        until(lambda: log.asked > 1 and tail.age() is not None, "its end", most=20, every=0.05)
    finally:
        tail._ending.set()
        tail._wake.set()
        thread.join()
    assert tail.committed("g")[TP][0] == 39


def test_what_was_deleted_from_the_front_is_gone_and_nothing_else():
    """Retention of a busy topic: the view goes on behind it."""
    log = Log(*(committed(n) for n in range(10)), generation(1, "a"))
    tail, turn = reading(log)
    turn()

    class Shortened(Log):
        """Begins behind what is to be read next."""

        def fetch(self, positions: dict[Any, int], _: float) -> list[Fetched]:
            ((where, at),) = positions.items()
            return super().fetch(positions, _) if at >= 20 else [Fetched(where, b"", 1, ())]

        def listed(self, wanted: dict[Any, int], _: float) -> dict[Any, ListedOffset]:
            return {w: ListedOffset(20 if at == EARLIEST else 21) for w, at in wanted.items()}

    short: Any = Shortened(*[committed(3)] * 20, committed(20))
    for _ in range(2):
        tail._fetch(short, [0])
    assert tail.committed("g")[TP][0] == 20
    assert tail.summaries()["g"].members == 1
