"""A folder of tables, on this machine or in an object store, as pyarrow reaches it.

Problem: Spark writes to any Hadoop path, but what makes rows visible must be one step that
happened or did not, and object stores have no atomic rename of a folder. Choice: every small
file (manifests, state) is one PUT of a new name by pyarrow's own file systems; nothing is ever
renamed. On local disk a new name is taken by a hard link, which fails where the name is taken;
a store only lets us look before we put. Cost: in a store two writers that look in the same
moment can both put; the writer's lease (fleet.history.tables.writing) is what keeps them apart
there.

Schemes: none or file://, s3:// (s3a:// for Spark is the same), gs://, hdfs://, abfs://, abfss://.
"""

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fleet.errors import ConfigError, FleetError, Unreachable
from fleet.model import without_login

_SAME: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_FOR_SPARK: Final = {"s3": "s3a"}
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS})


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file: its name below the folder, its size in bytes, when it was last written."""

    name: str
    bytes: int
    at: float


class TableFolder:
    """The folder; names are relative to it, with slashes.

    Raises ConfigError where pyarrow knows no such scheme, or the address holds a login. Every call
    raises Unreachable where the place does not answer or takes nothing (a full disk), and
    FleetError where it never will.
    """

    def __init__(self, path: str | Path) -> None:
        from pyarrow import fs  # noqa: PLC0415 - loading Dagster's definitions loads no pyarrow

        text = str(path)
        scheme, mark, rest = text.partition("://")
        self.local: Path | None = None
        self._fs: Any
        if not mark or scheme == "file":
            self.local = Path(rest if mark else text).absolute()
            self._fs, self._root = fs.LocalFileSystem(), str(self.local)
            self.url = self.local.as_uri()
            return
        try:
            without_login(text)
        except ValueError as error:
            raise ConfigError(f"history.path {error}") from None
        mine = _SAME.get(scheme, scheme)
        self.url = f"{_FOR_SPARK.get(mine, scheme)}://{rest.rstrip('/')}"
        try:
            with self.answering():  # S3 is asked for the bucket's region
                self._fs, self._root = fs.FileSystem.from_uri(f"{mine}://{rest.rstrip('/')}")
        except (ValueError, NotImplementedError) as error:
            raise ConfigError(
                f"history.path {text}: {error}; use a local folder, s3://, gs://, hdfs:// or "
                "abfss://"
            ) from error

    def __str__(self) -> str:
        return str(self.local or self.url)

    @property
    def fs(self) -> Any:
        """The file system of pyarrow; `full` names its paths."""
        return self._fs

    def full(self, name: str) -> str:
        """A name as the file system takes it."""
        return f"{self._root}/{name}"

    def for_spark(self, name: str) -> str:
        """A name as Spark takes it."""
        return f"{self.url}/{name}"

    def for_delta(self, name: str) -> str:
        """A name as delta-rs takes it."""
        return self.full(name) if self.local else f"{self.url}/{name}"

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Around what pyarrow does here: its errors become ours, with the place.

        Unreachable where it may pass by itself, FleetError where a file is gone.
        """
        try:
            yield
        except FileNotFoundError as error:
            raise FleetError(f"{self} lacks a file that it should have: {error}") from error
        except OSError as error:
            raise Unreachable(f"{self} does not answer, or takes nothing: {error}") from error

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The same around what reads tables; FleetError also where a file is damaged."""
        from pyarrow import ArrowException  # noqa: PLC0415 - see __init__

        try:
            with self.answering():
                yield
        except ArrowException as error:
            raise FleetError(f"the tables of {self} cannot be read: {error}") from error

    def read(self, name: str) -> bytes | None:
        """The whole file; None where there is none."""
        with self.answering():
            try:
                with self._fs.open_input_stream(self.full(name)) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def put(self, name: str, data: bytes) -> None:
        """Write a file whole, whatever was there."""
        with self.answering():
            if self.local is None:
                with self._fs.open_output_stream(self.full(name)) as stream:
                    stream.write(data)
                return
            temporary = self._temporary(name, data)
            temporary.replace(self.local / name)

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a file whole under a name that is free; False where it was taken."""
        with self.answering():
            if self.local is not None:
                return self._linked(self.local / name, self._temporary(name, data))
            if self._fs.get_file_info(self.full(name)).is_file:
                return False
            self.put(name, data)
            return True

    def files(self, folder: str) -> list[StoredFile]:
        """All files below a folder, in order of name.

        What we and Spark write for ourselves (dots and underscores) is left out.
        """
        from pyarrow import fs  # noqa: PLC0415

        selector = fs.FileSelector(self.full(folder), recursive=True, allow_not_found=True)
        root = len(self._root) + 1
        with self.answering():
            infos = self._fs.get_file_info(selector)
        found = [
            StoredFile(info.path[root:], int(info.size or 0), (info.mtime_ns or 0) / 1e9)
            for info in infos
            if info.is_file and not info.base_name.startswith((".", "_"))
        ]
        return sorted((each for each in found if not _hidden(each.name)), key=lambda f: f.name)

    def folders(self, folder: str) -> list[str]:
        """Names of the folders right in a folder."""
        from pyarrow import fs  # noqa: PLC0415

        selector = fs.FileSelector(self.full(folder), allow_not_found=True)
        with self.answering():
            infos = self._fs.get_file_info(selector)
        return sorted(info.base_name for info in infos if not info.is_file)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; those that are gone already are no error."""
        for name in names:
            with self.answering(), suppress(FileNotFoundError):
                self._fs.delete_file(self.full(name))

    def delete_folder(self, name: str) -> None:
        """Delete a folder and what is in it; one that is gone is no error."""
        with self.answering(), suppress(FileNotFoundError):
            self._fs.delete_dir(self.full(name))

    def sweep(self, folder: str, *, before: float) -> int:
        """Delete what killed processes left of files that they put there; how many there were.

        before: seconds; younger ones may still be written.
        """
        if self.local is None:
            return 0
        with self.answering():
            left = [
                each
                for each in (self.local / folder).glob(".*.json.*")
                if each.stat().st_mtime < before
            ]
            for each in left:
                each.unlink(missing_ok=True)
        return len(left)

    def _temporary(self, name: str, data: bytes) -> Path:
        assert self.local is not None
        path, temporary = self.local / name, ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            with os.fdopen(handle, "wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            if temporary:
                Path(temporary).unlink(missing_ok=True)
            raise Unreachable(
                f"{path} cannot be written ({error.strerror}); make room for it, or give "
                "history.path another folder"
            ) from error
        return Path(temporary)

    def _linked(self, path: Path, temporary: Path) -> bool:
        """Whether the name was free; the temporary one is not there any more."""
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise FleetError(
                f"the file system of {self} has no hard links ({error.strerror}), by which a name "
                "is taken once: give history.path a folder on a local disk, or an object store"
            ) from error
        finally:
            temporary.unlink(missing_ok=True)
        return True


def data_name(table: str, attempt: str, day: str, part: str = "0") -> str:
    """Where a file of a table is; an attempt's files are in folders of its own name."""
    return f"{table}/{attempt}/day={day}/{part}.parquet"


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))
