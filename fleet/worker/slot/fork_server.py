"""`python -m fleet.worker --fork-server`: loads what workers import, and forks them.

Problem: a worker's start is mostly imports: half a second of CPU and sixty megabytes, the same for
each worker. Choice: one process per revision, in the environment of its workers, imports all of it
and forks a worker for each request of its supervisor. What it has loaded is in memory once, until a
worker writes to it. It forks only while its threads are those of libraries that stop them for a
fork (OpenBLAS, jemalloc). It opens nothing and runs no user code.

A worker is forked twice, so that the supervisor, which inherits orphans, becomes its parent. It
reports its pid itself, once its environment marks it and its supervisor still listens, so that
every worker can be found. The process ends instead of forking if loaded code has changed since, or
if threads run (an agent that `sitecustomize` starts). Cost: Linux, one process more for each
revision.

Standard input is a socket of packets (SOCK_SEQPACKET). It says `ready` once; a request is {"name",
"argv", "log"} in JSON, the answer {"pid"}, {"stale": file} or {"error": why}. The process ends with
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
    "fleet.worker.slot.process",
    "pyspark.sql.connect.client",
)
"""What a worker imports until it is a warm standby, except Spark's client and its runtime."""
READY: Final = b"ready"
LONGEST: Final = 1 << 20
"""Bytes of a request."""
Stamps = Mapping[str, tuple[int, int] | None]


def serve() -> bool:
    """Serves until the other end of standard input is closed; True in a forked worker."""
    with gc_disabled():
        load_client()  # first: a later import of PySpark's client would load pandas
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
    except OSError:  # its supervisor is gone
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
    """Makes this process what one started with these arguments is."""
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
    """Seeds NumPy, or all workers had the same numbers; Python seeds its own at a fork."""
    numbers: Any = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed()


def _give_up(channel: socket.socket, error: Exception) -> NoReturn:
    try:
        _answer(channel, error=str(error))
    finally:
        os._exit(1)


def _answer(channel: socket.socket, **what: object) -> None:
    """Sends an answer. Raises OSError if the supervisor is gone."""
    channel.send(json.dumps(what).encode())


def _stamps() -> Stamps:
    """Returns the state on disk of what was loaded."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {file: _stamp(file) for file in sorted(filter(None, files))}


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - hundreds of them for each worker
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
