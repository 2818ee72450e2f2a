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

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fleet.errors import ConfigError, FleetError

_SAME: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_FOR_SPARK: Final = {"s3": "s3a"}


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file: its name below the folder, its size in bytes, when it was last written."""

    name: str
    bytes: int
    at: float


class TableFolder:
    """The folder; names are relative to it, with slashes.

    Raises ConfigError where pyarrow knows no such scheme.
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
        mine = _SAME.get(scheme, scheme)
        try:
            self._fs, self._root = fs.FileSystem.from_uri(f"{mine}://{rest.rstrip('/')}")
        except (ValueError, OSError, NotImplementedError) as error:
            raise ConfigError(
                f"history.path {text}: {error}; use a local folder, s3://, gs://, hdfs:// or "
                "abfss://"
            ) from error
        self.url = f"{_FOR_SPARK.get(mine, scheme)}://{rest.rstrip('/')}"

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

    def read(self, name: str) -> bytes | None:
        """The whole file; None where there is none."""
        try:
            with self._fs.open_input_stream(self.full(name)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        """Write a file whole, whatever was there."""
        if self.local is None:
            with self._fs.open_output_stream(self.full(name)) as stream:
                stream.write(data)
            return
        temporary = self._temporary(name, data)
        temporary.replace(self.local / name)

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a file whole under a name that is free; False where it was taken."""
        if self.local is None:
            if self._fs.get_file_info(self.full(name)).is_file:
                return False
            self.put(name, data)
            return True
        temporary = self._temporary(name, data)
        try:
            os.link(temporary, self.local / name)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def files(self, folder: str) -> list[StoredFile]:
        """All files below a folder, in order of name.

        What we and Spark write for ourselves (dots and underscores) is left out.
        """
        from pyarrow import fs  # noqa: PLC0415

        selector = fs.FileSelector(self.full(folder), recursive=True, allow_not_found=True)
        root = len(self._root) + 1
        found = [
            StoredFile(info.path[root:], int(info.size or 0), (info.mtime_ns or 0) / 1e9)
            for info in self._fs.get_file_info(selector)
            if info.is_file and not info.base_name.startswith((".", "_"))
        ]
        return sorted((each for each in found if not _hidden(each.name)), key=lambda f: f.name)

    def folders(self, folder: str) -> list[str]:
        """Names of the folders right in a folder."""
        from pyarrow import fs  # noqa: PLC0415

        selector = fs.FileSelector(self.full(folder), allow_not_found=True)
        infos = self._fs.get_file_info(selector)
        return sorted(info.base_name for info in infos if not info.is_file)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; those that are gone already are no error."""
        for name in names:
            try:
                self._fs.delete_file(self.full(name))
            except FileNotFoundError:
                continue

    def delete_folder(self, name: str) -> None:
        """Delete a folder and what is in it; one that is gone is no error."""
        try:
            self._fs.delete_dir(self.full(name))
        except FileNotFoundError:
            return

    def _temporary(self, name: str, data: bytes) -> Path:
        assert self.local is not None
        path = self.local / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            with os.fdopen(handle, "wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            raise FleetError(
                f"{path} cannot be written ({error.strerror}); give history.path another folder"
            ) from error
        return Path(temporary)


def data_name(table: str, attempt: str, day: str, part: str = "0") -> str:
    """Where a file of a table is; an attempt's files are in folders of its own name."""
    return f"{table}/{attempt}/day={day}/{part}.parquet"


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))
