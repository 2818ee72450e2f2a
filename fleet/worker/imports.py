"""What a worker's imports made stays: the collector of cycles is spared it.

Problem: an import makes hundreds of thousands of objects that stay, and the collector looks
through them again and again. Choice: it rests while modules are loaded (`fleet.collector`), and
only then, since a worker may wait for its store or for Spark as long as it takes; what a warm
standby is made of it never looks through again. Cost: cycles made by imports are never freed,
some hundred KB.
"""

import gc

from fleet.system import glibc


def settled() -> None:
    """What is there now stays: it is collected no more, and what its making took is given back."""
    gc.freeze()
    glibc.trim()
