"""What a benchmark leaves behind where it is cut off: nothing; and what a worker had half told."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ground import MARK, Ground, end_leftovers, homes, owned_by_benchmark
from fleet.broker import Broker
from fleet.clock import ManualClock
from fleet.demo.interrupts import Interrupted, interruptible
from fleet.system.processes import alive, identify
from fleet.worker.events import VARIABLE


def test_a_second_interrupt_cuts_off_no_ending(tmp_path, monkeypatch):
    """The first came while everything was being started, the second while that is ended."""
    remarks: list[str] = []
    ended: list[str] = []
    with interruptible(lambda: remarks.append("one moment")) as ending:

        def starts(*_: object, **__: object) -> None:
            ending.handle(2, None)

        def purges(_: object) -> None:
            ending.handle(2, None)
            ended.append("purged")

        monkeypatch.setattr(Broker, "start", starts)
        monkeypatch.setattr(Broker, "purge", purges)
        ground = Ground(
            parent=tmp_path, partitions=1, rate=1, clock=ManualClock(), say=print,
            ending=ending.start,
        )  # fmt: skip
        with pytest.raises(Interrupted), ground:
            pass
    assert ended == ["purged"]
    assert remarks == ["one moment"]


def test_an_event_that_a_killed_worker_was_telling_is_left_out(tmp_path):
    """The other events of the group still count."""
    ground = Ground(
        parent=tmp_path, partitions=1, rate=1, clock=ManualClock(), say=print, ending=list
    )
    told = Path(ground.environment("orders")[VARIABLE])
    told.parent.mkdir(parents=True)
    told.write_text('{"worker":"w1","event":"batch","at":1.0}\n{"worker":"w2","ev')
    assert ground.events("orders") == [("w1", "batch", 1.0)]


BENCHMARK = """
import subprocess, sys, time
from pathlib import Path
from benchmarks.ground import owned_by_benchmark
with owned_by_benchmark(Path(sys.argv[1])):
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], process_group=0)
    print(left.pid, flush=True)
    time.sleep(60)
"""


def test_what_a_killed_benchmark_left_is_ended_by_whoever_comes_next(tmp_path):
    """Its processes in other groups too, and its home; nothing of one that runs."""
    folder = homes(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", BENCHMARK, str(folder / "killed")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as benchmark:
        assert benchmark.stdout is not None
        left = identify(int(benchmark.stdout.readline()))
        end_leftovers(folder)
        assert left is not None
        assert alive(left), "its benchmark runs"
        benchmark.kill()
        benchmark.wait(timeout=120)
    assert alive(left)
    with owned_by_benchmark(folder / "next"):
        assert not alive(left)
        assert [mark.parent.name for mark in folder.glob(f"*/{MARK}")] == ["next"]
        end_leftovers(folder)
    assert [path.name for path in folder.iterdir()] == ["next"], "whose files may be kept"
    assert not (folder / "next" / MARK).exists()
