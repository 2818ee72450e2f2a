"""The switch between the two ways, seen from the seam: what is paused, asked, named, sought.

Kafka is a stand-in here: what it answers, and when, is the point.
"""

from concurrent.futures import Future
from typing import Any

from fleet.clock import SystemClock
from fleet.model import TopicPartition
from fleet.worker.batch.adaptive_reader import AdaptiveReader
from fleet.worker.batch.batches import Prepared
from fleet.worker.batch.ranges import NamedBatch
from fleet.worker.events import Events
from tests.support.batch_parts import worker_context
from tests.support.declared import group_spec, settings_of
from tests.support.memory_kafka import Message

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Clock(SystemClock):
    """Moves by hand."""

    at = 100.0

    def monotonic(self) -> float:
        """As set."""
        return self.at


class Kafka:
    """Both clients: one partition's (first, end), and what was asked of it."""

    def __init__(self) -> None:
        self.log: dict[TopicPartition, tuple[int, int]] = {P0: (0, 0), P1: (0, 0)}
        self.sought: dict[TopicPartition, int] = {}
        self.looks = 0
        self.answers = True
        self.records: list[Any] = []

    def consume(self, count: int, timeout: float) -> list[Any]:
        """Once what it was given; else no record: these tests are about offsets."""
        found, self.records = self.records, []
        return found

    def seek(self, at: Any) -> None:
        """Remember."""
        self.sought[TopicPartition(at.topic, at.partition)] = at.offset

    def get_watermark_offsets(self, tp: Any, *, cached: bool) -> tuple[int, int]:
        """As the last fetch told."""
        assert cached
        return self.log[TopicPartition(tp.topic, tp.partition)]

    def list_topics(self, topic: str, timeout: float) -> None:
        """Learn anew who leads."""

    def list_offsets(self, asked: Any, **_: Any) -> dict[Any, Any]:
        """Answered at once: (first), then (stable end), then (end)."""
        self.looks += 1
        answers = {}
        for tp in asked:
            future: Future[Any] = Future()
            if not self.answers:
                answers[tp] = future
                continue
            offset = self.log[TopicPartition(tp.topic, tp.partition)][self.looks % 3 != 1]
            future.set_result(type("Result", (), {"offset": offset}))
            answers[tp] = future
        return answers


class Memory:
    """Takes every named batch: what a Columnar is to a reading."""

    is_on, asked, learnt = True, False, 0
    most_records: int | None = 10_000

    def prove(self) -> None:
        """Spark reads here."""

    poll = prove

    def gather(self, named: NamedBatch) -> NamedBatch:
        """Nothing is gathered."""
        return named


class Bench(Events):
    """A reading of two partitions with batches of 100 inline and 1000 by ranges."""

    def __init__(
        self, mode: str = "auto", *, ranges: int = 1000, memory: Memory | None = None
    ) -> None:
        self.clock, self.kafka = Clock(), Kafka()
        super().__init__(worker="w", clock=self.clock, environ={})
        self.told: list[str] = []
        self.said: list[str] = []
        self.closed: list[Prepared] = []
        batch = {"inline": 100, "ranges": ranges, "max_wait": 0.2, "max_seconds": 10.0}
        settings = settings_of(group_spec(worker={"reading": mode, "batch": batch}))
        context = worker_context(settings, clock=self.clock, events=self)
        self.reading = AdaptiveReader(context, self.kafka, columnar=memory)
        for tp in (P0, P1):
            self.reading.add_partition(tp, topic_id="T", start=0, replay_to=None)

    def log_rarely(self, sentence: str, **_: Any) -> None:
        """Note it."""
        self.said.append(sentence)

    def emit(self, event: str, **facts: Any) -> None:
        """Note which way is read."""
        self.told.append(facts["way"])

    def make_again(self, *tps: TopicPartition) -> None:
        """Their topic has another id now; its end is not known to the consumer yet."""
        for tp in tps or (P0, P1):
            self.reading.add_partition(tp, topic_id="T2", start=0, replay_to=None)

    def turns(self, count: int = 4) -> tuple[list[str], list[Any]]:
        """Some turns of the consumer thread: ranges of the batches closed, errors."""
        closed: list[str] = []
        errors: list[Any] = []
        for _ in range(count):
            self.clock.at += 0.3
            errors += self.reading.take(self.kafka, timeout=0.0)
            batch = self.reading.close(self.clock.at)
            if batch is not None:
                self.closed.append(batch)
                closed += [each.id for each in batch.ranges]
        return closed, errors

    def sizes(self, *seconds: float) -> list[int]:
        """Of as many batches as times are given, each of which took so long."""
        sizes = []
        for each in seconds:
            assert any(self.turns(1)[0] for _ in range(20)), "no batch was due"
            sizes.append(self.closed[-1].records)
            self.reading.record_duration(self.closed[-1], each)
        return sizes


def test_there_and_back():
    """A backlog pauses all and is named; once little waits the member seeks behind it."""
    bench = Bench()
    bench.kafka.log = {P0: (0, 250), P1: (0, 49)}
    assert bench.turns() == ([], [])
    assert not bench.reading.to_pause(), "299 records wait: inline"
    bench.kafka.log[P1] = (0, 50)
    closed, _ = bench.turns(3)
    assert bench.told == ["ranges"]
    assert bench.reading.to_pause() == {P0, P1}
    assert closed == ["T-0-0-250", "T-1-0-50"]
    bench.kafka.log = {P0: (0, 350), P1: (0, 51)}
    assert bench.turns()[0] == ["T-0-250-350", "T-1-50-51"], "101 wait: still by ranges"
    bench.kafka.log[P0] = (0, 450)
    assert bench.turns() == ([], [])
    assert bench.told == ["ranges", "inline"]
    assert bench.kafka.sought == {P0: 350, P1: 51}
    assert not bench.reading.to_pause()


def test_a_backlog_begins_with_no_batch_inline():
    """With the first records it is seen how many wait, and all of them are named."""
    bench = Bench()
    bench.turns(1)
    bench.kafka.log[P0] = (0, 400)
    bench.kafka.records = [Message(P0, 0, value=b"x")]
    bench.clock.at += 0.01
    assert bench.reading.take(bench.kafka, timeout=0.0) == ()
    assert bench.reading.close(bench.clock.at) is None
    assert bench.told == ["ranges"]
    assert bench.turns(3)[0][0] == "T-0-0-300"


def test_a_backlog_within_a_stream_fills_no_batch_inline():
    """What fills one between two looks is named instead, with all that waits."""
    bench = Bench()
    bench.kafka.records = [Message(P0, at, value=b"x") for at in range(5)]
    bench.kafka.log = {P0: (0, 5), P1: (0, 0)}
    assert bench.turns(3)[0] == ["T-0-0-5"]
    bench.kafka.log[P0] = (0, 405)
    bench.kafka.records = [Message(P0, at, value=b"x") for at in range(5, 105)]
    bench.clock.at += 0.01
    assert bench.reading.take(bench.kafka, timeout=0.0) == ()
    assert bench.reading.close(bench.clock.at) is None
    assert bench.told == ["ranges"]
    assert bench.turns(3)[0][0] == "T-0-5-305"


def test_a_backlog_behind_a_predecessors_batch():
    """That one is repeated as it was, alone, though it fits inline and what fills it is named."""
    bench = Bench()
    bench.turns(1)
    bench.kafka.log = {P0: (0, 900), P1: (0, 900)}
    for tp in (P0, P1):
        bench.reading.add_partition(tp, topic_id="T", start=0, replay_to=75)
    for tp, count in ((P0, 90), (P1, 60)):
        bench.kafka.records += [Message(tp, at, value=b"x") for at in range(count)]
    bench.clock.at += 0.01
    assert bench.reading.take(bench.kafka, timeout=0.0) == ()
    assert bench.told == ["ranges"]
    closed, _ = bench.turns(4)
    assert closed[:2] == ["T-0-0-75", "T-1-0-75"]
    assert closed[2:4] == ["T-0-75-225", "T-1-75-225"]


def test_by_column_the_rest_is_gathered_while_spark_is_busy():
    """As soon as it is as much as an inline batch, not when Spark has nothing to do any more."""
    bench = Bench("ranges", memory=Memory())
    bench.kafka.log = {P0: (0, 400), P1: (0, 99)}
    sizes = []
    for _ in range(6):
        bench.clock.at += 0.3
        bench.reading.take(bench.kafka, timeout=0.0)
        batch = bench.reading.close(bench.clock.at, busy=True)
        sizes += [batch.records] if batch is not None else []
    assert sizes == [300, 199]
    bench.kafka.log[P0] = (0, 499)
    for _ in range(6):
        bench.clock.at += 0.3
        bench.reading.take(bench.kafka, timeout=0.0)
        assert bench.reading.close(bench.clock.at, busy=True) is None, "99 wait for more"


def test_by_column_a_batch_is_three_times_the_one_in_hand():
    """So much is gathered meanwhile; how fast the job is, an earlier membership has learnt."""
    memory = Memory()
    first = Bench("ranges", ranges=8000, memory=memory)
    first.kafka.log = {P0: (0, 90_000), P1: (0, 0)}
    assert first.sizes(0.5, 0.5) == [300, 300], "nothing is named for a Spark that waits"
    assert memory.learnt == 2400
    bench = Bench("ranges", ranges=8000, memory=memory)
    bench.kafka.log = first.kafka.log
    sizes = []
    for busy in (False, False, True, True, True, True):
        bench.clock.at += 0.3
        bench.reading.take(bench.kafka, timeout=0.0)
        batch = bench.reading.close(bench.clock.at, busy=busy)
        sizes += [batch.records] if batch is not None else []
    assert sizes == [300, 900, 2400, 2400]
    memory.most_records = 700
    assert bench.sizes(0.5, 0.5, 0.5)[1:] == [300, 300], "at rest"
    bench.clock.at += 0.3
    bench.reading.take(bench.kafka, timeout=0.0)
    large = bench.reading.close(bench.clock.at, busy=True)
    assert large is not None
    assert large.records == 700, "what memory holds"
    slow = Bench("ranges", ranges=8000, memory=Memory())
    slow.kafka.log = first.kafka.log
    assert slow.sizes(60.0, 60.0) == [300, 50], "a job that is slow has its own bound"


def test_a_batch_is_as_large_as_the_job_is_fast():
    """It begins with three inline batches, grows while quick, shrinks where it is too slow."""
    bench = Bench("ranges")
    bench.kafka.log = {P0: (0, 9000), P1: (0, 0)}
    assert bench.sizes(0.5, 3.0, 20.0, 1.0) == [300, 1000, 1000, 500]


def records(first: int) -> list[Any]:
    """An inline batch of P0."""
    return [Message(P0, at, value=b"x") for at in range(first, first + 100)]


def test_a_slow_job_stays_inline():
    """Where an inline batch is over its time, reading is not what holds the job up."""
    bench = Bench()
    bench.kafka.records = records(0)
    assert bench.sizes(60.0) == [100]
    bench.kafka.log = {P0: (0, 9000), P1: (0, 0)}
    bench.turns()
    assert bench.told == []


def test_a_batch_by_ranges_that_was_slow_once_goes_back_inline():
    """At once, not when the backlog is gone; and once a batch is quick, the rest is named again."""
    bench = Bench()
    bench.kafka.log = {P0: (0, 90_000), P1: (0, 0)}
    assert bench.sizes(0.5, 0.5, 200.0) == [300, 1000, 1000]
    bench.turns(3)
    assert bench.told == ["ranges", "inline"]
    read = sum(each.records for each in bench.closed)
    assert bench.kafka.sought[P0] == read
    bench.kafka.records = records(read)
    assert bench.sizes(0.5) == [100]
    assert bench.sizes(0.5, 0.5) == [300, 1000]
    assert bench.told == ["ranges", "inline", "ranges"]


def test_batches_by_ranges_grow_again_however_small_they_became():
    """Also below what one inline holds, for as long as no answer says how much waits."""
    bench = Bench()
    bench.kafka.log = {P0: (0, 9000), P1: (0, 0)}
    assert bench.sizes(60.0) == [300]
    bench.kafka.answers = False
    assert bench.sizes(0.5, 0.5, 0.5) == [50, 400, 1000]


# --- a topic that is recreated ---------------------------------------------------------------


def test_the_end_of_a_topic_that_was_made_again_is_no_backlog():
    """Until something has come of it: the consumer tells the former topic's end."""
    bench = Bench()
    bench.kafka.log = {P0: (0, 400), P1: (0, 0)}
    bench.make_again()
    assert bench.turns() == ([], [])
    assert bench.reading.silent() == {P0: 0, P1: 0}
    bench.kafka.records = [Message(P0, 0, value=b"x")]
    bench.turns(1)
    assert (bench.told, bench.reading.silent()) == (["ranges"], {}), "what is named is not fetched"


def test_nor_while_other_records_fill_the_batch():
    """Fault: what is paused cannot have come."""
    bench = Bench()
    bench.kafka.log = {P0: (0, 300), P1: (0, 100)}
    bench.make_again(P0)
    bench.reading.add_partition(TopicPartition("other", 0), topic_id="O", start=0, replay_to=None)
    bench.kafka.log[TopicPartition("other", 0)] = (0, 100)
    bench.kafka.records = [Message(TopicPartition("other", 0), at, value=b"x") for at in range(100)]
    bench.reading.take(bench.kafka, timeout=0.0)
    assert bench.told == []
    assert bench.reading.silent() == {}


def test_partitions_that_are_the_first_of_their_topic_are_believed():
    """Of a backlog the first look may have heard of one partition alone."""
    bench = Bench()
    bench.kafka.log = {P0: (0, 1), P1: (0, 300)}
    bench.reading.add_partition(P1, topic_id="orders", start=0, replay_to=None)
    bench.kafka.records = [Message(P0, 0, value=b"x")]
    bench.turns(1)
    assert bench.told == ["ranges"]
    assert bench.reading.silent() == {}
