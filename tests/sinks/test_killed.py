"""kill -9 in the midst of a batch: afterwards rows = offsets, none twice, for every sink.

Here a writer ends itself at steps of its own code, two of them; with FLEET_LONG at ten, and
tests/worker/test_sinks.py kills real workers.
"""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sinks.cases import SINKS, made_topics
from tests.sinks.killed_writer import PARTITIONS, SECOND_BATCH
from tests.support.needs import repository
from tests.support.sampling import LONG

KILLS = 10 if LONG else 2


@pytest.mark.parametrize(
    "sink",
    [pytest.param(n, marks=pytest.mark.broker if n == "kafka" else ()) for n in SECOND_BATCH],
)
def test_killed_at_any_step_rows_are_offsets(
    sink: str, tmp_path: Path, unique: str, request: pytest.FixtureRequest
):
    """Each kill leaves a batch somewhere between nothing and committed; the next one repeats it."""
    place = {"path": str(tmp_path / "table")}
    if sink == "kafka":
        broker = request.getfixturevalue("broker")
        place = dict(made_topics(broker.bootstrap_servers, f"to-{unique}"))
    dice = random.Random(f"{sink} {KILLS}")
    for _ in range(KILLS):
        done = run(sink, place, tmp_path / "committed", 1 + dice.randrange(SECOND_BATCH[sink]))
        assert done.returncode == -signal.SIGKILL, done.stderr
    done = run(sink, place, tmp_path / "committed", 0)
    assert done.returncode == 0, done.stderr
    case, end = SINKS[sink](place), int(done.stdout.split()[0])
    for partition in PARTITIONS:
        assert case.offsets(partition) == list(range(end))


def run(sink: str, place: dict[str, str], committed: Path, at: int):
    """A writer that ends at a step, or at the end where it is 0."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "tests.sinks.killed_writer"),
            *(sink, json.dumps(place), str(committed), str(at)),
        ],
        cwd=repository(), env={**os.environ, "PYTHONPATH": str(repository())},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
