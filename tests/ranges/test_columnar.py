"""When a named batch goes by column, what bounds it, and what becomes of its file.

Spark and Kafka are stand-ins here: what they answer, and when, is the point.
"""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleet.kafka_source.columns import SCHEMA
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchRange
from fleet.worker.batch import columnar
from fleet.worker.batch.columnar import Columnar, ColumnarBatch, find_obstacle
from fleet.worker.batch.executor import InterruptReason, RunningBatch, VoidBatch
from fleet.worker.batch.ranges import NamedBatch
from tests.support.live_folders import folders_below
from tests.support.waiting import until

HALF = 1 << 20
"""Bytes of a batch: half of what all may take."""


def named(records: int = 100, partitions: int = 2) -> NamedBatch:
    """A batch of so many offsets in each partition; its frame by ranges is the word `ranges`."""
    ranges = tuple(
        BatchRange(topic="orders", topic_id="T", partition=n, start=0, end=records)
        for n in range(partitions)
    )
    return NamedBatch(ranges=ranges, read=lambda *_: "ranges")


def table(records: int, size: int = 10) -> pa.Table:
    """Records that do not shrink."""
    numbers = range(records)
    columns = {name: pa.nulls(records, SCHEMA.field(name).type) for name in SCHEMA.names}
    noise = random.Random(1)
    columns["value"] = pa.array([noise.randbytes(size) for _ in numbers], pa.binary())
    columns["offset"] = pa.array(numbers, pa.int64())
    return pa.table(columns, schema=SCHEMA)


@dataclass
class Spark:
    """The batch thread, which answers at once, and Spark, which says what it was told to."""

    answer: str | None = None
    error: Exception | None = None
    asked: int = 0

    def with_session(self, function: Callable[[Any], str | None]) -> "Future[str | None]":
        """See BatchRunner."""
        self.asked += 1
        future: Future[str | None] = Future()
        if self.error is None:
            future.set_result(self.answer)
        else:
            future.set_exception(self.error)
        return future


@dataclass
class Bench:
    """A Columnar over a folder, and what it told."""

    folder: Path
    spark: Spark = field(default_factory=Spark)
    tables: Callable[[Callable[[], None]], Iterator[Any]] = lambda _: iter([table(100)])
    told: list[str | None] = field(default_factory=list)
    most: int = 2 * HALF
    cores: int = 1

    def __post_init__(self) -> None:
        self.columnar = Columnar(
            most=self.most,
            read=lambda _, check: self.tables(check),
            sessions=self.spark,
            report_change=self.told.append,
            cores=self.cores,
            environ={"FLEET_SHM": str(self.folder)},
        )

    def proven(self) -> "Bench":
        """Spark has said that it reads the folder."""
        self.columnar.prove()
        self.columnar.poll()
        return self

    def gather(self, batch: NamedBatch | None = None) -> ColumnarBatch:
        """A batch that goes by column, at its end."""
        gathered = self.columnar.gather(batch or named())
        assert isinstance(gathered, ColumnarBatch)
        until(lambda: gathered.gathered(0.01), "the end of the gathering")
        self.columnar.poll()
        return gathered

    @property
    def files(self) -> list[Path]:
        """Folders of batches, which are numbered."""
        return [each for each in folders_below(self.folder) if each.name.isdecimal()]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Where a file's frame is its path."""
    monkeypatch.setattr(columnar, "frame_of_files", lambda _, path: path)
    return Bench(tmp_path)


def test_batches_go_by_ranges_until_spark_has_answered(bench: Bench):
    """The first one is named while Spark is asked, once; from its answer on they are gathered."""
    first = named()
    assert bench.columnar.gather(first) is first
    assert not bench.columnar.is_on
    batch = bench.gather()
    assert bench.columnar.is_on
    assert bench.told == [None]
    assert (batch.ranges, batch.records) == (first.ranges, 200)
    path = batch.frame(None)
    assert pq.read_table(path).equals(table(100))
    assert bench.spark.asked == 1


def test_what_spark_cannot_see_is_not_tried_again(bench: Bench):
    """A cluster's tasks, another machine, another container: ranges, and one line that says so."""
    bench.spark.answer = "Spark's tasks may run on other machines"
    for _ in range(3):
        batch = named()
        assert bench.columnar.gather(batch) is batch
    assert bench.told == [bench.spark.answer]
    assert bench.spark.asked == 1
    assert not bench.files


def test_a_spark_that_fails_is_asked_again(bench: Bench):
    """Its server was away; that says nothing about the machine."""
    bench.spark.error = RuntimeError("gone")
    bench.columnar.gather(named())
    bench.columnar.gather(named())
    bench.spark.error = None
    bench.columnar.gather(named())
    assert isinstance(bench.columnar.gather(named()), ColumnarBatch)
    assert bench.spark.asked == 3


def test_as_many_files_as_spark_may_have_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of about one size, each partition's records in their order; on many cores ranges go on."""
    monkeypatch.setattr(columnar, "frame_of_files", lambda _, path: path)
    bench = Bench(tmp_path, cores=3, tables=lambda _: iter([table(100), table(1), table(50)]))
    batch = bench.proven().gather()
    path = batch.frame(None)
    parts = [pq.read_table(each)["offset"].to_pylist() for each in sorted(path.iterdir())]
    assert [len(each) for each in parts] == [34 + 1 + 17, 34 + 17, 32 + 16]
    assert parts[0] == [*range(34), 0, *range(17)]
    many = Bench(tmp_path, cores=16)
    other = named()
    assert many.columnar.gather(other) is other
    assert many.told == ["on 16 cores Spark's tasks read faster than a thread gathers"]
    assert not many.spark.asked


def test_nobody_wants_it(tmp_path: Path):
    """`batch.memory: 0`, or no place for it."""
    for bench in (Bench(tmp_path, most=0), Bench(tmp_path / "absent")):
        batch = named()
        assert bench.columnar.gather(batch) is batch
        assert not bench.spark.asked
        assert not bench.told


def test_a_batch_that_is_not_wanted_leaves_nothing(bench: Bench):
    """Finished or in the making: whoever lets go of it has removed its file."""
    batch = bench.proven().gather()
    assert len(bench.files) == 1
    del batch
    assert not bench.files
    goes_on = threading.Event()

    def slowly(_: Callable[[], None]) -> Iterator[Any]:
        yield table(100)
        goes_on.wait(10)
        yield table(100)
        raise AssertionError("it was read on")

    bench.tables = slowly
    running = bench.columnar.gather(named())
    until(lambda: len(bench.files) == 1, "a file in the making")
    del running
    goes_on.set()
    until(lambda: not bench.files, "it to be gone")
    bench.columnar.poll()
    assert bench.told == [None], "that it was given up is nobody's failure"


def test_no_third_batch_in_memory(bench: Bench):
    """Two take all that may be taken; the next goes by ranges until one is gone."""
    first, second = bench.proven().gather(), bench.gather()
    third = named()
    assert bench.columnar.gather(third) is third
    assert bench.told == [None, "2 batches are in memory already"]
    del first
    fourth = bench.gather()
    assert bench.told[-1] is None
    assert second.frame(None) != fourth.frame(None)


def test_a_batch_that_is_too_large_goes_by_ranges_and_the_next_is_smaller(bench: Bench):
    """Its bytes are bounded while it is written; what a record took bounds the next one."""
    bench.tables = lambda _: iter([table(600, 1000) for _ in range(9)])
    batch = bench.proven().gather()
    assert batch.frame(None) == "ranges"
    assert not bench.files
    assert bench.told == [None, "the batch takes more bytes than half of batch.memory"]
    fits = bench.columnar.most_records
    assert fits is not None
    assert 0.7 * HALF < fits * 1000 < 0.85 * HALF


def test_what_cannot_be_gathered_is_read_by_tasks(bench: Bench):
    """No broker, a damaged record, no room: told, and Spark's tasks have their own ways to fail."""

    def fails(_: Callable[[], None]) -> Iterator[Any]:
        yield table(10)
        raise OSError(28, "No space left on device")

    bench.tables = fails
    batch = bench.proven().gather()
    assert batch.frame(None) == "ranges"
    assert not bench.files
    assert bench.told == [None, "[Errno 28] No space left on device"]
    bench.tables = lambda _: iter([table(10)])
    assert bench.gather().frame(None) != "ranges", "the next one may go well"
    assert bench.told[2:] == [None]


def test_a_second_attempt_does_not_trust_the_file(bench: Bench):
    """It may be what failed. Spark is asked anew before another batch is gathered."""
    batch = bench.proven().gather()
    assert batch.frame(None) != "ranges"
    assert batch.frame(None) == "ranges"
    bench.columnar.poll()
    assert not bench.columnar.is_on
    other = named()
    assert bench.columnar.gather(other) is other
    assert bench.spark.asked == 2
    assert isinstance(bench.columnar.gather(named()), ColumnarBatch)


def test_whatever_is_cut_anew_is_read_from_the_log(bench: Bench):
    """Narrowing, quarantine, dead letters and partitions that go see named ranges alone."""
    batch = bench.proven().gather()
    tp = TopicPartition("orders", 1)
    kept = batch.only([tp])
    assert [each.tp for each in kept.ranges] == [tp]
    assert kept.frame(None) == "ranges"
    part = batch.part(tp, 3, 5)
    assert [(each.start, each.end) for each in part.ranges] == [(3, 5)]
    assert part.frame(None) == "ranges"


def test_no_room_is_told_before_anything_is_written(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """A container's /dev/shm has 64 MiB."""
    bench.proven()
    monkeypatch.setattr(columnar, "free_bytes", lambda _: HALF - 1)
    batch = named()
    assert bench.columnar.gather(batch) is batch
    assert bench.told == [f"{bench.folder} has 0 MiB left, a batch may take 1"]


def test_a_batch_that_waits_for_its_records_can_be_interrupted(bench: Bench):
    """Its partitions are lost, or it is over its time: the batch thread hears of it."""
    goes_on = threading.Event()

    def never(_: Callable[[], None]) -> Iterator[Any]:
        goes_on.wait(10)
        yield table(1)

    bench.tables = never
    batch = bench.proven().columnar.gather(named())
    running = RunningBatch("tag")
    threading.Timer(0.1, lambda: setattr(running, "why", InterruptReason.VOID)).start()
    with pytest.raises(VoidBatch):
        running.await_records(batch)
    goes_on.set()


@pytest.mark.parametrize(
    ("master", "word", "why"),
    [
        ("local[2]", "ours", None),
        ("local[2]", "another", "Spark reads other files"),
        ("spark://one:7077", "ours", "Spark's tasks may run on other machines (spark)"),
        ("local-cluster[2,1,1024]", "ours", "Spark's tasks may run on other machines"),
    ],
)
def test_spark_has_to_show_that_it_reads_here(
    tmp_path: Path, master: str, word: str, why: str | None
):
    """One JVM that reads back what was just written; nothing is left of that."""
    proof = tmp_path / "proof.parquet"
    proof.write_bytes(b"")
    spark = SimpleNamespace(
        conf={"spark.master": master},
        read=SimpleNamespace(
            parquet=lambda _: SimpleNamespace(collect=lambda: [SimpleNamespace(word=word)])
        ),
    )
    told = find_obstacle(spark, proof, "ours")
    assert told == why if why is None else (told or "").startswith(why)
    assert not proof.exists()
