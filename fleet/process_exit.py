"""Ends a process whose Python callbacks librdkafka may still run.

Problem: librdkafka asks for tokens (`oauth_cb`) on a thread of its own, also while Python finalizes
itself. A worker that logged in with short-lived tokens finished its work and then crashed (SIGSEGV
in the thread `rdk:bg`). Choice: a process that logs in with tokens skips finalization. It first
joins its threads, runs `atexit` handlers and flushes its streams. Cost: two undocumented functions
of the standard library, and no object is finalized.
"""

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn

_has_native_callbacks = threading.Event()


def mark_native_callbacks() -> None:
    """Call after creating a client with native callbacks."""
    _has_native_callbacks.set()


def exit_process(status: int) -> NoReturn:
    """Ends the process with this exit code."""
    if not _has_native_callbacks.is_set():
        sys.exit(status)
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
            stream.flush()
    os._exit(status)
