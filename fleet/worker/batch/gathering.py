"""A named batch's records, gathered as Parquet in memory while Spark runs the batch before.

Problem: Spark's Python data source gives the JVM rows, of which it converts eight columns each,
4.4-4.7 µs of CPU a record; Parquet it reads by column, and only the columns that the job names.
Choice: the worker reads the batch's ranges itself, by the code that Spark's tasks run, into one
file in memory; a thread of its own does so from the moment that the batch is named. It may take
so many bytes and no more; it may be given up at any time. Cost: the batch's bytes in memory twice
(the batch in hand and the next one), and one core's work on one machine: no way for a cluster.

Whatever does not go well here (no room, a broker that is away, a record that nobody can decode)
is told and ends the file, not the batch: Spark's tasks read the ranges then, and have their own
ways to fail.

Spark makes no task for less than 4 MB of a file, so a batch is as many files as it may have tasks.
"""

import contextlib
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from fleet.kafka_source.columns import SCHEMA

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
