"""Workers' lives on a real broker and Spark: standby, slot, handover, death, leave, poison.

Generations are counted by Kafka's own tool in `__consumer_offsets`.
"""

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.model import TopicPartition
from fleet.sinks import parquet_files
from fleet.slots import Phase
from tests.conftest import RunningBroker
from tests.support.kafka_tools import generations
from tests.worker.conftest import LEASE, SESSION, Group

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_all_records_once_and_a_handover_costs_nothing(group: Group, broker: RunningBroker):
    """Two workers process every record once; a slot passes to new code with 0 generations [23]."""
    group.standbys("w1", "w2")
    group.produce(400)
    group.open(0, 1)
    group.drained()
    before = generations(broker.broker, group.name)
    group.standbys("n1", revision="r2")
    group.produce(200)
    group.hand_over(0, "r2")
    group.produce(200)
    group.drained()
    assert set(group.times_called().values()) == {1}
    assert sum(group.times_called().values()) == 800
    assert max(generations(broker.broker, group.name)) == max(before)
    assert set(group.end().values()) == {0}
    spread = [e["at"] for e in group.events("subscribed")][:2]
    assert abs(spread[0] - spread[1]) < 0.25, "joiners subscribe together [19]: 5 ms unless busy"


def test_killed_holder_is_replaced_and_its_batch_repeated(
    group: Group, broker: RunningBroker, tmp_path: Path
):
    """Kill -9 within a batch: the standby repeats its ranges; Parquet holds them once."""
    table = tmp_path / "table"
    env = {"PARQUET": str(table), "SECONDS_EACH": "1.5"}
    group.standbys("w1", env=env)
    group.open(0)
    group.standbys("w2", env=env)
    before = generations(broker.broker, group.name)
    group.produce(80)
    group.until(lambda: bool(group.journal()), "the batch to begin")
    time.sleep(0.3)
    group.processes["w1"].kill()
    killed = time.monotonic()
    group.until(lambda: group.slot(0).holder == "w2", "the standby to take the slot")
    assert time.monotonic() - killed < SESSION, "by its lease, not by the end of its session"
    group.produce(40)
    group.drained()
    assert max(generations(broker.broker, group.name)) == max(before)
    first, *rest = [line["ranges"] for line in group.journal()]
    assert rest[0] == first, "the successor's first batch is its predecessor's last"
    assert _rows(table) == {(p, at) for p, n in group.produced.items() for at in range(n)}
    batches = {tuple(r[4] for r in line["ranges"]) for line in group.journal()}
    assert len(list(table.glob("batch-*"))) == len(batches), "a folder per batch"


@pytest.mark.long
def test_two_leave_together(group: Group, broker: RunningBroker):
    """Two slots drain and close together; the workers complete the leave: 1 generation [21].

    In the short form one leaves so in test_consumer_life.py, two by a manager in tests/promises.
    """
    group.standbys("w1", "w2", "w3")
    group.open(0, 1, 2)
    group.produce(120)
    group.drained()
    before = generations(broker.broker, group.name)
    group.change_gate(lambda gate: replace(gate, leaving=frozenset({1, 2}), plan_id="p"))
    group.until(lambda: not group.store.gate(group.name).leaving, "the leave to be completed")
    group.until(
        lambda: len(set(group.events("assigned")[-1]["partitions"])) >= 2, "the survivor's share"
    )
    group.produce(120)
    group.drained()
    assert set(group.times_called().values()) == {1}
    assert max(generations(broker.broker, group.name)) == max(before) + 1
    closed = [e["at"] for e in group.events("closed")]
    assert abs(closed[0] - closed[1]) < 1.0
    left = group.store.slots(group.name)[1:3]
    assert {(slot.phase, slot.holder) for slot in left} == {(Phase.FREE, None)}
    assert {p.poll() for p in group.processes.values()} == {None}, "they stay up, without a slot"
    state = Counter(r.phase for r in group.store.reports(group.name))
    assert state == {"active": 1, "standby": 2}
    time.sleep(1.5)
    assert group.store.slots(group.name)[1:3] == left, "nobody takes a closed slot again"


@pytest.mark.long
def test_a_worker_that_comes_back_under_its_name_is_another_process(
    group: Group, broker: RunningBroker
):
    """Killed and started again, as the kubelet does: its own slot is taken after the lease [13]."""
    group.standbys("w1")
    group.open(0)
    group.produce(40)
    group.drained()
    before, held = generations(broker.broker, group.name), group.slot(0)
    group.processes["w1"].kill()
    killed = time.time()
    group.start("w1")
    group.until(lambda: group.slot(0).token == held.token + 1, "the slot to be taken again")
    group.produce(40)
    group.drained()
    taken = group.events("slot")[-1]
    assert (taken["worker"], taken["former"]) == ("w1", "w1")
    assert taken["at"] - killed > LEASE * 0.6, "renewed every third of it, it is watched for one"
    assert set(group.times_called().values()) == {1}
    assert max(generations(broker.broker, group.name)) == max(before)


def test_poison_stops_one_partition(group: Group):
    """Only the partition that fails is stopped; a new revision, or `lift`, reads it again [9]."""
    group.standbys("w1")
    group.open(0)
    poisoned = TopicPartition(group.topic, 2)
    group.produce(1, b"poison", partition=2)
    group.produce(40)
    group.until(lambda: bool(group.store.quarantines(group.name)), "the mark")
    (mark,) = group.store.quarantines(group.name)
    assert (mark.tp, mark.offset, mark.revision) == (poisoned, 0, "r1")
    group.produce(40)
    group.until(lambda: _committed(group, 3) == group.produced[3], "the others to go on")
    assert _committed(group, 2) == 0
    calls = len(group.journal())
    group.store.lift(group.name, poisoned)
    group.until(lambda: bool(group.store.quarantines(group.name)), "the mark to come back")
    assert len(group.journal()) > calls
    group.until(lambda: "quarantined" in (group.slot(0).error or ""), "the slot to say so")


def _committed(group: Group, partition: int) -> int:
    latest: dict[str, int] = {}
    for event in group.events("committed"):
        latest.update(event["offsets"])
    return latest.get(f"{group.topic}-{partition}", 0)


def _rows(table: Path) -> set[tuple[int, int]]:
    import pyarrow.parquet as pq

    found: list[tuple[int, int]] = []
    for file in parquet_files(table):
        read = pq.ParquetFile(file).read(columns=["partition", "offset"])
        found += zip(read["partition"].to_pylist(), read["offset"].to_pylist(), strict=True)
    assert len(found) == len(set(found)), "a row was written twice"
    return set(found)
