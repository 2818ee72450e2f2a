"""glibc's allocator: memory that is free goes back to the system. Elsewhere all of it does nothing.

Problem: glibc keeps what is freed below anything that still lives, and from the first large block
that is freed on it takes blocks of that size from there too, up to 32 MiB: columns that live for
one look leave holes as large as themselves. Choice: the size from which a block is mapped by itself
is set, which also ends its growing. And each thread has a heap of its own, with holes of its own:
where memory counts more than threads that wait for one another, all share one. Cost: the kernel
clears each such block, 0.1 ms a megabyte.
"""

import contextlib
import ctypes
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
"""mallopt(3)."""


def map_from(size: int) -> None:
    """From now on blocks of so many bytes are mapped one by one, and unmapped when freed."""
    _call("mallopt", _M_MMAP_THRESHOLD, size)


def one_heap() -> None:
    """For all threads that begin from now on."""
    _call("mallopt", _M_ARENA_MAX, 1)


def trim() -> None:
    """Give back what is free now (malloc_trim(3))."""
    _call("malloc_trim", 0)


def _call(function: str, *arguments: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # another C library has no such function
        getattr(ctypes.CDLL("libc.so.6"), function)(*arguments)
