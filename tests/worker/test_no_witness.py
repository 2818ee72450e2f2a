"""A sink that is away, and a record that kills its workers, with real workers on a real broker."""

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from fleet.slots import Phase
from tests.worker.conftest import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark]

JOB = """
import os, signal
from pathlib import Path

FOLDER = Path(os.environ["SHOP"])


def process(df, context):
    if context.warm:
        return
    rows = df.select("partition", "offset", "value").collect()
    if any(bytes(row["value"]) == b"killer" for row in rows):
        os.kill(os.getpid(), signal.SIGKILL)
    if (FOLDER / "down").exists():
        raise OSError("the shop's database does not answer")
    with open(FOLDER / "rows", "a") as out:
        out.writelines(f"{row['partition']} {row['offset']}\\n" for row in rows)
"""


def start(group: Group, name: str, **settings: Any) -> None:
    (group.folder / "shop_job.py").write_text(JOB)
    env = {"SHOP": str(group.folder)}
    group.start(name, env=env, entrypoint="shop_job:process", **settings)


def rows(folder: Path) -> list[tuple[int, int]]:
    """What the sink got, as the sink tells it."""
    lines = (folder / "rows").read_text().splitlines()
    return [(int(p), int(at)) for p, at in (line.split() for line in lines)]


def status(group: Group, name: str) -> dict[str, Any]:
    (report,) = [r for r in group.store.reports(group.name) if r.worker == name]
    with urllib.request.urlopen(f"http://127.0.0.1:{report.http_port}/status", timeout=5) as answer:
        return dict(json.load(answer))


def test_a_sink_that_is_away_costs_no_record(group: Group):
    """One partition has records: it is not stopped, no letter is sent, and the worker says why."""
    dead, down = f"{group.name}-dead", group.folder / "down"
    group.admin.create_topics([NewTopic(dead, 1, 1)])[dead].result(120)
    start(group, "w1", dead_letter_topic=dead)
    group.warm("w1")
    down.touch()
    group.produce(10, partition=0)
    group.open(0, phase=Phase.JOINING)  # not active before its first commit
    group.until(lambda: len(group.events("ill")) >= 2, "it to be ill, and to try again")
    seen = status(group, "w1")
    assert (seen["condition"], seen["live"], seen["ready"]) == ("ill", True, False)
    assert seen["failing_seconds"] > 0
    assert seen["waits_for"] is None
    assert "the shop's database does not answer" in str(group.slot(0).error)
    assert "worker.entrypoint_patience" in str(group.slot(0).error)
    assert group.slot(0).phase is Phase.JOINING
    down.unlink()
    group.produce(10, partition=0)
    group.drained()
    assert sorted(rows(group.folder)) == [(0, at) for at in range(20)]
    assert group.store.quarantines(group.name) == ()
    assert not group.events("dead_letter")
    group.until(lambda: group.slot(0).error is None, "the error to be gone")
    assert status(group, "w1")["failing_seconds"] == 0
    down.touch()
    group.produce(1, partition=0)
    group.until(lambda: "does not answer" in str(group.slot(0).error), "it to be ill again")
    asked = time.monotonic()
    assert group.end() == {"w1": 0}
    assert time.monotonic() - asked < 60, "an ill worker has nothing to finish"


def test_a_record_that_kills_its_workers_is_named(group: Group):
    """Worker after worker goes down with it; then its partition stops there, all else is done."""
    for at in range(6):
        group.produce(1, b"killer" if at == 4 else b"x", partition=2)
    group.produce(20, partition=1)
    names = [f"w{number}" for number in range(3)]
    for name in names:
        start(group, name)
    group.warm(*names)
    group.open(0, phase=Phase.JOINING)

    def named() -> bool:
        alive = [n for n in group.processes if group.processes[n].poll() is None]
        if len(alive) < 3:
            start(group, f"w{len(group.processes)}")
        return bool(group.store.quarantines(group.name))

    group.until(named, "the record to be named")
    (mark,) = group.store.quarantines(group.name)
    assert (mark.tp.partition, mark.offset) == (2, 4)
    assert "ended the worker's process each time that it was begun" in mark.error
    killed = [n for n, p in group.processes.items() if p.poll() == -9]
    assert len(killed) == 5
    group.until(
        lambda: (
            sorted(rows(group.folder))
            == sorted([(1, at) for at in range(20)] + [(2, at) for at in range(4)])
        ),
        "all other records, each once",
    )
    group.produce(5, partition=1)
    group.until(lambda: (1, 24) in rows(group.folder), "the other partition to go on")
