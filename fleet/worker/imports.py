"""Imports at a worker's start, without the collector of cycles.

Problem: an import makes hundreds of thousands of objects that stay, and the collector looks
through them again and again while they are made: an eighth of a start's CPU. Choice: it rests
while modules are loaded, and only then, since a worker may wait for its store or for Spark as
long as it takes; what a warm standby is made of it never looks through again (`settled`). Cost:
cycles made by imports are never freed, some hundred KB.
"""

import contextlib
import ctypes
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No collection in this block."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def settled() -> None:
    """What is there now stays: it is collected no more, and what its making took is given back."""
    gc.freeze()
    with contextlib.suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)
