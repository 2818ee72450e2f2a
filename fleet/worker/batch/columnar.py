"""Batches by offset ranges that Spark reads by column, if it sees this machine's memory [47].

Problem: a backlog is read twice as fast from files in memory as by Spark's tasks. That works only
if Spark sees the same memory, which no setting says: the shared server does, a pod's may not, a
cluster's executors never all do. Choice: the worker tests it. On the batch thread Spark has to read
back what only this process wrote. Until it has, and whenever files fail, Spark's tasks read the
ranges. Cost: half of `batch.memory` in files, and a thread.
"""

import contextlib
import os
import shutil
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from fleet.kafka_source.arrow_arrays import binaries
from fleet.kafka_source.columns import SCHEMA, spark_schema
from fleet.kafka_source.failures import text_of
from fleet.system.memory_files import MemoryFolder, free_bytes, memory_place
from fleet.worker.batch.ranges import NamedBatch
from fleet.worker.batch.spark_link import is_spark_failure

if TYPE_CHECKING:
    from fleet.worker.batch.executor import BatchRunner


# Spark's Python data source gives the JVM rows, 4.4-4.7 µs of CPU a record. Spark reads Parquet by
# column, and only the columns that the job names. A thread writes the batch's ranges into files in
# memory as soon as the batch is cut. A failure (no room, an unreachable broker, a record that
# cannot be decoded) ends the files, not the batch: then Spark's tasks read the ranges. Spark makes
# no task for less than 4 MB of a file, so a batch has as many files as it may have tasks.


_OPTIONS: Final[Mapping[str, Any]] = {
    # Quick to write and to read: it halves what a batch of JSON takes, and costs 0.1 µs a record.
    "compression": "lz4",
    "use_dictionary": ["topic", "partition", "timestampType"],
    "write_statistics": False,
    "store_schema": False,
}


class BatchTooLarge(Exception):
    """The batch takes more bytes than allowed."""


class BatchAbandoned(Exception):
    """The batch is not wanted any more."""


class Gathering:
    """One batch's files in the making; created by the consumer thread, asked by the batch thread.

    path: a new folder for them. most: bytes of all. files: how many.
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
        """Whether it has ended, with success or not; waits at most so long for it."""
        return self._ended.wait(seconds)

    @property
    def whole(self) -> bool:
        """Whether every record of the batch is in the files."""
        return self._ended.is_set() and self.error is None and not self._given_up.is_set()

    @property
    def takes_memory(self) -> bool:
        """Whether files exist, or may still be written."""
        return not self._ended.is_set() or self.whole

    def drop(self) -> None:
        """Ends it and removes the files; from any thread, at any time."""
        with self._lock:
            self._given_up.set()
            if self._ended.is_set():
                self._unlink()

    def check(self) -> None:
        """Raises BatchAbandoned if the batch is not wanted any more."""
        if self._given_up.is_set():
            raise BatchAbandoned

    def run(self, read: Callable[[Callable[[], None]], Any]) -> None:
        """Writes the tables that `read(check)` yields. Never raises; see `error`."""
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
                    raise BatchTooLarge
        self.bytes = self._size()

    def _size(self) -> int:
        return sum(part.stat().st_size for part in self._parts)

    def _unlink(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


_ROOM: Final = 0.8
"""Fraction of a batch's bytes: records are not all of the last ones' size."""
_BATCHES: Final = 2
"""Batches in memory at once: the one in hand and the next."""
_MOST_CORES: Final = 8
"""With more cores Spark's tasks read faster than a thread gathers: 6 µs of CPU each against 1."""
_READING: Final[Mapping[str, str]] = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
}
"""A session may be set to skip files that are missing or damaged; records would be missing."""

ReportChange = Callable[[str | None], None]
"""Gets each change: None if batches are columnar now, else why they are not."""
Read = Callable[[NamedBatch, Callable[[], None]], Any]
"""(batch, check) → its records as tables; `check` raises if they are not wanted any more."""


class ColumnarBatch(NamedBatch):
    """A closed batch whose records are gathered meanwhile; else the batch by ranges that it is.

    Whatever is cut from it is read from the log.
    """

    def __init__(
        self, named: NamedBatch, gathering: Gathering, doubt: Callable[[str], None]
    ) -> None:
        super().__init__(ranges=named.ranges, read=named.read)
        self._gathering = gathering
        self._doubt = doubt
        self._given = False
        weakref.finalize(self, gathering.drop)

    def gathered(self, seconds: float) -> bool:
        """Whether all records are in its files; waits at most so long for that."""
        return self._gathering.ended(seconds)

    def frame(self, spark: Any) -> Any:
        """Returns the files the first time; a second call may follow their failure and reads the
        log.
        """
        again, self._given = self._given, True
        if again:
            self._doubt("a batch was tried again")
        elif self._gathering.whole:
            return frame_of_files(spark, self._gathering.path)
        return super().frame(spark)


class Columnar:
    """Turns batches by ranges into columnar ones if possible; used on the consumer thread.

    most: bytes of all files together. report_change gets each change. cores: of this machine.
    """

    def __init__(
        self,
        *,
        most: int,
        read: Read,
        sessions: "BatchRunner",
        report_change: ReportChange,
        cores: int = 1,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._most = most // _BATCHES
        self._read = read
        self._sessions = sessions
        self._report_change = report_change
        self._cores = cores
        self._place = memory_place(environ) if most else None
        self._folder: MemoryFolder | None = None
        self._asked: Future[str | None] | None = None
        self._proven = False
        self._refused = self._place is None
        """Columnar reading is off for good: not wanted, or not possible here."""
        self._doubted: str | None = None
        """Written by the batch thread."""
        self._said: str | None = ""
        self._files: list[Gathering] = []
        """Batches that take memory."""
        self._number = 0
        self._turn = threading.Lock()
        self._mean: float | None = None
        """Bytes a record in the last batch."""
        self.learnt = 0
        """Records that a batch may have by the size of earlier ones, of any membership."""

    @property
    def is_on(self) -> bool:
        """Whether batches are columnar now."""
        return self._proven and self._said is None

    @property
    def most_records(self) -> int | None:
        """Returns how many records a batch may have by the bytes of the last one's, or None."""
        if not self._proven or self._mean is None:
            return None
        return max(1, int(self._most * _ROOM / self._mean))

    @property
    def asked(self) -> bool:
        """Whether an answer of Spark's is awaited."""
        return self._asked is not None

    def prove(self) -> None:
        """Asks Spark whether it reads this memory; `poll` gets the answer."""
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
        self._asked = self._sessions.with_session(lambda spark: find_obstacle(spark, proof, word))

    def poll(self) -> None:
        """Reads Spark's answer and the state of the files; call it often."""
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
            elif each.ended(0) and not isinstance(each.error, BatchAbandoned):
                if isinstance(each.error, BatchTooLarge):
                    self._mean = each.bytes / max(1, each.records)
                self._say(first_words(each.error))
        self._files = [each for each in self._files if each.takes_memory]

    def gather(self, named: NamedBatch) -> "NamedBatch | ColumnarBatch":
        """Returns the batch, with its records on the way into memory if possible."""
        self.poll()
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
        weakref.finalize(self, folder.close)  # also if the process ends later
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
            self._report_change(why)


def _gathered(turn: threading.Lock, gathering: Gathering, named: NamedBatch, read: Read) -> None:
    """Yields one batch after the other: first the one that Spark waits for."""
    with turn:
        gathering.run(lambda check: read(named, check))


def frame_of_files(spark: Any, path: Path) -> Any:
    """Returns a gathered batch, in its folder, as a DataFrame with the columns of Spark's Kafka
    source.
    """
    return spark.read.schema(spark_schema()).options(**_READING).parquet(f"file://{path}")


def find_obstacle(spark: Any, proof: Path, word: str) -> str | None:
    """Returns why Spark's tasks do not read files in this machine's memory; None if they do.

    A cluster's tasks run on other machines too, whatever one of them may read. Raises what Spark
    itself fails with, which proves nothing.
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
    """Returns an error in a line of limited length, with its class if it has no text."""
    if isinstance(error, BatchTooLarge):
        return "the batch takes more bytes than half of batch.memory"
    lines = [] if error is None else text_of(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
