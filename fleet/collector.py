"""Work of a few seconds without Python's collector of cycles.

Problem: whoever makes hundreds of thousands of objects that stay until it is done (modules that are
loaded, a group of 1,000 members that is simulated) has all of them looked through again and again:
an eighth to a quarter of its CPU. Choice: the collector rests meanwhile. Cost: so do the cycles of
other threads, until the block ends.
"""

import contextlib
import gc
from collections.abc import Iterator

from fleet.system import memory_files

# What a worker's imports made stays: the collector of cycles is spared it.
#
# Problem: an import makes hundreds of thousands of objects that stay, and the collector looks
# through them again and again. Choice: it rests while modules are loaded (`fleet.collector`), and
# only then, since a worker may wait for its store or for Spark as long as it takes; what a warm
# standby is made of it never looks through again. Cost: cycles made by imports are never freed,
# some hundred KB.


def settled() -> None:
    """What is there now stays: it is collected no more, and what its making took is given back."""
    gc.freeze()
    memory_files.trim()


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
