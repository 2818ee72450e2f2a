"""A folder that all processes of a test session share, for a server that they share.

Problem: xdist's workers are processes of their own, and each would start its own broker or its own
cluster. Choice: the process that begins the session chooses the folder and tells it in its
environment, which xdist's workers inherit; the first test that needs the server starts it there
(its own start is safe between processes), and the process that chose the folder ends it. A
developer who sets the variable to a home where the server runs has it used and left as it is. The
folders of sessions that were killed, whose servers ended with them, are removed by the next one.
"""

import os
import shutil
import tempfile
from pathlib import Path


class SessionHome:
    """Where a server of the session is, by an environment variable."""

    def __init__(self, variable: str, name: str) -> None:
        self.variable = variable
        self._owner = f"{variable}_OWNER"
        self._name = name

    def begin(self) -> Path | None:
        """Choose the folder in the process that began the session; None where it is chosen."""
        if self.variable in os.environ:
            return None
        self._sweep()
        chosen = Path(tempfile.gettempdir()) / f"{self._name}-{os.getpid()}"
        os.environ[self.variable] = str(chosen)
        os.environ[self._owner] = str(os.getpid())
        return chosen

    def _sweep(self) -> None:
        for left in Path(tempfile.gettempdir()).glob(f"{self._name}-*"):
            pid = left.name.removeprefix(f"{self._name}-")
            if pid.isdigit() and not Path("/proc", pid).exists():
                shutil.rmtree(left, ignore_errors=True)

    @property
    def path(self) -> Path:
        """Where the server is, or would be."""
        return Path(os.environ[self.variable])

    def own(self) -> Path | None:
        """The same, if this process chose it: that process ends the server."""
        return self.path if os.environ.get(self._owner) == str(os.getpid()) else None

    def chosen(self) -> bool:
        """Whether a process of this session chose it: it ends with the session then."""
        return self._owner in os.environ
