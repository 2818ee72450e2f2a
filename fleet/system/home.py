"""Where state lives: `$FLEET_HOME` (default `.fleet/` in the current folder) and `~/.cache/fleet`.

Besides these two and `.venv` nothing is written. Files are written whole: a temporary name
in the same folder, then a rename, so that kill -9 leaves the old or the new one.
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleet.errors import FleetError, SchemaTooNew

# One process at a time, by a file.


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one of all processes of this machine; the kernel gives it back when a process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fleet_home(environ: "os._Environ[str] | dict[str, str]" = os.environ) -> Path:
    """The folder of this fleet's state, absolute; not created here."""
    return Path(environ.get("FLEET_HOME") or ".fleet").absolute()


def make_home(home: Path) -> Path:
    """Create the folder where it is missing, for its owner alone: logs, marks and an embedded
    broker hold records, and on a machine of many users they are not everybody's.

    Raises FleetError where nothing can be written there. Files of processes that serve for weeks
    are put there: it is tried now.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            return home
    except OSError as error:
        raise FleetError(
            f"cannot write to the state directory {home} ({error.strerror or error}); set "
            "FLEET_HOME to a folder that you own"
        ) from error


def cache_home() -> Path:
    """Where jars and builds are cached between checkouts."""
    return Path.home() / ".cache" / "fleet"


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_state(path: Path, state: dict[str, Any], *, schema: int) -> None:
    """Write a JSON state file with its schema version."""
    write_whole(path, json.dumps({"schema": schema, **state}, indent=1, sort_keys=True) + "\n")


def read_state(path: Path, *, schema: int) -> dict[str, Any] | None:
    """Read a JSON state file; None where there is none.

    Raises SchemaTooNew where a newer version wrote it, FleetError where it is no JSON object.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise FleetError(
            f"{path} is not valid JSON ({error}); move it away and start again"
        ) from error
    if not isinstance(state, dict):
        raise FleetError(f"{path} is not a JSON object; move it away and start again")
    if int(state.get("schema", 0)) > schema:
        raise SchemaTooNew(
            f"{path} has schema {state['schema']}, but this release reads only up to {schema}; use "
            "the newer release that wrote it"
        )
    return state
