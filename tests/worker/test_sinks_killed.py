"""kill -9 of real workers in mid-batch: every sink holds each record's row once, none is lost.

One job writes each batch to all sinks, in turn by Spark's tasks and from an Arrow table on the
worker. Each kill falls into the write to one of them, at any moment of it: sinks before that one
have the batch already, those after it have none of it, and a successor repeats it. One kill per
sink; with FLEET_LONG so many that ten fell into each sink's own write (docs/sinks.md has what came
of them).
"""

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from tests.sinks.cases import SINKS, made_topics
from tests.support.needs import repository
from tests.support.sampling import LONG
from tests.support.waiting import until
from tests.worker.conftest import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark]

STRUCK = 10 if LONG else 1
"""Kills per sink; in the long form those that came before its write was done."""
RECORDS = 40
USUAL = 0.1
"""Seconds of a sink's write that nobody has seen yet."""
JOB = """
import json, os, time

from tests.sinks.cases import SINKS

CASES = {sink: SINKS[sink](place) for sink, place in json.loads(os.environ["PLACES"]).items()}


def note(sink, what):
    line = json.dumps({"pid": os.getpid(), "sink": sink, "what": what, "at": time.monotonic()})
    handle = os.open(os.environ["MOMENTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, (line + "\\n").encode())
    os.close(handle)


def process(df, context):
    rows = df.select("topic", "partition", "offset")
    if sum(each.end for each in context.ranges) % 2:
        rows = rows.toArrow()
    for sink, case in CASES.items():
        if not context.warm:
            note(sink, "began")
        case.write(rows, context)
        if not context.warm:
            note(sink, "ended")
"""


class Moments:
    """When workers began and ended their writes, as the job tells."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> list[dict[str, Any]]:
        """In order; the last line may be in the writing."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def of(self, sink: str, pid: int) -> list[dict[str, Any]]:
        """One worker's writes to a sink."""
        return [each for each in self.all() if each["sink"] == sink and each["pid"] == pid]

    def lasts(self, sink: str) -> float:
        """Seconds of the latest write that anybody ended."""
        began: dict[int, float] = {}
        seconds = USUAL
        for each in self.all():
            if each["sink"] == sink and each["what"] == "began":
                began[each["pid"]] = each["at"]
            elif each["sink"] == sink:
                seconds = each["at"] - began[each["pid"]]
        return seconds


def test_killed_in_each_sinks_write(group: Group, tmp_path: Path):
    """Rows by (partition, offset) = what was produced, in each sink."""
    places = {sink: {"path": str(tmp_path / sink)} for sink in SINKS}
    places["kafka"] = dict(made_topics(group.bootstrap, f"{group.name}-written"))
    moments = Moments(tmp_path / "moments")
    how: dict[str, Any] = {
        "entrypoint": "killed_job:process",
        "python_path": [str(group.folder), str(repository())],
        "env": {"PLACES": json.dumps(places), "MOMENTS": str(moments.path)},
    }
    (group.folder / "killed_job.py").write_text(JOB)
    group.standbys("w0", **how)
    group.open(0)
    dice = random.Random(f"{STRUCK} of each")
    kills: Counter[str] = Counter()
    struck: Counter[str] = Counter()
    counted = struck if LONG else kills
    while min(counted[each] for each in SINKS) < STRUCK:
        assert kills.total() < 4 * STRUCK * len(SINKS), "kills miss the writes"
        group.start(f"w{kills.total() + 1}", **how)  # warms while the last one's lease runs out
        holder = taken(group)
        group.until(lambda: ready(group), "a standby")
        if kills.total() % 3:  # or the repetition is killed, too: more often, and it is poison
            drained(group)
        group.produce(RECORDS)
        sink = min(SINKS, key=lambda each: counted[each])
        kills[sink] += 1
        struck[sink] += killed_in_write(group, moments, sink, holder, dice.random())
    group.produce(RECORDS)
    drained(group)
    told = {sink: f"{kills[sink]} kills, {struck[sink]} within its write" for sink in SINKS}
    print(json.dumps(told))
    for sink, place in places.items():
        case = SINKS[sink](place)
        for partition, count in group.produced.items():
            assert case.offsets(partition) == list(range(count)), (sink, partition, told)


def drained(group: Group) -> None:
    """Wait until all is committed, as Kafka has it: a killed worker may not have told of it."""
    asked = [KafkaPartition(group.topic, each) for each in group.produced]
    reader = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.name})
    group.until(
        lambda: all(
            each.offset == group.produced[each.partition] for each in reader.committed(asked, 20)
        ),
        "all records to be committed",
    )
    reader.close()


def taken(group: Group) -> str:
    """Who holds the slot, as soon as that is somebody who lives."""
    group.until(lambda: alive(group, group.slot(0).holder), "the slot to be taken")
    return str(group.slot(0).holder)


def ready(group: Group) -> bool:
    """Whether somebody could take the slot."""
    reports = group.store.reports(group.name)
    return any(each.phase == "standby" and alive(group, each.worker) for each in reports)


def alive(group: Group, worker: str | None) -> bool:
    return worker is not None and group.processes[worker].poll() is None


def killed_in_write(group: Group, moments: Moments, sink: str, holder: str, share: float) -> bool:
    """Kill the holder when that share of its write is over; whether the write was not done."""
    process = group.processes[holder]
    seen = len(moments.of(sink, process.pid))
    delay = share * moments.lasts(sink)
    began = until(
        lambda: [e for e in moments.of(sink, process.pid)[seen:] if e["what"] == "began"],
        f"a write to {sink}", progress=group.moving, every=0.002, picture=group.logs,
    )  # fmt: skip
    time.sleep(delay)
    process.kill()
    process.wait(120)
    told = [each for each in moments.of(sink, process.pid)[seen:] if each["at"] > began[0]["at"]]
    return not told
