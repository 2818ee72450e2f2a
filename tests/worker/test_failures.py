"""What the batch thread does with each way in which a batch may fail.

Spark's session is a stand-in here: what fails, and when, is the point.
"""

import queue
import threading
from collections.abc import Callable, Iterator

import grpc
import pyarrow as pa
import pytest
from pyspark.errors.exceptions.connect import PythonException, SparkConnectGrpcException

from fleet.clock import SystemClock
from fleet.errors import Unreachable
from fleet.kafka_source.columns import SCHEMA
from fleet.kafka_source.failures import TRUNCATED, UNREAD, RangeDamaged
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchContext, BatchRange
from fleet.worker.batch.batches import InlineBatch
from fleet.worker.batch.executor import BatchDone, BatchRunner, InterruptReason
from fleet.worker.batch.ranges import NamedBatch
from fleet.worker.batch.spark_link import SparkLink, is_spark_failure
from tests.support.batch_parts import connected, runner_of

CLOCK = SystemClock()


class Bench:
    """A batch thread with an entrypoint of the test's."""

    def __init__(self) -> None:
        self.calls: list[BatchContext] = []
        self.answer: Callable[[BatchContext], None] = lambda _: None
        self.is_ours = self.renewed = True
        self.link = connected()
        self.done: queue.SimpleQueue[BatchDone] = queue.SimpleQueue()
        self.runner = self.made(batch_timeout=60.0)

    def made(self, *, batch_timeout: float) -> BatchRunner:

        def process(df, context) -> None:
            self.calls.append(context)
            self.answer(context)

        return runner_of(
            self.link,
            process,
            batch_timeout=batch_timeout,
            is_ours=lambda: self.is_ours,
            renew=lambda: self.renewed,
        )

    def run(self, *partitions: int) -> BatchDone:
        """Run a batch of these partitions."""
        self.runner.submit(batch(*partitions), self.done.put)
        return self.done.get(timeout=120)

    def watched(self, runner: BatchRunner) -> BatchDone:
        """Run a batch that takes longer than it may, under the watchdog."""
        runner.submit(batch(0), self.done.put)
        while self.done.empty():
            assert runner.watch() is None
            CLOCK.sleep(0.02)
        return self.done.get()


def batch(*partitions: int) -> InlineBatch:
    ranges = [BatchRange(topic="t", topic_id="T", partition=p, start=0, end=10) for p in partitions]
    rows = [{"offset": at} for at in range(10)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    return InlineBatch(ranges=tuple(ranges), tables={each.tp: table for each in ranges})


def unavailable() -> Exception:
    return SparkConnectGrpcException(message="StatusCode.UNAVAILABLE: connection refused")


def brought_by_grpc() -> Exception:
    """As PySpark's Connect client raises every failure of a query."""
    try:
        try:
            raise grpc.RpcError
        except grpc.RpcError:
            raise SparkConnectGrpcException(
                message="cast", errorClass="CAST_INVALID_INPUT"
            ) from None
    except SparkConnectGrpcException as error:
        return error


class Refused(grpc.RpcError):
    """What gRPC raises where nothing listens; its own class is private, made of a live call."""


Refused.__module__ = "grpc._channel"


def refused_to(module: str) -> Exception:
    """The same, from a call that `module` made through gRPC's own."""
    calls = {"__name__": "grpc._channel", "Refused": Refused}
    exec("def call():\n    raise Refused('StatusCode.UNAVAILABLE')", calls)
    client = {"__name__": module, "call": calls["call"]}
    exec("def ask():\n    call()", client)
    try:
        client["ask"]()
    except grpc.RpcError as error:
        return error
    raise AssertionError


def chained(error: Exception, cause: Exception) -> Exception:
    """As `raise error from cause`."""
    error.__cause__ = cause
    return error


def in_a_task() -> Exception:
    """What a UDF raised, as Spark quotes it."""
    return PythonException(
        message="An exception was thrown from the Python worker: grpc.RpcError: "
        "StatusCode.UNAVAILABLE: failed to connect to the shop's database",
        grpc_status_code=grpc.StatusCode.INTERNAL,
    )


def unread(condition: str) -> Exception:
    return SparkConnectGrpcException(
        message=f"Traceback …\nRangeUnread: [{condition}] why", errorClass="PYTHON_EXCEPTION"
    )


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.runner.stop()


def failing(bench: Bench, times: int, error: Callable[[], Exception]) -> None:
    def answer(context: BatchContext) -> None:
        if len(bench.calls) <= times:
            raise error()

    bench.answer = answer


def test_an_exception_is_tried_three_times(bench: Bench):
    """The third attempt may succeed; the ranges stay the same."""
    failing(bench, 2, lambda: ValueError("not yet"))
    done = bench.run(0)
    assert (done.failed, done.attempts) == ({}, 3)
    assert [each.attempt for each in bench.calls] == [1, 2, 3]
    assert len({each.ranges for each in bench.calls}) == 1


def test_a_spark_failure_is_no_attempt(bench: Bench):
    """Connected again, the same ranges run again; three attempts are still there [9]."""
    failing(bench, 3, unavailable)
    told, connect = [], bench.link.connect

    def connecting(**how):
        told.append(bench.runner.spark_away)
        return connect(**how)

    bench.link.connect = connecting
    done = bench.run(0)
    assert (done.failed, done.fatal, bench.link.connected) == ({}, None, 4)
    assert [str(each).partition(";")[0] for each in told] == ["Spark does not answer"] * 3
    assert bench.runner.spark_away is None


def test_ranges_that_cannot_be_read_are_no_poison(bench: Bench):
    """Records that are gone void the batch; a silent broker is waited for [7]."""
    failing(bench, 1, lambda: unread(UNREAD))
    done = bench.run(0)
    assert (done.failed, done.fatal, done.void, len(bench.calls)) == ({}, None, False, 2)
    failing(bench, 99, lambda: unread(TRUNCATED))
    done = bench.run(0)
    assert (done.failed, done.fatal, done.void, len(bench.calls)) == ({}, None, True, 3)


def test_a_condemned_record_is_no_stop_of_the_log(bench: Bench):
    """A new revision tries it; Fault: `skip` reads its partition from the log's start again."""
    bench.runner.set_aside(batch(0), "its processes ended", bench.done.put)
    done = bench.done.get(timeout=120)
    assert (set(done.failed), done.attempts > 0) == ({TopicPartition("t", 0)}, True)


def named(*partitions: int) -> NamedBatch:
    """The same ranges, to be read by Spark's tasks."""
    return NamedBatch(ranges=batch(*partitions).ranges, read=lambda _, ranges: ranges)


def test_what_lies_before_damage_is_run(bench: Bench):
    """Believed the second time; each partition of the batch is cut at its own damage."""

    def answer(context: BatchContext) -> None:
        for each in context.ranges:
            if each.partition < 2 and each.end > each.partition * 5:
                raise RangeDamaged("t", each.partition, each.partition * 5, 7, "its checksum")

    bench.answer = answer
    bench.runner.submit(named(0, 1, 2), bench.done.put)
    done = bench.done.get(timeout=120)
    assert (done.failed, done.fatal, done.void, done.unhealthy) == ({}, None, False, None)
    assert {tp.partition: at for tp, at in done.stops.items()} == {0: 0, 1: 5}
    ran = [[(each.partition, each.end) for each in call.ranges] for call in bench.calls]
    assert ran[-1] == [(1, 5), (2, 10)]
    assert len(ran) == 5, "two tries of the whole, two without 0, one of what is left"


def test_damage_that_a_second_try_does_not_find_is_none(bench: Bench):
    """A leader may have moved to a broker that holds the batch whole."""
    failing(bench, 1, lambda: RangeDamaged("t", 0, 3, 7, "its checksum"))
    bench.runner.submit(named(0), bench.done.put)
    done = bench.done.get(timeout=120)
    assert (done.stops, done.fatal, len(bench.calls)) == ({}, None, 2)


def test_damage_of_a_batch_that_is_void_stops_nothing(bench: Bench):
    """What lies before it was not run; Fault: it is committed and never read."""

    def answer(context: BatchContext) -> None:
        bench.is_ours = context.ranges[0].end > 5
        raise RangeDamaged("t", 0, 5, 7, "its checksum") if bench.is_ours else ValueError

    bench.answer = answer
    bench.runner.submit(named(0), bench.done.put)
    done = bench.done.get(timeout=120)
    assert (done.void, done.stops) == (True, {})


def test_damage_of_another_topic_ends_the_worker(bench: Bench):
    """The job reads ranges of its own: nothing of this batch can be left out for that."""
    failing(bench, 9, lambda: RangeDamaged("other", 0, 3, 7, "its checksum"))
    bench.runner.submit(named(0), bench.done.put)
    assert "other-0: offsets 3 to 6 cannot be read" in str(bench.done.get(timeout=120).fatal)


def test_spark_that_keeps_failing_ends_the_worker(bench: Bench):
    """Bounded: a batch that kills Spark every time is not run for ever."""
    failing(bench, 99, unavailable)
    done = bench.run(0)
    assert "Spark failed 6 times" in (done.fatal or "")


@pytest.mark.parametrize("lost", ["is_ours", "renewed"])
def test_a_lost_slot_voids_instead_of_running_again(bench: Bench, lost: str):
    """A successor released our session, or while we connected again: the batch is its now [3]."""
    setattr(bench, lost, False)
    failing(bench, 99, unavailable)
    done = bench.run(0)
    assert done.void
    assert len(bench.calls) == 1


@pytest.mark.parametrize("lost", ["slot", "partitions"])
def test_what_is_lost_while_a_batch_hung_is_not_written_for(bench: Bench, lost: str):
    """Stopped beyond its lease or session: its successor runs the batch [3]."""
    runner = bench.made(batch_timeout=0.2)

    def answer(context: BatchContext) -> None:
        assert bench.link.session.interrupted.wait(120)
        bench.is_ours = lost != "slot"
        if lost == "partitions":
            threading.Timer(0.1, lambda: runner.interrupt(InterruptReason.VOID)).start()
        raise RuntimeError("canceled")

    bench.answer = answer
    done = bench.watched(runner)
    assert (done.void, done.failed, done.fatal, len(bench.calls)) == (True, {}, None, 1)
    runner.stop()


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_slot_lost_is_nobodys_poison(bench: Bench, attempts: int):
    """An error of a job whose slot is another's: neither run again nor marked, after a rest too."""

    def answer(context: BatchContext) -> None:
        bench.is_ours = context.attempt < attempts
        raise ValueError("bad record")

    def lost_meanwhile(seconds: float) -> bool:
        bench.is_ours = False
        return False

    bench.answer = answer
    if attempts > 1:
        bench.runner._wake.wait = lost_meanwhile  # type: ignore[method-assign, assignment]
    done = bench.run(0)
    assert (done.void, done.failed, len(bench.calls)) == (True, {}, 1)


def test_batch_timeout_interrupts_once_more_then_ends(bench: Bench):
    """Over its time a batch is interrupted and run once more; the second time is the end [5]."""
    runner = bench.made(batch_timeout=0.2)

    def answer(context: BatchContext) -> None:
        session = bench.link.session
        assert session.interrupted.wait(120)
        session.interrupted.clear()
        raise RuntimeError("canceled")

    bench.answer = answer
    done = bench.watched(runner)
    assert "longer than batch_timeout (0.2 s) twice" in (done.fatal or "")
    assert len(bench.calls) == 2
    runner.stop()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(unavailable(), True, id="connection"),
        pytest.param(
            SparkConnectGrpcException(
                message="[INVALID_HANDLE.SESSION_CLOSED] gone",
                errorClass="INVALID_HANDLE.SESSION_CLOSED",
            ),
            True,
            id="session",
        ),
        pytest.param(ValueError("StatusCode.UNAVAILABLE"), False, id="the user's own"),
        pytest.param(
            SparkConnectGrpcException(message="no such column", errorClass="UNRESOLVED_COLUMN"),
            False,
            id="a wrong query",
        ),
        pytest.param(brought_by_grpc(), False, id="a query's failure that gRPC brought"),
        pytest.param(refused_to("shop.stock"), False, id="a database of the user's"),
        pytest.param(refused_to("pyspark.sql.connect.client.core"), True, id="Spark's channel"),
        pytest.param(
            chained(KeyError("stock"), refused_to("shop.stock")), False, id="the user's, as a cause"
        ),
        pytest.param(chained(RuntimeError("save"), unavailable()), True, id="Spark's, as a cause"),
        pytest.param(in_a_task(), False, id="the user's in a task"),
        pytest.param(
            SparkConnectGrpcException(
                message="RPC deadline exceeded", grpc_status_code=grpc.StatusCode.DEADLINE_EXCEEDED
            ),
            True,
            id="no answer in time",
        ),
    ],
)
def test_whose_failure(error: Exception, expected: bool):
    """Spark's own failures are told from those of the user's code and data."""
    assert is_spark_failure(error) is expected


class Mute(Exception):
    """An error of somebody's that cannot even be told."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    "error",
    [SystemExit(2), KeyboardInterrupt(), GeneratorExit(), Mute()],
    ids=lambda error: type(error).__name__,
)
def test_code_that_ends_its_thread_fails_like_any_other(bench: Bench, error: BaseException):
    """A library's `sys.exit()` is the entrypoint's failure, and the batch thread goes on."""

    def answer(context: BatchContext) -> None:
        if {each.partition for each in context.ranges} & {1}:
            raise error

    bench.answer = answer
    done = bench.run(0, 1)
    assert {tp.partition for tp in done.failed} == {1}
    assert done.fatal is None
    bench.answer = lambda _: None
    assert not bench.run(0, 1).failed
    assert bench.runner.watch() is None


def test_a_batch_thread_that_ended_ends_the_worker(bench: Bench):
    """Nobody would run a batch any more, and the member would heartbeat on [40]."""
    bench.runner._work.put(None)
    bench.runner._thread.join(10)
    assert "no batch is processed any more" in str(bench.runner.watch())


# --- what runs too long is interrupted, also where the first interrupt finds nothing ----------


class Busy:
    """A session of a server that begins late: what is not begun yet, no interrupt ends."""

    def __init__(self, late: int) -> None:
        self._late = late
        self.asked = 0
        self._ended = threading.Event()

    def interruptAll(self) -> None:  # noqa: N802 - PySpark's name
        """As PySpark's: nothing to interrupt is no error."""
        self.asked += 1
        if self.asked > self._late:
            self._ended.set()

    def work(self) -> None:
        """A query that ends only when it is interrupted."""
        assert self._ended.wait(120)
        raise RuntimeError("OPERATION_CANCELED")


def link(session: Busy) -> SparkLink:
    made = SparkLink(where=lambda: None, clock=SystemClock(), app="test")
    made._session = session
    return made


@pytest.mark.parametrize("late", [0, 1])
def test_it_is_interrupted_until_it_ends(late: int):
    session = Busy(late)
    with pytest.raises(Unreachable, match="too long"), link(session).bounded(0.05, "too long"):
        session.work()
    assert session.asked == late + 1
    assert not any(each.name == "bound" for each in threading.enumerate())


def test_what_ends_in_time_is_left_alone():
    session = Busy(0)
    with link(session).bounded(60.0, "too long"):
        pass
    with pytest.raises(ValueError, match="its own"), link(session).bounded(60.0, "too long"):
        raise ValueError("its own")
    assert session.asked == 0
