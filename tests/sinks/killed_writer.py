"""A worker as a sink sees it, that ends in the midst: run as a program.

It writes batch after batch over two partitions, from what was committed last to a planned end that
a successor finds the same [4], and commits after the write. Every call that the code of
`fleet.sinks` makes, and every return to it, is a step; at the step that it is told it kills
itself with -9; without one it ends after a batch.

    python -m tests.sinks.killed_writer SINK PLACE(json) COMMITTED(file) STEP|0
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from tests.sinks.cases import SINKS, batch, range_of

PARTITIONS = (0, 1)
SECOND_BATCH = {"delta": 400, "parquet": 800, "iceberg": 580, "kafka": 800}
"""About how many steps two batches are."""


def end_of(start: int) -> int:
    """Planned from the offset alone, as commit metadata does it."""
    return start + 5 + start % 7


class Steps:
    """Counts what is called from fleet.sinks, and ends the process at one of it."""

    def __init__(self, at: int) -> None:
        self.count = 0
        self._at = at

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """For sys.setprofile."""
        if "/fleet/sinks/" in frame.f_code.co_filename and not event.startswith("c_exc"):
            self.count += 1
            if self.count == self._at:
                os.kill(os.getpid(), signal.SIGKILL)


def main(sink: str, place: str, committed: Path, at: int) -> tuple[int, int]:
    """Batches until the step comes, or one; what is committed then, and how many steps it took."""
    case = SINKS[sink](json.loads(place))
    next_offset = int(committed.read_text()) if committed.exists() else 0
    case.write(*batch(range_of(0, 1)), name="warm")  # loads what a first write loads
    steps = Steps(at)
    done = False
    threading.setprofile(steps)  # of threads that begin from here on
    sys.setprofile(steps)
    while at or not done:
        done = True
        end = end_of(next_offset)
        rows, context = batch(*(range_of(next_offset, end, each) for each in PARTITIONS))
        case.write(rows, context)
        temporary = committed.with_suffix(".new")
        temporary.write_text(str(end))
        temporary.replace(committed)
        next_offset = end
    sys.setprofile(None)
    return next_offset, steps.count


if __name__ == "__main__":
    print(*main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])), flush=True)
    # A thread of Arrow's that lets go of a batch while the interpreter ends aborts the process.
    os._exit(0)
