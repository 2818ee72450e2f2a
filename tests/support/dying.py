"""Whatever a pytest process has started ends with it, however it ends.

Problem: brokers, supervisors and Spark servers outlive their starter on purpose, and a pytest
that is killed runs no fixture's end. Choice: all that tests start carries the test process' mark
in its environment, which children inherit and the kernel shows (as fleet/system/processes.py
has it); beside every pytest process a reaper waits for its end and kills what carries the mark,
again until nothing does. Marks are chains: an xdist worker's begins with its controller's, so that
the controller's reaper ends the worker and all of its, too. Cost: Linux only; a process of 10 MB;
who replaces the whole environment, as containers do, is not found (kube_home.py ends the cluster).

Run as a program it is the reaper. Nothing but the standard library: it starts in 20 ms.
"""

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "FLEET_TEST_RUN"
"""The chain of marks, outermost first."""
_BETWEEN = ":"
_MOST_SECONDS = 60.0
"""What a process in uninterruptible sleep is waited for."""

_run: list[str] = []
"""The chain of the whole run, once `watch` was called."""


def watch(cluster: Path | None = None) -> None:
    """From now on what this process starts ends with it; so does the cluster of that home."""
    outer = os.environ.get(MARK, "")
    mark = uuid.uuid4().hex
    chain = f"{outer}{_BETWEEN}{mark}" if outer else mark
    alone = {key: value for key, value in os.environ.items() if key != MARK}
    me = os.pidfd_open(os.getpid())
    try:
        subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(me), mark, str(cluster or "")],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=[me], start_new_session=True, env=alone, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    finally:
        os.close(me)
    _run[:] = [outer if "PYTEST_XDIST_WORKER" in os.environ else chain]
    os.environ[MARK] = chain


@contextmanager
def for_the_run() -> Iterator[None]:
    """What is started inside ends with the run, not with the xdist worker that starts it."""
    before = os.environ.get(MARK)
    if before is None or not _run:
        yield
        return
    os.environ[MARK] = _run[0]
    try:
        yield
    finally:
        os.environ[MARK] = before


def carrying(mark: str) -> list[int]:
    """Pids of living processes whose chain holds this mark; zombies have none."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:  # gone meanwhile, or somebody else's
            continue
        for line in environ.split(b"\0"):
            key, _, value = line.partition(b"=")
            if key == MARK.encode() and mark in value.decode().split(_BETWEEN):
                found.append(int(entry.name))
    return found


def _reap(owner: int, mark: str, cluster: str) -> None:
    """Wait for the owner's end (a pidfd), then kill all that carry the mark until none does.

    A cluster whose home is still there after that has mounts, addresses and containers left.
    """
    select.select([owner], [], [])
    end = time.monotonic() + _MOST_SECONDS
    while (left := carrying(mark)) and time.monotonic() < end:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    if cluster and Path(cluster).exists():
        subprocess.run([sys.executable, "-m", "tests.support.kube_home", cluster], check=False)


if __name__ == "__main__":
    _reap(int(sys.argv[1]), *sys.argv[2:])
