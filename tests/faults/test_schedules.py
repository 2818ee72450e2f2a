"""Random schedules of joins, leaves, drains, kills, stops and broker bounces keep the invariants.

FLEET_SCHEDULES=N plays N schedules (default 1, `make faults` 200) from FLEET_SEED on, over
FLEET_LANES groups in parallel, classic and KIP-848 (FLEET_ASSIGNOR=range: of one kind). A failing
seed is printed, with what its broker logged; where Fleet was at fault it becomes a row of NAMED.
"""

import itertools
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet.broker import Broker
from tests.faults.lane import CONSUMER, Lane
from tests.faults.schedules import Kind, schedule
from tests.support.sampling import LONG
from tests.worker.conftest import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(7200)]

COUNT = int(os.environ.get("FLEET_SCHEDULES") or (200 if LONG else 1))
SEED = int(os.environ.get("FLEET_SEED") or 1)
LANES = int(os.environ.get("FLEET_LANES") or (6 if COUNT > 2 else COUNT))
KINDS = ("cooperative-sticky", "range", CONSUMER)
ASSIGNORS = [kind for kind in KINDS if kind == os.environ.get("FLEET_ASSIGNOR", kind)]
NAMED = {
    "a broker that dies between the two rounds of a cooperative join leaves no orphan": (
        3,
        "cooperative-sticky",
    ),
    "a connection that drops while a worker asks its coordinator does not end the worker": (
        97,
        "range",
    ),
}
"""What a seed once broke → (seed, assignor)."""


QUICK = {
    "offsets.topic.num.partitions": "4",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
"""Of a broker that is killed often: little to load, and soon let in again."""
TROUBLE = re.compile(r"ERROR|WARN|fenc|[Ll]oad(ed|ing)|elected|leader epoch")
QUICK_JVM = "-XX:TieredStopAtLevel=1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where lanes live; their brokers are started often, and live shortly."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JVM)
    return tmp_path


@pytest.mark.unit
def test_a_schedule_is_its_seed():
    """The same acts for the same seed; all kinds come up."""
    assert schedule(7) == schedule(7)
    assert {act.kind for seed in range(50) for act in schedule(seed)} == set(Kind)


def play_all(seeds, assignor: str, home: Path, folder: Path) -> list[str]:
    """Play seeds on one lane while there are some; what broke."""
    name = f"lane-{uuid.uuid4().hex[:6]}"
    broker = Broker(folder / name, overrides=QUICK)
    broker.start()
    try:
        return play_on(broker, seeds, assignor, home, folder / name)
    finally:
        broker.purge()


def play_on(broker: Broker, seeds, assignor: str, home: Path, folder: Path) -> list[str]:
    """The same, on this broker; what broke is played on no more."""
    failures: list[str] = []
    lane = None
    try:
        for seed in seeds:
            acts = schedule(seed)
            lane = lane or new_lane(assignor, broker, home, folder)
            try:
                found = lane.play(acts)
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - told below
                found = [f"{type(error).__name__}: {error}"]
            acts_text = ", ".join(map(str, acts))
            took = ", ".join(f"{what} {seconds:.1f}" for what, seconds in lane.took.items())
            verdict = "FAILED" if found else "ok"
            print(f"seed {seed} {assignor}: {verdict} ({took} s) [{acts_text}]", flush=True)
            if found:
                what = "\n  ".join(found)
                failures.append(f"FLEET_SEED={seed} ({assignor}) [{acts_text}]:\n  {what}")
                print(failures[-1], *logged(broker), sep="\n", flush=True)
                lane.group.end()
                lane = None
    finally:
        if lane is not None:
            lane.group.end()
    return failures


def logged(broker: Broker) -> list[str]:
    """What a broker says last of its own trouble, and of the coordinators that it loads."""
    lines = []
    for node in broker.status().nodes:
        for file in (node.server_log, node.coordinator_log):
            text = file.read_text(errors="replace").splitlines() if file.exists() else []
            wanted = [line for line in text if TROUBLE.search(line)]
            lines += [f"--- {file.name} of node {node.id}", *wanted[-60:]]
    return lines


def new_lane(assignor: str, broker: Broker, home: Path, folder: Path) -> Lane:
    name = f"lane-{uuid.uuid4().hex[:6]}"
    own = folder / name
    own.mkdir()
    return Lane(Group(home, broker.status().bootstrap_servers, name, own), broker, assignor)


def test_random_schedules(spark_home: Path, folder: Path):
    """Every invariant after every schedule."""
    seeds = iter(range(SEED, SEED + COUNT))
    mine = locked(seeds)
    with ThreadPoolExecutor(LANES) as pool:
        played = [
            pool.submit(play_all, mine, assignor, spark_home, folder)
            for assignor, _ in zip(itertools.cycle(ASSIGNORS), range(LANES), strict=False)
        ]
        failures = [failure for each in played for failure in each.result()]
    print(f"{COUNT} schedules from seed {SEED} on, {len(failures)} failed")
    assert not failures, "\n".join(failures)


def locked(seeds):
    """One iterator for several threads."""
    import threading

    lock = threading.Lock()

    def take():
        with lock:
            return next(seeds, None)

    return iter(take, None)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "assignor"), NAMED.values(), ids=NAMED.keys())
def test_named(seed: int, assignor: str, spark_home: Path, folder: Path):
    """What a seed once broke."""
    assert not play_all([seed], assignor, spark_home, folder)
