"""The one writer of a history: its lock, its attempts, its commits, and what it clears away.

Problem: two writers would double rows, and a killed one may live on inside a Spark server for
half a minute and still write. Choice: one writer per path, by a file lock that the kernel frees
at its death (object stores: a lease, fleet.history.tables.store_lease); every attempt of a batch
writes into a folder of its own name, so that a dead one's late files can never be taken for ours; a
commit takes the next manifest's number or fails.
Files that no manifest of the last ten minutes names are cleared away, attempts after an hour;
every folder is listed for it, so a tail does it once in ten minutes.
Cost: what nobody needs may stay twice as long; after kill -9 in an object store the next writer
waits up to five minutes; power cuts may lose what the operating system had not written yet (data
files are not synced, manifests are).
"""

import fcntl
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.clock import Clock
from fleet.errors import FleetError, LostLease, Refused
from fleet.history.tables import day_of
from fleet.history.tables.publishing import Published
from fleet.history.tables.store_lease import BEAT, StoreLease, busy
from fleet.history.tables.table_columns import TABLES
from fleet.history.tables.table_folder import TableFolder, data_name
from fleet.history.tables.table_manifests import (
    FOLDER,
    OLD,
    DataFile,
    Manifest,
    latest,
    name_of,
    numbers,
    read_manifest,
)
from fleet.system.closing import Closing

MEMORY: Final = "memory"
KEPT_SECONDS: Final = 600.0
"""How long replaced files stay for readers that are under way, at least."""
ATTEMPT_SECONDS: Final = 3600.0
"""After this an attempt's folder that no manifest names is cleared away."""
_LOCK: Final = "writer.lock"
_MOST_MANIFESTS: Final = 1000


class Writer(Closing):
    """Takes the place for itself. Raises Refused where somebody else writes there.

    `cluster` has to be the one that the tables are of.
    """

    def __init__(
        self,
        place: TableFolder,
        *,
        cluster: str,
        clock: Clock,
        retention: float,
        beat: float = BEAT,
    ) -> None:
        """beat: seconds between two renewals of an object store's lease."""
        self.place = place
        self.clock = clock
        self.retention = retention
        self._cleared: float | None = None
        """When it was last cleared away, monotonic."""
        self._lock: int | None = None
        self._lease: StoreLease | None = None
        if place.local is None:
            self._lease = StoreLease(place, clock=clock, beat=beat)
        else:
            self._lock = _locked(place, place.local)
        try:
            found = latest(place)
            self._published = Published(place)
            if found is not None and found.cluster != cluster:
                raise FleetError(
                    f"{place} holds the history of cluster {found.cluster}, not of {cluster}: "
                    "give each cluster a history.path of its own"
                )
            if found is not None:
                self._published.follow(found)
        except BaseException:
            self.close()
            raise
        self.manifest = found or Manifest(
            number=0, cluster=cluster, at=clock.now(), what="none", began=clock.now()
        )
        self._recent = {self.manifest.number: self.manifest}
        """The last ones by number, which need not be read back: those it found and committed."""

    def close(self) -> None:
        """Let the next writer in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    # --- attempts ---------------------------------------------------------------------------

    def attempt(self) -> str:
        """A new name for the folders of the next manifest's files: nobody else writes there."""
        return f"{self.manifest.number + 1:012d}-{uuid.uuid4().hex[:12]}"

    def write(
        self,
        attempt: str,
        table: str,
        schema: pa.Schema,
        rows: Sequence[Mapping[str, Any]],
        at: str,
    ) -> list[DataFile]:
        """Write rows of a table by pyarrow, a file per day of the field `at` (seconds)."""
        by_day: dict[str, list[Mapping[str, Any]]] = {}
        days: dict[float, str] = {}
        for row in rows:
            day = days.get(row[at])
            if day is None:
                day = days[row[at]] = day_of(row[at])
            by_day.setdefault(day, []).append(row)
        return [
            self.write_table(
                data_name(table, attempt, day),
                pa.Table.from_pylist(list(mine), schema=schema),
                table=table,
                day=day,
            )
            for day, mine in sorted(by_day.items())
        ]

    def write_memory(self, attempt: str, table: str, data: pa.Table) -> DataFile:
        """Write rows of the job's own memory."""
        name = f"{MEMORY}/{attempt}/{table[1:]}.parquet"
        return self.write_table(name, data, table=table, day="")

    def write_table(self, name: str, data: pa.Table, *, table: str, day: str) -> DataFile:
        """Write one file."""
        with self.writing(name, data.schema) as out:
            out.write_table(data)
        return self.file(name, table=table, day=day, rows=data.num_rows)

    @contextmanager
    def writing(self, name: str, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
        """A Parquet writer of one new file."""
        place, folder = self.place, name.rpartition("/")[0]
        with place.answering():
            place.fs.create_dir(place.full(folder), recursive=True)
            with pq.ParquetWriter(
                place.full(name), schema, filesystem=place.fs, compression="zstd"
            ) as out:
                yield out

    def found(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Those that are here, whole."""
        with self.place.answering():
            infos = self.place.fs.get_file_info([self.place.full(each.name) for each in files])
        return [
            each
            for each, info in zip(files, infos, strict=True)
            if info.is_file and info.size == each.bytes
        ]

    def file(self, name: str, *, table: str, day: str, rows: int, every: int = 0) -> DataFile:
        """A file that was written."""
        with self.place.answering():
            size = self.place.fs.get_file_info(self.place.full(name)).size or 0
        return DataFile(name=name, table=table, day=day, rows=rows, bytes=size, every=every)

    # --- commits ----------------------------------------------------------------------------

    def commit(self, made: Manifest) -> Manifest:
        """Make a manifest the truth: the present one with changes; days past retention are left.

        Raises LostLease where somebody else has written meanwhile: then nothing became visible.
        """
        now = self.clock.now()
        oldest = day_of(now - self.retention)
        files = tuple(f for f in made.files if not f.day or f.day >= oldest)
        made = replace(made, number=self.manifest.number + 1, at=now, files=files)
        if self._lease is not None:
            self._lease.renew()
        if not self.place.put_new(name_of(made.number), made.as_bytes()):
            raise LostLease(
                f"somebody else wrote manifest {made.number} of {self.place}; nothing of this "
                "batch became visible: look who runs `fleet history` there, and start again"
            )
        self.manifest = self._recent[made.number] = made
        self._recent.pop(made.number - _MOST_MANIFESTS, None)
        self._published.follow(made)
        return made

    def clear_away(self) -> int:
        """Delete files that nobody needs any more; how many folders and files went."""
        now, began = self.clock.now(), self.clock.monotonic()
        named, oldest, old = self._kept(now)
        folders, gone = {"/".join(name.split("/")[:2]) for name in named}, 0
        for folder in self._attempts():
            number = folder.rpartition("/")[2].partition("-")[0]
            if not number.isdigit() or int(number) > self.manifest.number:
                continue
            files = self.place.files(folder)
            newest = max((f.at for f in files), default=0.0)
            if folder not in folders:
                if now - newest >= ATTEMPT_SECONDS or int(number) <= oldest:
                    self.place.delete_folder(folder)
                    gone += 1
                continue
            unnamed = [f.name for f in files if f.name not in named]
            if unnamed and now - newest >= KEPT_SECONDS:
                self.place.delete(unnamed)
                gone += len(unnamed)
        self.place.delete([name_of(number) for number in old])
        self._recent = {n: each for n, each in self._recent.items() if n >= oldest}
        gone += self.place.sweep(FOLDER, before=now - ATTEMPT_SECONDS)
        self._cleared = began
        return gone

    def clear_away_if_due(self) -> int:
        """As `clear_away`, at the first call and once in KEPT_SECONDS: nothing is due sooner."""
        cleared = self._cleared
        if cleared is not None and self.clock.monotonic() - cleared < KEPT_SECONDS:
            return 0
        return self.clear_away()

    def _attempts(self) -> Iterator[str]:
        """Folders of all attempts, one in each table that it wrote."""
        for root in (*TABLES, MEMORY, OLD[:-1]):
            for folder in self.place.folders(root):
                yield f"{root}/{folder}"

    def _kept(self, now: float) -> tuple[set[str], int, list[int]]:
        """Files that the present manifest names, or those it replaced within the last minutes;
        the lowest number of these, and the older numbers.
        """
        known = [n for n in numbers(self.place) if n <= self.manifest.number]
        named, oldest, kept = {f.name for f in self.manifest.files}, self.manifest.number, 1
        replaced_at = self.manifest.at
        for position in range(len(known) - 1, -1, -1):
            number = known[position]
            if number == self.manifest.number:
                continue
            if now - replaced_at > KEPT_SECONDS or kept >= _MOST_MANIFESTS:
                return named, oldest, known[: position + 1]
            found = self._recent.get(number) or read_manifest(self.place, number)
            if found is not None:
                named.update(f.name for f in found.files)
                oldest, replaced_at, kept = number, found.at, kept + 1
        return named, oldest, []


def _locked(place: TableFolder, local: Path) -> int:
    """The kernel's lock on a local folder, until its handle is closed. Raises Refused."""
    try:
        local.mkdir(parents=True, exist_ok=True)
        handle = os.open(local / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise FleetError(
            f"{local} cannot be written ({error.strerror}); give history.path another folder"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(handle, 20, 0).decode(errors="replace").strip()
        os.close(handle)
        raise Refused(busy(place, f"process {holder or '?'}")) from error
    with suppress(OSError):  # a full disk; it only tells others who holds it
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
    return handle


def with_files(
    manifest: Manifest, added: Iterable[DataFile], *, gone: Callable[[DataFile], bool] | None = None
) -> tuple[DataFile, ...]:
    """The manifest's files, less those that are gone, and the added ones."""
    return (*(f for f in manifest.files if gone is None or not gone(f)), *added)
