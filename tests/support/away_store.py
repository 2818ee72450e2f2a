"""An object store that is away for some of its calls: pyarrow's local files behind a file system.

What fails, fails as pyarrow's own S3 does: with an OSError and the store's sentence.
"""

from pathlib import Path
from typing import Any

from pyarrow import fs

from fleet.history.tables.table_folder import TableFolder

AWAY = "AWS Error NETWORK_CONNECTION during PutObject operation: curlCode: 7, no connection"


class Handler(fs.FileSystemHandler):
    """Hands every call on to local files, or fails it where its name is in `fails`."""

    def __init__(self) -> None:
        self.fails: dict[str, OSError] = {}
        self._local = fs.LocalFileSystem()

    def _call(self, name: str, *arguments: Any, **more: Any) -> Any:
        if (failure := self.fails.get(name)) is not None:
            raise failure
        return getattr(self._local, name)(*arguments, **more)

    def get_type_name(self) -> str:
        return "away"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Any) -> Any:
        return self._call("get_file_info", paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self._call("get_file_info", selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._call("create_dir", path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._call("delete_dir", path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        self._call("delete_dir_contents", path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self._call("delete_file", path)

    def move(self, src: str, dest: str) -> None:
        self._call("move", src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self._call("copy_file", src, dest)

    def open_input_stream(self, path: str) -> Any:
        return self._call("open_input_stream", path)

    def open_input_file(self, path: str) -> Any:
        return self._call("open_input_file", path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        """A store has no folders to be made first."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return self._call("open_output_stream", path)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError


class AwayStore(TableFolder):
    """A folder as an object store; `handler.fails` says which calls do."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.local = None
        self.handler = Handler()
        self._fs = fs.PyFileSystem(self.handler)
