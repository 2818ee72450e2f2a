"""Every process that this home has started, told by its environment.

Problem: whoever starts a process may be killed before it writes down who that is, and a
forgotten worker would go on as a member of its group. Choice: all our processes carry marks in
their environment, which the kernel shows for as long as they live, and which their children
inherit; a look through /proc finds them again. Cost: Linux only, own processes only, and a
look takes some milliseconds, so it is done at starts and ends, not in loops.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import fleet
from fleet.system.processes import ProcessId, identify, pids

HOME: Final = "FLEET_HOME"
PART: Final = "FLEET_PART"
"""worker | supervisor | spark | fork-server; a person's shell only has FLEET_HOME."""
WORKER: Final = "FLEET_WORKER"
CONNECT: Final = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""What would turn a Spark server, or who wants a JVM of its own, into the client of another."""
_NOT_INHERITED: Final = frozenset({PART, WORKER, *CONNECT})


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeProcess:
    """One process of the home; `session` is the pid of the process that was started as such."""

    process: ProcessId
    session: int
    part: str
    worker: str | None

    @property
    def leads(self) -> bool:
        """It was started by us, and is no child of one that was."""
        return self.process.pid == self.session


def environment(
    home: Path, *, part: str, extra: Mapping[str, str] | None = None, worker: str | None = None
) -> dict[str, str]:
    """The environment of a process of this home: ours, `extra`, and the marks.

    PYTHONPATH: extra's before ours, and where this package lies, so that a process runs the
    same fleet as its starter whether that is installed or not.
    """
    env = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
    env.update(extra or {})
    env["PYTHONPATH"] = python_path((extra or {}).get("PYTHONPATH"), os.environ.get("PYTHONPATH"))
    env[HOME] = str(home)
    env[PART] = part
    if worker is not None:
        env[WORKER] = worker
    return env


def python_path(before: str | None, after: str | None = None) -> str:
    """A PYTHONPATH on which this package is found, between what is given."""
    paths = [before, str(Path(fleet.__file__).parents[1]), after]
    return os.pathsep.join(path for path in paths if path)


def home_processes(home: Path) -> Iterator[HomeProcess]:
    """All living processes of this home except the caller, children of workers included."""
    for pid in pids():
        if pid == os.getpid():
            continue
        try:
            text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
            session = os.getsid(pid)
        except OSError:  # gone meanwhile, or somebody else's
            continue
        env = dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
        process = identify(pid)
        if process is not None and env.get(HOME) == str(home) and PART in env:
            yield HomeProcess(
                process=process,
                session=session,
                part=env[PART],
                worker=env.get(WORKER, "").strip() or None,
            )
