"""Parquet files that Spark's tasks write, or this worker, and nobody sees until they are committed.

Problem: a million rows should not travel through the worker to be written, and a task that is
repeated must not leave its rows twice. Choice: `mapInArrow`: each task writes files of its own
names and answers what it wrote; only what the answers of the job's result name is committed.
The function is sent by value, so that executors need pyarrow and no `fleet`; credentials stay
names of environment variables, which each machine resolves itself. Cost: files of tasks that
failed or were killed, and of commits that were refused, stay where they are, named by nobody
(Delta's VACUUM, Iceberg's `remove_orphan_files`, our own sweep of Parquet folders remove them).
"""

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fleet.errors import FleetError
from fleet.sinks.batch_rows import is_arrow
from fleet.sinks.moments import in_utc

SMALL: Final = 50_000
"""Offsets of a batch up to which one task writes it: one file, not one per core."""
_TOLD: Final = "path string, rows long, bytes long"
_SENT: Final = (__name__, in_utc.__module__)
_OPTIONS: Final = {
    # Ours → pyarrow's, delta-rs', pyiceberg's.
    "endpoint": ("endpoint_override", "AWS_ENDPOINT_URL", "s3.endpoint"),
    "region": ("region", "AWS_REGION", "s3.region"),
    "access_key_id": ("access_key", "AWS_ACCESS_KEY_ID", "s3.access-key-id"),
    "secret_access_key": ("secret_key", "AWS_SECRET_ACCESS_KEY", "s3.secret-access-key"),
    "session_token": ("session_token", "AWS_SESSION_TOKEN", "s3.session-token"),
}


class WrittenFile(NamedTuple):
    """A file that was written: its path as the file system takes it."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """How an object store is reached: its options by the names of environment variables.

    options: endpoint, region, access_key_id, secret_access_key, session_token → the name of the
    variable; those that are not given are AWS_ENDPOINT_URL, AWS_REGION and so on.
    """

    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """ValueError for an option that is not known."""
        unknown = set(self.options) - set(_OPTIONS)
        if unknown:
            raise ValueError(
                f"store: unknown option {', '.join(sorted(unknown))}; known: {', '.join(_OPTIONS)}"
            )

    def resolved(self, column: int) -> dict[str, str]:
        """The values, under the names of 0 pyarrow, 1 delta-rs, 2 pyiceberg.

        ValueError where a variable that is named is not set on this machine.
        """
        found = {}
        for option, names in _OPTIONS.items():
            variable = self.options.get(option, names[1])
            value = os.environ.get(variable)
            if value is None and option in self.options:
                raise ValueError(f"store: {option} is to be in {variable}, which is not set here")
            if value:
                found[names[column]] = value
        return found

    def file_system(self, place: str) -> tuple[Any, str]:
        """Pyarrow's file system of a path or an address, and the path in it."""
        from pyarrow import fs  # noqa: PLC0415 - executors load it, the worker may not have it

        scheme, mark, rest = place.partition("://")
        if not mark or scheme == "file":
            return fs.LocalFileSystem(), rest if mark else place
        if scheme in {"s3", "s3a", "s3n"}:
            return fs.S3FileSystem(**self.resolved(0)), rest
        found, path = fs.FileSystem.from_uri(place)
        return found, path

    def for_delta(self) -> dict[str, str]:
        """Storage options of delta-rs."""
        found = self.resolved(1)
        if found.get("AWS_ENDPOINT_URL", "").startswith("http:"):
            found["AWS_ALLOW_HTTP"] = "true"
        return found


@dataclass(frozen=True, slots=True)
class FileWriter:
    """The function of a task: batches of rows in, files below `place` and what they are out."""

    place: str
    store: ObjectStore
    partition_by: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """For mapInArrow; a task without rows writes nothing."""
        import pyarrow as pa  # noqa: PLC0415 - see file_system
        import pyarrow.dataset as ds  # noqa: PLC0415

        some = (in_utc(batch) for batch in batches if batch.num_rows)
        first = next(some, None)
        if first is None:
            return
        file_system, path = self.store.file_system(self.place)
        by = pa.schema([first.schema.field(name) for name in self.partition_by])
        told: list[tuple[str, int, int]] = []
        ds.write_dataset(
            _all(first, some),
            path,
            schema=first.schema,
            filesystem=file_system,
            format="parquet",
            partitioning=ds.partitioning(by, flavor="hive") if self.partition_by else None,
            basename_template=f"part-{uuid.uuid4().hex}-{{i}}.parquet",
            existing_data_behavior="overwrite_or_ignore",  # names are new
            create_dir=isinstance(file_system, pa.fs.LocalFileSystem),
            file_visitor=lambda f: told.append((f.path, f.metadata.num_rows, f.size)),
        )
        yield pa.RecordBatch.from_pylist(
            [{"path": p, "rows": r, "bytes": b} for p, r, b in told],
            pa.schema([("path", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())]),
        )


def written_files(rows: Any, writer: FileWriter, *, offsets: int) -> list[WrittenFile]:
    """Write a DataFrame by Spark's tasks or a `pyarrow.Table` here; which files there are.

    offsets: of the batch. Raises FleetError where files that tasks wrote are not seen here.
    """
    if is_arrow(rows):
        told = [row for batch in writer(iter(rows.to_batches())) for row in batch.to_pylist()]
    else:
        from fleet.kafka_source.source import by_value  # noqa: PLC0415 - loads PySpark

        with by_value(_SENT):
            frame = rows.coalesce(1) if offsets <= SMALL else rows
            told = frame.mapInArrow(writer, _TOLD).toArrow().to_pylist()
    files = [WrittenFile(**each) for each in told]
    _refuse_missing(files, writer)
    return files


def _all(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _refuse_missing(files: list[WrittenFile], writer: FileWriter) -> None:
    """FleetError where executors wrote to a disk of their own under the same name."""
    file_system, _ = writer.store.file_system(writer.place)
    infos = file_system.get_file_info([each.path for each in files])
    seen = {info.path: info.size for info in infos}
    lost = [each for each in files if seen.get(each.path) != each.bytes]
    if lost:
        raise FleetError(
            f"Spark's tasks wrote {len(files)} files below {writer.place}, and this worker does "
            f"not see {len(lost)} of them ({lost[0].path}): driver, executors and this worker "
            "have to share the folder, or an object store"
        )
