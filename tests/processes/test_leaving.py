"""What comes before the end of a process that is not taken apart."""

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys, threading, time
from fleet.leaving import is_called, leave

class Kept:
    def __del__(self):
        sys.stderr.write("taken apart\\n")

kept = Kept()
atexit.register(lambda: sys.stdout.write(" atexit"))
threading.Thread(target=lambda: (time.sleep(0.2), sys.stdout.write("thread"))).start()
if sys.argv[1] == "called":
    is_called()
leave(7)
"""


@pytest.mark.parametrize(("how", "left"), [("called", ""), ("not called", "taken apart\n")])
def test_all_but_taking_apart(how: str, left: str) -> None:
    """Threads end, `atexit` runs, what is written arrives, the exit code is as said."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "thread atexit", left)
