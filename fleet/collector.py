"""Work of a few seconds without Python's collector of cycles.

Problem: whoever makes hundreds of thousands of objects that stay until it is done (modules that are
loaded, a group of 1,000 members that is simulated) has all of them looked through again and again:
an eighth to a quarter of its CPU. Choice: the collector rests meanwhile. Cost: so do the cycles of
other threads, until the block ends.
"""

import contextlib
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
