"""The matrix: every fault over range, cooperative-sticky and KIP-848, static and dynamic members.

FLEET_FAULTS=killed,topic plays those whose name has one of these words; FLEET_MATRIX=FILE keeps the
cells there (docs/data/fault-matrix.csv, of which docs/contributing/faults.md is made). The clock is
set for what the test starts alone, by a library that is compiled for it.
"""

import contextlib
import os
import shutil
import subprocess
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import cut_off
from tests.faults.matrix import Cell, Ground, Target
from tests.faults.matrix_faults import FAULTS, LONGEST_SESSION
from tests.faults.matrix_table import write_cells
from tests.faults.six_fleets import WAYS, disk_of_its_own
from tests.support.brokers import running_broker
from tests.support.workshop import ending

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.mounts,
    pytest.mark.long,
    pytest.mark.timeout(7200),
]
WORDS = tuple(filter(None, (os.environ.get("FLEET_FAULTS") or "").split(",")))
CHOSEN = [f for f in FAULTS.values() if not WORDS or any(word in f.name for word in WORDS)]
BROKERS = {
    "offsets.topic.num.partitions": "1",  # one coordinator for all
    "auto.leader.rebalance.enable": "false",
    "group.max.session.timeout.ms": f"{LONGEST_SESSION * 1000:.0f}",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    """Six fleets at work; at the end nothing of them runs."""
    if (why := cut_off.missing()) is not None:
        pytest.skip(why)
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc), for a clock that can be set")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
    clock = tmp_path / "clock"
    clock.write_bytes(bytes(8))
    monkeypatch.setenv("SHIFTED_CLOCK", str(clock))
    monkeypatch.setenv("LD_PRELOAD", str(compiled(tmp_path)))
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(running_broker(tmp_path / "brokers", BROKERS, brokers=3))
        shops = stack.enter_context(ending())
        targets = {}
        for way in WAYS:
            place = tmp_path / way.replace(", ", "-")
            stack.enter_context(disk_of_its_own(place / "sink", 1))
            targets[way] = Target(tmp_path / "home", place, own.broker, way)
            shops.append(targets[way])
        made = Ground(targets, own.broker, clock)
        made.begin()
        yield made


def compiled(folder: Path) -> Path:
    """The library that adds to the time of day of a process that starts with it."""
    source, made = Path(__file__).with_name("shifted_clock.c"), folder / "shifted_clock.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(made), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return made


def test_every_fault_over_every_way(ground: Ground) -> None:
    """No more rebalances than due, nothing lost, twice only what was in hand of who ended."""
    cells: list[Cell] = []
    broke: list[str] = []
    for fault in CHOSEN:
        since = time.monotonic()
        try:
            found = ground.play(fault)
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - told at the end
            broke.append(f"{fault.name}: {traceback.format_exc()}")
            print(broke[-1], flush=True)
            break
        cells += found
        broke += [f"{c.fault}: {c.way}: {what}" for c in found for what in c.broken]
        for cell in found:
            print(f"{cell}", flush=True)
        print(f"{fault.name}: {time.monotonic() - since:.0f} s", flush=True)
    if path := os.environ.get("FLEET_MATRIX"):
        write_cells(Path(path), cells)
    assert not broke, "\n".join(broke)
    due = {(f.name, way) for f in CHOSEN for way in WAYS if f.most(way) is not None}
    assert {(c.fault, c.way) for c in cells} == due
