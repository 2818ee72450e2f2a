"""`python -m fleet.worker --fork-server`: a process that has loaded what workers are made of, and
forks them.

Problem: a worker's start is mostly imports, half a second of CPU and sixty megabytes, which are the
same in each of them. Choice: one process for each revision, started in the environment of its
workers, imports all of it, and then forks a worker whenever its supervisor asks. What it has
loaded is theirs without being loaded, and in memory once, as long as nobody writes to it. It forks
while it has no thread but those of libraries that stop theirs for a fork (OpenBLAS, jemalloc),
opens nothing, and runs nothing of the user's. A worker is forked twice, so that the supervisor,
who inherits orphans, becomes its parent; it tells its pid itself, once it can be found by its
marks and its supervisor still hears it, so that none is ever left that nobody knows. Code that was
changed since it was loaded is not forked: the process ends, and the next one loads it; nor is
one forked where threads run (an agent that `sitecustomize` starts). Cost: Linux, one process more
for each revision.

Standard input is a socket of packets (SOCK_SEQPACKET). It says `ready` once; a request is
{"name", "argv", "log"} in JSON, the answer {"pid"}, {"stale": file} or {"error": why}. It ends with
its supervisor's end of the socket.
"""

import importlib
import json
import os
import socket
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from fleet.collector import freeze_imports, gc_disabled
from fleet.system.processes import PART, WORKER, show_arguments, show_variable
from fleet.system.runtimes import runtime_kind
from fleet.worker.batch.spark_link import load_client

_LOADED: Final = (
    "fleet.worker.batch.entrypoint",
    "fleet.worker.batch.entrypoint",
    "fleet.worker.batch.spark_token",
    "fleet.worker.slot.process",
)
"""What a worker imports until it is a warm standby, beside Spark's client and its runtime."""
READY: Final = b"ready"
LONGEST: Final = 1 << 20
"""Bytes of a request."""
Stamps = Mapping[str, tuple[int, int] | None]


def serve() -> bool:
    """Serve until the other end of standard input is closed; True in a worker that was forked."""
    with gc_disabled():
        load_client()  # first: what imports PySpark's client otherwise imports pandas with it
        for module in _LOADED:
            importlib.import_module(module)
        runtime_kind("local")
    freeze_imports()
    # Of Python 3.12, for the threads of libraries that are prepared for it.
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    loaded = _stamps()
    channel = socket.socket(fileno=os.dup(0))
    try:
        channel.send(READY)
    except OSError:  # nobody wants it any more
        return False
    while request := channel.recv(LONGEST):
        changed = next((f for f, was in loaded.items() if _stamp(f) != was), None)
        if changed is not None:
            _answer(channel, stale=changed)
            return False
        if threading.active_count() > 1:
            names = ", ".join(sorted(each.name for each in threading.enumerate()[1:]))
            _answer(channel, error=f"threads run in it, which a fork would stop: {names}")
            return False
        if _forked(channel):
            _become(channel, **json.loads(request))
            return True
    return False


def _forked(channel: socket.socket) -> bool:
    """Whether this is the worker: a child of a child that has ended."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        between = os.fork()
    except OSError as error:
        _answer(channel, error=str(error))
        return False
    if between:
        os.waitpid(between, 0)
        return False
    try:
        if os.fork():
            os._exit(0)
    except OSError as error:
        _give_up(channel, error)
    return True


def _become(channel: socket.socket, *, name: str, argv: list[str], log: str) -> None:
    """Make this process what one that was started with these arguments is."""
    try:
        show_variable(PART, "worker")
        show_variable(WORKER, name)
        show_arguments(argv)
        os.environ.update({PART: "worker", WORKER: name})
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        for number in (1, 2):
            os.dup2(output, number)
        os.dup2(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), 0)
        sys.argv[1:] = argv[3:]  # behind `python -m fleet.worker`
        _reseed()
        _answer(channel, pid=os.getpid())
        channel.close()
    except (OSError, ValueError) as error:
        _give_up(channel, error)


def _reseed() -> None:
    """NumPy's numbers would be the same in all workers; Python's own is seeded at a fork."""
    numbers: Any = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed()


def _give_up(channel: socket.socket, error: Exception) -> NoReturn:
    try:
        _answer(channel, error=str(error))
    finally:
        os._exit(1)


def _answer(channel: socket.socket, **what: object) -> None:
    """Raises OSError where nobody is there to hear it."""
    channel.send(json.dumps(what).encode())


def _stamps() -> Stamps:
    """What was loaded, as it is on disk now."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {file: _stamp(file) for file in sorted(filter(None, files))}


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - hundreds of them for each worker
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
