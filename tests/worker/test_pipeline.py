"""A member's pipeline: ranges whose workers end without a word, a job that fails for all it is
given [43], thousands of partitions.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.errors import FleetError
from fleet.model import TopicPartition
from fleet.worker.member.assigning import Start
from fleet.worker.member.commit_metadata import PlannedRange, encode_plan
from fleet.worker.member.losses import Losses
from fleet.worker.member.member_state import EntrypointBackoff
from fleet.worker.member.pipeline import ALONE, is_poison, plan_pieces
from tests.support.batch_parts import worker_context
from tests.support.calls import calls_of
from tests.support.memory_kafka import MemoryKafka
from tests.worker.rig import REVISION, Process, grow, logs, reached


class Life:
    """Processes that follow each other over one log."""

    def __init__(self, kafka: MemoryKafka, *killers: tuple[int, int]) -> None:
        self.kafka = kafka
        self.killers = set(killers)
        self.kill_next = False
        """From outside, whatever it works on."""
        self.rows: list[tuple[int, int]] = []
        self.deaths = 0
        self.revision = REVISION
        self.last: Process | None = None
        self._died = False

    def work(self, rows: list[tuple[int, int]]) -> None:
        if self._died or self.kill_next or self.killers & set(rows):
            self._died, self.kill_next = True, False
            raise RuntimeError
        self.rows += rows

    def live(self) -> bool:
        """One process, to its death or until there is nothing to do; whether it lived."""
        process = self.last = Process(self.kafka, self.work, revision=self.revision)
        self._died = False
        while process.turn(dead=lambda: self._died):
            pass
        process.end()
        self.deaths += self._died
        return not self._died


def begun(after: int, tries: int, until: int | None = None, *, start: int = 0) -> PlannedRange:
    return PlannedRange(start=start, end=after, tries=tries, revision="r1", until=until)


@pytest.mark.parametrize(
    ("what", "end", "expected"),
    [
        pytest.param(None, 100, [(0, 100, 0, None)], id="new"),
        pytest.param(begun(100, 2), 100, [(0, 100, 2, None)], id="twice"),
        pytest.param(begun(4, 3), 4, [(n, n + 1, 0, 4) for n in range(4)], id="often enough"),
        pytest.param(begun(1, 3), 1, [(0, 1, 0, 1)], id="one offset, with others"),
        pytest.param(begun(1, 1, 3), 3, [(0, 1, 1, 3), (1, 2, 0, 3), (2, 3, 0, 3)], id="alone"),
        pytest.param(begun(2, 1, 3), 3, [(n, n + 1, 0, 3) for n in range(3)], id="a part"),
        pytest.param(begun(2, 0, 3), 3, [(0, 2, 0, 3), (2, 3, 0, 3)], id="a part that lived"),
        pytest.param(begun(10, 2), 20, [(0, 20, 0, None)], id="longer: another cut"),
        pytest.param(begun(50, 3, start=7), 100, [(0, 100, 0, None)], id="elsewhere"),
        pytest.param(begun(100, 3), 50, [(0, 50, 0, None)], id="a log that is shorter now"),
    ],
)
def test_how_a_range_is_begun(
    what: PlannedRange | None, end: int, expected: list[tuple[int, int, int, int | None]]
):
    """As a whole, or in pieces that tile it."""
    made = plan_pieces(0, end, what)
    assert [(p.start, p.end, p.tries, p.until) for p in made] == expected


def test_only_one_offset_alone_is_condemned():
    """Never a part of several, nor one that ran with others."""
    assert is_poison(begun(1, ALONE, 9))
    assert not any(map(is_poison, (begun(1, ALONE - 1, 9), begun(2, 99, 9), begun(1, 99))))


@pytest.mark.parametrize(
    ("ends", "killer", "deaths"),
    [
        pytest.param([1], (0, 0), 5, id="alone"),
        pytest.param([20, 20], (1, 13), 5, id="among 40 of two partitions"),
        pytest.param([1000], (0, 999), 6, id="among a thousand"),
    ],
)
def test_a_record_that_kills_is_found_and_named(
    ends: list[int], killer: tuple[int, int], deaths: int
):
    """After so many ends its partition stops there; all before it and beside it is committed."""
    life = Life(logs(*ends), killer)
    while not life.live():
        assert life.deaths < 20
    partition, at = killer
    assert life.deaths == deaths
    assert set(life.last.marks) == {partition}
    offset, error = life.last.marks[partition]
    assert offset == at
    assert "ended the worker's process at every try" in error
    assert f"{ALONE} times alone" in error
    assert reached(life.kafka) == {**dict(enumerate(ends)), partition: at}
    assert len(life.rows) == len(set(life.rows)), "nothing twice: a commit after each piece"


def test_kills_from_outside_condemn_nothing():
    """Three at one range: it is repeated in pieces. Whatever is killed then is only repeated."""
    life = Life(logs(40, 40))
    for _ in range(6):
        life.kill_next = True
        assert not life.live()
    assert life.live()
    assert not life.last.marks
    assert reached(life.kafka) == {0: 40, 1: 40}
    assert set(life.rows) == {(p, at) for p in (0, 1) for at in range(40)}


def test_kills_at_different_ranges_are_not_added_up():
    """Each commit begins the count anew."""
    life = Life(logs(0))
    for number in range(1, 9):
        grow(life.kafka, 0, number)
        life.kill_next = True
        assert not life.live()
        assert life.live()
    assert [at for _, at in life.rows] == list(range(8))
    assert len(life.last.begun[-1]) == 1


def test_other_code_begins_the_count_anew():
    """A revision that mends it is not told that the record kills."""
    life = Life(logs(1), (0, 0))
    for _ in range(4):
        assert not life.live()
    life.killers, life.revision = set(), "r2"
    assert life.live()
    assert life.rows == [(0, 0)]


def test_a_worker_that_lives_takes_the_count_back():
    """Handed over, out of time or out of grace period: none of that is a record's doing."""
    life = Life(logs(1))
    for _ in range(12):
        life.kill_next = True
        assert not life.live()
        process = Process(life.kafka, life.work)
        process.read()
        process.flow.step()
        process.flow.take_back_tries()
        process.end()
    assert life.live()
    assert not life.last.marks


def test_out_of_patience_is_no_kill():
    """A sink that is away for days: each worker ends with a word, and nothing is condemned."""

    def away(_: list[tuple[int, int]]) -> None:
        raise OSError

    kafka = logs(1)
    for _ in range(8):
        process = Process(kafka, away, grace=0.0)
        with pytest.raises(FleetError):
            process.run()
        process.end()
    life = Life(kafka)
    assert life.live()
    assert life.rows == [(0, 0)]


@pytest.mark.parametrize(
    ("partitions", "ends", "begun"),
    [
        pytest.param([0], {0: 6}, [{0: (5, 6)}], id="alone"),
        pytest.param([0], {0: 9}, [{0: (5, 6)}, {0: (6, 9)}], id="with what came meanwhile"),
        pytest.param([0, 1], {0: 6, 1: 6}, [{0: (5, 6), 1: (5, 6)}], id="two together"),
    ],
)
def test_what_is_lifted_is_tried_again_by_who_condemned_it(
    partitions: list[int], ends: dict[int, int], begun: list[dict[int, tuple[int, int]]]
):
    """Fault: it is condemned again, unread; two of them together end the batch thread."""
    suspect = (5, encode_plan(6, REVISION, tries=ALONE, until=6))
    kafka = logs(*[6] * len(partitions))
    kafka.commits.update(dict.fromkeys(kafka.parts, suspect))
    process = Process(kafka, lambda _: None)
    process.run()
    assert (sorted(process.marks), process.begun) == (partitions, [])
    for partition, end in ends.items():
        grow(kafka, partition, end)
    for each in partitions:
        process.lift(each)
    process.run()
    process.end()
    assert (process.marks, process.begun) == ({}, begun)
    assert reached(kafka) == ends


# --- an entrypoint that fails for all it is given [43] ----------------------------------------


class Sink:
    """Fails while it is down, and for bad records."""

    def __init__(self, *bad: tuple[int, int]) -> None:
        self.down = False
        self.bad = set(bad)
        self.rows: list[tuple[int, int]] = []

    def __call__(self, rows: list[tuple[int, int]]) -> None:
        """Write them, or fail."""
        if self.down or self.bad & set(rows):
            raise OSError("the sink is down" if self.down else "poison")
        self.rows += rows


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def kafka() -> MemoryKafka:
    return logs(3)


@pytest.fixture
def worker(kafka: MemoryKafka, sink: Sink) -> Iterator[Process]:
    made = Process(kafka, sink)
    yield made
    made.end()


def test_a_sink_that_is_down_stops_no_partition(worker: Process, kafka: MemoryKafka, sink: Sink):
    """Nothing in hand while it waits; once the sink is back every record is written once."""
    sink.down = True
    worker.run()
    assert not worker.marks
    assert not worker.flow.busy, "a drain has nothing to wait for"
    assert "for 0 s, next try in 1 s, at most for 600 s" in str(worker.state.error)
    assert worker.state.failing_since is not None
    calls = len(worker.begun)
    worker.run()
    assert len(worker.begun) == calls, "not before its time"
    sink.down = False
    worker.clock.sleep(1.0)
    worker.run()
    assert sink.rows == [(0, 0), (0, 1), (0, 2)]
    assert reached(kafka)[0] == 3
    assert (worker.state.error, worker.state.failing_since) == (None, None)
    assert not worker.state.failed


def test_a_later_record_is_the_witness():
    """A bad record that comes alone stops its partition once another one has gone well."""
    kafka = logs(1)
    worker = Process(kafka, Sink((0, 0)))
    worker.run()
    assert not worker.marks
    grow(kafka, 0, 3)
    worker.clock.sleep(1.0)
    worker.run()
    worker.end()
    assert worker.poison == {0: (0, "OSError: poison")}


def test_what_went_well_before_the_bad_record_is_committed(
    worker: Process, kafka: MemoryKafka, sink: Sink
):
    """So that nothing of it is written again when the quarantine is lifted."""
    grow(kafka, 0, 20)
    sink.bad = {(0, 13)}
    worker.run()
    assert worker.poison == {0: (13, "OSError: poison")}
    assert reached(kafka)[0] == 13
    assert sink.rows == [(0, at) for at in range(13)]
    assert worker.state.records == 13


@pytest.mark.parametrize(
    ("given", "begun"),
    [
        pytest.param({"position": 3}, [], id="its choice is committed, though nothing comes"),
        pytest.param(
            {"position": 1, "committed": 1, "planned": PlannedRange(start=1, end=2)},
            [{0: (1, 2)}, {0: (2, 3)}],
            id="the plan of its owner between is repeated exactly",
        ),
    ],
)
def test_a_partition_that_came_back_meanwhile_begins_as_it_was_given(
    worker: Process,
    kafka: MemoryKafka,
    sink: Sink,
    given: dict[str, Any],
    begun: list[dict[int, tuple[int, int]]],
):
    """The batch that fails was begun under its former token: it says nothing of it [42, 4]."""
    tp = TopicPartition("t", 0)

    def come_back() -> bool:
        worker.flow.lose([tp])
        worker.flow.start_partition(Start(tp=tp, topic_id="T", **given), reads=True)
        return False

    sink.down = True
    assert worker.turn(dead=come_back)
    worker.begun.clear()
    sink.down = False
    worker.clock.sleep(1.0)
    worker.run()
    assert worker.begun == begun
    assert reached(kafka)[0] == 3


def test_grace_has_an_end(worker: Process, sink: Sink):
    """It names the error, the time and the setting; nothing is stopped."""
    sink.down = True
    began = worker.clock.monotonic()

    def wait() -> None:
        while True:
            worker.run()
            worker.clock.sleep(1.0)

    told = r"is down .*; for 1\d min \(worker.entrypoint_failure_timeout is"
    with pytest.raises(FleetError, match=told):
        wait()
    assert 600 <= worker.clock.monotonic() - began < 640
    assert not worker.marks


def test_a_revision_on_trial_ends_at_once(kafka: MemoryKafka, sink: Sink):
    """Another one may have its slot then [22]."""
    sink.down = True
    worker = Process(kafka, sink, may_wait=False)
    with pytest.raises(FleetError, match="the entrypoint fails for every partition of the batch"):
        worker.run()
    worker.end()
    assert not worker.marks


def test_the_pauses_grow_and_begin_anew():
    """1, 2, 4 … 30 s; a batch that goes well ends it. The log has the error once."""
    clock = ManualClock()
    backoff = EntrypointBackoff(grace=600.0, may_wait=lambda: True, clock=clock)
    pauses, lines = [], []
    for _ in range(7):
        lines.append(backoff.failed("E")[1])
        began = clock.monotonic()
        while backoff.is_waiting:
            clock.sleep(0.5)
        pauses.append(clock.monotonic() - began)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert [": E" in each for each in lines] == [True] + [False] * 6
    assert lines[2] == "the entrypoint failed 3 times in 3 s, next try in 4 s"
    assert ": other" in backoff.failed("other")[1]
    backoff.record_success()
    assert not backoff.is_waiting
    whole, line = backoff.failed("E")
    assert whole == line
    assert "in 1 s" in line


# --- four times as many partitions cost four times as much, not sixteen times -----------------


def losses_of(worker: Process) -> Losses:
    """Over a member's pipeline; nothing else is asked."""
    worker.state.partitions = frozenset(worker.kafka.parts)
    return Losses(
        worker_context(clock=ManualClock()),
        consumer=None,
        pipeline=worker.flow,
        assigner=SimpleNamespace(ask_first=None, ask_ends=None),
        protocol=SimpleNamespace(restart=lambda *_: True),
        state=worker.state,
    )


def rewound(worker: Process, _losses: Losses) -> None:
    """What was read is not believed: a void commit, a batch that failed, a drain called off."""
    worker.flow.rewind(sorted(worker.state.partitions))


def assigned_again(worker: Process, losses: Losses) -> None:
    """One fetch stopped, and an eager member can only begin all again."""
    worker.flow.stopped.add(min(worker.state.partitions))
    losses.restart()


def lifted(worker: Process, losses: Losses) -> None:
    """The marks of all but a few."""
    marked = set(sorted(worker.state.partitions)[8:])
    worker.flow.stopped_partitions |= marked
    losses.lift(marked)
    assert not worker.flow.stopped_partitions


@pytest.mark.parametrize("work", [rewound, assigned_again, lifted])
def test_partitions_leave_a_prepared_batch_in_one_go(
    work: Callable[[Process, Losses], None], capsys: pytest.CaptureFixture[str]
):
    """And each is read again from what is committed, once."""

    def cost(partitions: int) -> int:
        worker = Process(logs(*[1] * partitions), print)
        losses = losses_of(worker)
        worker.read()
        worker.flow._prepare()
        before = dict(worker.flow.owned.all)
        calls = calls_of(work, worker, losses)
        again = {tp for tp, each in worker.flow.owned.all.items() if each is not before[tp]}
        positions = worker.reading.positions()
        assert len(again) >= partitions - 8
        assert all(positions[tp] == 0 for tp in again)
        worker.end()
        return calls

    few, many = cost(100), cost(400)
    assert many < 5 * few
    capsys.readouterr()
