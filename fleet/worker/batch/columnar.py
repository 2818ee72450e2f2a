"""Named batches that Spark reads by column, where it sees this machine's memory [47].

Problem: a backlog is read twice as fast from files in memory as by Spark's tasks, but only where
Spark sees the same memory, and nobody tells: the shared server does, a pod's may not, a cluster's
executors never all of them. Choice: it is tried. Spark, asked on the batch thread where its tasks
run, has to read back what only this process wrote; until it has, and whenever it cannot any more,
batches go by ranges. A batch may take half of `batch.memory`, two are there at once (the one in
hand and the next), and the next is cut to what the last one's records took. A second attempt at a
batch never trusts its files. Cost: one thread gathers, about a million records a second, so that on
many cores Spark's tasks are quicker, though dearer: there, ranges go on.

The files end with the batch: a DataFrame that the job keeps after its call has nothing to read.
"""

import contextlib
import os
import shutil
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from fleet.kafka_source.arrow_arrays import binaries
from fleet.kafka_source.columns import SCHEMA, spark_schema
from fleet.kafka_source.failures import text_of
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchRange
from fleet.system.memory_files import MemoryFolder, free_bytes, memory_place
from fleet.worker.batch.ranges import NamedBatch
from fleet.worker.batch.spark_link import is_spark_failure

if TYPE_CHECKING:
    from fleet.worker.batch.executor import BatchRunner


# Spark's Python data source gives the JVM rows, 4.4-4.7 µs of CPU a record; Parquet it reads by
# column, and only those that the job names. A thread writes the batch's ranges into files in memory
# from the moment that it is named. What does not go well (no room, a broker that is away, a record
# that nobody can decode) ends the files, not the batch: Spark's tasks read the ranges then. Spark
# makes no task for less than 4 MB of a file, so a batch is as many files as it may have tasks.


_OPTIONS: Final[Mapping[str, Any]] = {
    # Quick to write and to read: it halves what a batch of JSON takes, and costs 0.1 µs a record.
    "compression": "lz4",
    "use_dictionary": ["topic", "partition", "timestampType"],
    "write_statistics": False,
    "store_schema": False,
}


class OverBound(Exception):
    """More bytes than a batch may take."""


class GivenUp(Exception):
    """Nobody wants the batch any more."""


class Gathering:
    """One batch's files in the making; made by the consumer thread, asked by the batch thread.

    path: a folder for them, not yet there. most: bytes of all. files: how many.
    """

    def __init__(self, path: Path, *, most: int, files: int = 1) -> None:
        self.path = path
        self._most = most
        self._parts = [path / f"{number}.parquet" for number in range(files)]
        self._lock = threading.Lock()
        self._given_up = threading.Event()
        self._ended = threading.Event()
        self.error: Exception | None = None
        """Why there are no files, once it has ended; None: they are there."""
        self.records = 0
        self.bytes = 0

    def ended(self, seconds: float) -> bool:
        """Whether it has come to its end, well or not; waits at most so long for it."""
        return self._ended.wait(seconds)

    @property
    def whole(self) -> bool:
        """Whether every record of the batch is in the files."""
        return self._ended.is_set() and self.error is None and not self._given_up.is_set()

    @property
    def takes_memory(self) -> bool:
        """Whether there are files, or may be some yet."""
        return not self._ended.is_set() or self.whole

    def drop(self) -> None:
        """End it, and remove the files; from any thread, at any time."""
        with self._lock:
            self._given_up.set()
            if self._ended.is_set():
                self._unlink()

    def check(self) -> None:
        """Raises GivenUp."""
        if self._given_up.is_set():
            raise GivenUp

    def run(self, read: Callable[[Callable[[], None]], Any]) -> None:
        """Write what `read(check)` yields: tables. Never raises; see `error`."""
        try:
            self._write(read(self.check))
        except Exception as error:  # noqa: BLE001 - the batch is read by Spark's tasks then
            self.error = error
        with self._lock:
            if self.error is not None or self._given_up.is_set():
                self._unlink()
            self._ended.set()

    def _write(self, tables: Any) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415 - no standby needs it

        self.path.mkdir()
        with contextlib.ExitStack() as stack:
            writers = [
                stack.enter_context(pq.ParquetWriter(part, SCHEMA, **_OPTIONS))
                for part in self._parts
            ]
            for table in tables:
                self.check()
                share = max(1, -(-table.num_rows // len(writers)))
                for number, writer in enumerate(writers):
                    rows = table.slice(number * share, share)
                    if rows.num_rows:
                        writer.write_table(rows, row_group_size=share)
                self.records += table.num_rows
                self.bytes = self._size()
                if self.bytes > self._most:
                    raise OverBound
        self.bytes = self._size()

    def _size(self) -> int:
        return sum(part.stat().st_size for part in self._parts)

    def _unlink(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


_ROOM: Final = 0.8
"""Of the bytes of a batch: records are not all of the last ones' size."""
_BATCHES: Final = 2
"""In memory at once: of the batch in hand and of the next one."""
_MOST_CORES: Final = 8
"""From more on Spark's tasks read faster than a thread gathers: 6 µs of CPU each against 1."""
_READING: Final[Mapping[str, str]] = {
    # A session may be told to read over files that are gone or damaged; records would be missing.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
}

Told = Callable[[str | None], None]
"""Hears of each change: None where batches go by column now, else why they do not."""
Read = Callable[[NamedBatch, Callable[[], None]], Any]
"""(batch, check) → its records as tables; `check` raises where they are not wanted any more."""


class ColumnarBatch:
    """A closed batch whose records are gathered meanwhile; else the named batch that it is."""

    def __init__(
        self, named: NamedBatch, gathering: Gathering, doubt: Callable[[str], None]
    ) -> None:
        self._named = named
        self._gathering = gathering
        self._doubt = doubt
        self._given = False
        weakref.finalize(self, gathering.drop)

    @property
    def ranges(self) -> tuple[BatchRange, ...]:
        """See Prepared."""
        return self._named.ranges

    @property
    def records(self) -> int:
        """How many offsets, as by ranges: an estimate from above."""
        return self._named.records

    def gathered(self, seconds: float) -> bool:
        """See Prepared."""
        return self._gathering.ended(seconds)

    def frame(self, spark: Any) -> Any:
        """The files, the first time; who asks again may have failed on it, and reads the log."""
        again, self._given = self._given, True
        if again:
            self._doubt("a batch was tried again")
        elif self._gathering.whole:
            return frame_of_files(spark, self._gathering.path)
        return self._named.frame(spark)

    def only(self, tps: Iterable[TopicPartition]) -> NamedBatch:
        """See Prepared: from the log, as whatever is cut anew."""
        return self._named.only(tps)

    def part(self, tp: TopicPartition, start: int, end: int) -> NamedBatch:
        """See Prepared.part."""
        return self._named.part(tp, start, end)

    def holds_records(self, spark: Any) -> bool:
        """See Prepared.holds_records."""
        return self._named.holds_records(spark)

    def rows(self, spark: Any) -> pa.Table:
        """See Prepared.rows."""
        return self._named.rows(spark)


class Columnar:
    """Turns named batches into columnar ones where that can be; used on the consumer thread.

    most: bytes of all files together. told hears of each change. cores: of this machine.
    """

    def __init__(
        self,
        *,
        most: int,
        read: Read,
        sessions: "BatchRunner",
        told: Told,
        cores: int = 1,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._most = most // _BATCHES
        self._read = read
        self._sessions = sessions
        self._told = told
        self._cores = cores
        self._place = memory_place(environ) if most else None
        self._folder: MemoryFolder | None = None
        self._asked: Future[str | None] | None = None
        self._proven = False
        self._refused = self._place is None
        """For good: nobody wants it, or it cannot be here."""
        self._doubted: str | None = None
        """Written by the batch thread."""
        self._said: str | None = ""
        self._files: list[Gathering] = []
        """Those that take memory."""
        self._number = 0
        self._turn = threading.Lock()
        self._mean: float | None = None
        """Bytes a record in the last batch."""
        self.learnt = 0
        """Records that a batch may have by what those before took, whoever's membership it was."""

    @property
    def on(self) -> bool:
        """Whether batches go by column now."""
        return self._proven and self._said is None

    @property
    def most_records(self) -> int | None:
        """How many records a batch may have by the bytes of the last one's; None: not known."""
        if not self._proven or self._mean is None:
            return None
        return max(1, int(self._most * _ROOM / self._mean))

    @property
    def asked(self) -> bool:
        """Whether an answer of Spark's is awaited."""
        return self._asked is not None

    def prove(self) -> None:
        """Ask Spark whether it reads this memory; `look` hears the answer."""
        if self._refused or self._proven or self._asked is not None:
            return
        import pyarrow.parquet as pq  # noqa: PLC0415 - no standby needs it

        assert self._place is not None
        if self._cores > _MOST_CORES:
            self._refuse(f"on {self._cores} cores Spark's tasks read faster than a thread gathers")
            return
        try:
            folder = self._folder = self._folder or self._new_folder(self._place)
            word = uuid.uuid4().hex
            proof = folder.path / f"{word}.parquet"
            column = binaries([word.encode()], pa.string())
            pq.write_table(pa.Table.from_arrays([column], ["word"]), proof)
        except OSError as error:
            self._refuse(f"there can be no files in memory: {error}")
            return
        self._asked = self._sessions.with_session(lambda spark: why_not(spark, proof, word))

    def look(self) -> None:
        """Hear what Spark answered, and what became of the files; to be called often."""
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            error = asked.exception()
            answer = asked.result() if error is None else None
            if answer is not None:
                self._refuse(answer)
            else:
                self._proven = error is None  # else the next batch asks again
        doubted, self._doubted = self._doubted, None
        if doubted is not None and self._proven:
            self._proven = False
            self._say(doubted)
        for each in self._files:
            if each.ended(0) and each.error is None:
                self._mean = each.bytes / max(1, each.records)
            elif each.ended(0) and not isinstance(each.error, GivenUp):
                if isinstance(each.error, OverBound):
                    self._mean = each.bytes / max(1, each.records)
                self._say(first_words(each.error))
        self._files = [each for each in self._files if each.takes_memory]

    def gather(self, named: NamedBatch) -> "NamedBatch | ColumnarBatch":
        """The batch, its records under way into memory where that can be."""
        self.look()
        self.prove()
        if not self._proven or self._folder is None:
            return named
        why = self._no_room()
        self._say(why)
        if why is not None:
            return named
        self._number += 1
        path = self._folder.path / str(self._number)
        gathering = Gathering(path, most=self._most, files=self._cores)
        self._files.append(gathering)
        work = (self._turn, gathering, named, self._read)
        threading.Thread(target=_gathered, args=work, name="gathering", daemon=True).start()
        return ColumnarBatch(named, gathering, self._doubt)

    def _new_folder(self, place: Path) -> MemoryFolder:
        folder = MemoryFolder(place)
        weakref.finalize(self, folder.close)  # also where the process ends in its own time
        return folder

    def _no_room(self) -> str | None:
        if len(self._files) >= _BATCHES:
            return f"{len(self._files)} batches are in memory already"
        assert self._place is not None
        try:
            free = free_bytes(self._place)
        except OSError as error:
            return str(error)
        if free < self._most:
            return f"{self._place} has {free >> 20} MiB left, a batch may take {self._most >> 20}"
        return None

    def _doubt(self, why: str) -> None:
        self._doubted = why

    def _refuse(self, why: str) -> None:
        self._refused, self._proven = True, False
        self._say(why)

    def _say(self, why: str | None) -> None:
        if why != self._said:
            self._said = why
            self._told(why)


def _gathered(turn: threading.Lock, gathering: Gathering, named: NamedBatch, read: Read) -> None:
    """One batch after the other: the one that Spark waits for first."""
    with turn:
        gathering.run(lambda check: read(named, check))


def frame_of_files(spark: Any, path: Path) -> Any:
    """A gathered batch, in its folder, as a DataFrame with the columns of Spark's Kafka source."""
    return spark.read.schema(spark_schema()).options(**_READING).parquet(f"file://{path}")


def why_not(spark: Any, proof: Path, word: str) -> str | None:
    """Why Spark's tasks do not read files in this machine's memory; None where they do.

    A cluster's tasks run on other machines as well, whatever one of them may read. Raises what
    Spark itself fails with: that says nothing.
    """
    try:
        master = str(spark.conf.get("spark.master", ""))
        if not master.startswith("local") or master.startswith("local-cluster"):
            return f"Spark's tasks may run on other machines ({master.partition(':')[0]})"
        rows = spark.read.parquet(f"file://{proof}").collect()
        return None if [row.word for row in rows] == [word] else "Spark reads other files"
    except Exception as error:
        if is_spark_failure(error):
            raise
        return f"Spark does not see {proof.parent}: {first_words(error)}"
    finally:
        with contextlib.suppress(OSError):
            proof.unlink()


def first_words(error: BaseException | None) -> str:
    """An error in a line of bounded length, with its kind where it has no text."""
    if isinstance(error, OverBound):
        return "the batch takes more bytes than half of batch.memory"
    lines = [] if error is None else text_of(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
