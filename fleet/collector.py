"""Pauses Python's cyclic garbage collector for a few seconds of work.

Problem: work that creates hundreds of thousands of objects and keeps them (imports, the simulation
of a group of 1,000 members) makes the collector scan them again and again. That is an eighth to a
quarter of its CPU. Choice: the collector is disabled meanwhile. Cost: the cycles of other threads
wait until the block ends.
"""

import contextlib
import gc
from collections.abc import Iterator

from fleet.system import memory_files

# Problem: the collector also scans the objects that a worker's imports created. Choice: it is
# disabled only while modules are loaded, because a worker may wait long for its store or for Spark.
# The objects of a warm standby are then exempt for good. Cost: cycles created by imports are never
# freed, some hundred KB.


def freeze_imports() -> None:
    """Exempts all present objects from collection and returns free memory to the system."""
    gc.freeze()
    memory_files.trim()


@contextlib.contextmanager
def gc_disabled() -> Iterator[None]:
    """Disables cyclic garbage collection inside the block."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
