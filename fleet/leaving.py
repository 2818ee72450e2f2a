"""The end of a process that librdkafka may still call.

Problem: librdkafka asks for tokens (`oauth_cb`) on a thread of its own, also while Python takes
itself apart: a worker whose login lived for seconds had ended well, and crashed (SIGSEGV in its
thread `rdk:bg`). Choice: a process that logs in by tokens ends without being taken apart, after all
that comes before that: threads that are no daemons, `atexit`, what is written and not flushed.
Cost: two functions of the standard library that are not documented; no object is finalized.
"""

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn

_called = threading.Event()


def is_called() -> None:
    """To be told where a client is set up that calls this process on a thread of its own."""
    _called.set()


def leave(status: int) -> NoReturn:
    """End the process with this exit code."""
    if not _called.is_set():
        sys.exit(status)
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
            stream.flush()
    os._exit(status)
