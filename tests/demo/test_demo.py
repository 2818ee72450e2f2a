"""`fleet demo` as a person runs it: its promises, its report, and nothing left behind.

What README.md and docs/start/demo.md show is run here.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Place

from fleet.broker import Broker
from fleet.demo.stage import BASELINE_GROUP, GROUP, PARTITIONS, TOPIC, Stage, leftovers
from fleet.system.home import read_state
from fleet.system.processes import end_all
from tests.support.kafka_tools import rebalances

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def _start(home: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "fleet", "demo", *options],
        env={**os.environ, "FLEET_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _left(home: Path) -> tuple[object, ...]:
    mark = read_state(Stage(home).mark, schema=1)
    return leftovers(str(mark["id"])) if mark else ()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose demo is ended, whatever becomes of the test."""
    made = tmp_path / "home"
    yield made
    mark = read_state(Stage(made).mark, schema=1)
    if mark:
        end_all(leftovers(str(mark["id"])), grace=5.0)
    if made.exists():
        Broker(made).purge()


@pytest.mark.alone
def test_the_demo_keeps_its_promises(home: Path):
    """Exit 0; Kafka's own tool agrees with the report; the records can be read again."""
    with _start(home, "--exit") as demo:
        said, _ = demo.communicate(timeout=1200)
    assert demo.returncode == 0, said
    assert _left(home) == ()
    produced = re.search(r"the stream stopped after ([\d,]+) orders", said)
    assert produced
    steps = {s["name"]: s for s in json.loads((home / "demo-report.json").read_text())["steps"]}
    assert list(steps) == ["up", "roll", "down", "baseline"]
    assert 1 <= steps["up"]["recorded_rebalances"] <= 2
    assert steps["roll"]["recorded_rebalances"] == 0
    assert steps["down"]["recorded_rebalances"] == 1
    assert {s["lost"] for s in steps.values()} == {0}
    assert [steps[name]["duplicates"] for name in ("up", "roll", "down")] == [0, 0, 0]

    broker = Broker(home)
    managed = rebalances(broker, GROUP)
    recorded = sum(steps[name]["recorded_rebalances"] for name in ("up", "roll", "down"))
    assert managed - recorded in {1, 2}, "what is left is the first three workers' join"
    dynamic = rebalances(broker, BASELINE_GROUP)
    # A leave and the join that follows may fall into one round: one each at least.
    assert dynamic > steps["baseline"]["recorded_rebalances"] >= 6, "dynamic members cost 1-3 each"
    assert steps["baseline"]["moved_partitions"] > steps["roll"]["moved_partitions"] == 0
    for step in steps.values():
        assert step["downtime_partition_s"] >= (step["longest_downtime_s"] or 0.0) - 0.001
    assert _numbers(broker.start().bootstrap_servers) == int(produced[1].replace(",", ""))


def _numbers(bootstrap: str) -> int:
    """Read the whole topic; how many orders, after a check that no number is missing."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reads-again"})
    consumer.assign([Place(TOPIC, p, 0) for p in range(PARTITIONS)])
    ends = [_end(consumer, p) for p in range(PARTITIONS)]
    numbers: set[int] = set()
    deadline = time.monotonic() + 300
    while len(numbers) < sum(ends) and time.monotonic() < deadline:
        numbers.update(json.loads(m.value())["seq"] for m in consumer.consume(5000, timeout=0.5))
    consumer.close()
    assert numbers == set(range(sum(ends)))
    return len(numbers)


def _end(consumer: Consumer, partition: int) -> int:
    """The end of a partition; a broker just started may not lead it yet."""
    for _ in range(60):
        try:
            return consumer.get_watermark_offsets(Place(TOPIC, partition), timeout=10)[1]
        except KafkaException:
            time.sleep(0.5)
    pytest.fail(f"partition {partition} has no leader 30 s after the broker's start")


@pytest.mark.parametrize(
    ("options", "sentence", "number"),
    [
        pytest.param(
            (),
            "Kafka listens",
            signal.SIGTERM,
            id="while Dagster starts, by SIGTERM",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("--no-dagster",),
            "orders a second go into",
            signal.SIGINT,
            id="while workers start, by Ctrl-C",
        ),
    ],
)
def test_an_interrupt_leaves_no_process(
    home: Path, options: tuple[str, ...], sentence: str, number: signal.Signals
):
    """Interrupted anywhere, even twice: exit 130 and nothing of it runs."""
    with _start(home, *options) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if sentence in line:
                break
        time.sleep(2.0)
        demo.send_signal(number)
        time.sleep(0.2)
        demo.send_signal(number)
        said, _ = demo.communicate(timeout=1200)
    assert demo.returncode == 130, said
    assert _left(home) == ()
    assert not Broker(home).status().running
