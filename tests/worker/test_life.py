"""Workers' lives on a real broker and Spark: standby, slot, handover, death, leave, poison.

Generations and assignments are counted by Kafka's own tool in `__consumer_offsets`.
"""

import json
import signal
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import NewPartitions

from fleet.broker import Broker
from fleet.clock import SystemClock
from fleet.log.readers.group_log import GroupLog
from fleet.log.records import OffsetCommit
from fleet.log.replay.counting import count
from fleet.model import TopicPartition
from fleet.sinks import parquet_files
from fleet.slots import Phase
from fleet.worker.member.assigning import id_of
from fleet.worker.member.commit_metadata import decode_cluster, decode_parts
from fleet.worker.member.protocols import IDLE_AFTER
from tests.conftest import RunningBroker
from tests.support.command import answer, said
from tests.support.kafka_tools import assignment_epochs, generations, group_epochs
from tests.support.workshop import Workshop, ending
from tests.worker.conftest import LEASE, SESSION, Group


@pytest.mark.broker
@pytest.mark.spark
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


@pytest.mark.broker
@pytest.mark.spark
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
    group.until(lambda: group.slot(0).owner == "w2", "the standby to take the slot")
    assert time.monotonic() - killed < SESSION, "by its lease, not by the end of its session"
    group.produce(40)
    group.drained()
    assert max(generations(broker.broker, group.name)) == max(before)
    first, *rest = [line["ranges"] for line in group.journal()]
    assert rest[0] == first, "the successor's first batch is its predecessor's last"
    assert _rows(table) == {(p, at) for p, n in group.produced.items() for at in range(n)}
    batches = {tuple(r[4] for r in line["ranges"]) for line in group.journal()}
    assert len(list(table.glob("batch-*"))) == len(batches), "a folder per batch"


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
def test_two_leave_together(group: Group, broker: RunningBroker):
    """Two slots drain and close together; the workers complete the leave: 1 generation [21]."""
    group.standbys("w1", "w2", "w3")
    group.open(0, 1, 2)
    group.produce(120)
    group.drained()
    before = generations(broker.broker, group.name)
    group.change_targets(lambda targets: replace(targets, leaving=frozenset({1, 2}), plan_id="p"))
    group.until(lambda: not group.store.targets(group.name).leaving, "the leave to be completed")
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
    assert {(slot.phase, slot.owner) for slot in left} == {(Phase.FREE, None)}
    assert {p.poll() for p in group.processes.values()} == {None}, "they stay up, without a slot"
    state = Counter(r.phase for r in group.store.reports(group.name))
    assert state == {"active": 1, "standby": 2}
    time.sleep(1.5)
    assert group.store.slots(group.name)[1:3] == left, "nobody takes a closed slot again"


@pytest.mark.broker
@pytest.mark.spark
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


@pytest.mark.broker
@pytest.mark.spark
def test_poison_stops_one_partition(group: Group):
    """Only the partition that fails is stopped; a new revision, or `lift`, reads it again [9]."""
    group.standbys("w1")
    group.open(0)
    poisoned = TopicPartition(group.topic, 2)
    group.produce(1, b"poison", partition=2)
    group.produce(40)
    group.until(lambda: bool(group.store.stopped_partitions(group.name)), "the mark")
    (mark,) = group.store.stopped_partitions(group.name)
    assert (mark.tp, mark.offset, mark.revision) == (poisoned, 0, "r1")
    group.produce(40)
    group.until(lambda: _committed(group, 3) == group.produced[3], "the others to go on")
    assert _committed(group, 2) == 0
    calls = len(group.journal())
    group.store.lift(group.name, poisoned)
    group.until(lambda: bool(group.store.stopped_partitions(group.name)), "the mark to come back")
    assert len(group.journal()) > calls
    group.until(lambda: "stopped" in (group.slot(0).error or ""), "the slot to say so")


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


# --- of a KIP-848 group -----------------------------------------------------------------------


def start(group: Group, *names: str, revision: str = "r1") -> None:
    """Workers that take 0.3 s for a batch, so that a kill may find one in hand."""
    env = {"SECONDS_EACH": "0.3"}
    group.standbys(*names, revision=revision, env=env, protocol="consumer")


def partitions_of(group: Group, worker: str) -> set[str]:
    """What this worker has: assignments come as increments, an empty one too."""
    has: set[str] = set()
    told = [e for kind in ("assigned", "revoked", "lost") for e in group.events(kind)]
    for event in sorted((e for e in told if e["worker"] == worker), key=lambda e: e["at"]):
        if event["event"] == "assigned":
            has |= set(event["partitions"])
        else:
            has -= set(event["partitions"])
    return has


def _assigned_up_to_date(group: Group, node: Broker) -> bool:
    return assignment_epochs(node, group.name)[-1] == group_epochs(node, group.name)[-1]


@pytest.mark.broker
@pytest.mark.spark
def test_death_handover_and_leave(group: Group, broker: RunningBroker):
    """Kill -9: at most 2 assignments, within lease + 2 s; a roll: 0; two leave: 1 [17, 21]."""
    start(group, "w1", "w2", "w3")
    group.open(0, 1)
    group.produce(200)
    group.drained()
    group.until(lambda: len(partitions_of(group, group.slot(1).owner)) == 2, "an even share")

    before = assignment_epochs(broker.broker, group.name)
    victim = group.slot(0).owner
    theirs = partitions_of(group, victim)
    assert len(theirs) == 2, "two members share four partitions"
    group.produce(80)
    group.until(lambda: len(group.journal()) > 0, "batches")
    group.processes[victim].kill()
    killed = time.monotonic()
    mark = len(group.events("committed"))
    group.produce(80)
    group.until(
        lambda: theirs <= {tp for e in group.events("committed")[mark:] for tp in e["offsets"]},
        "the dead one's partitions to be processed",
    )
    took = time.monotonic() - killed
    print(f"processed again {took:.2f} s after the kill (lease {LEASE:g} s)")
    assert took < SESSION, "by its lease, not by the end of its session"
    group.drained()
    # The joiner's assignment follows the leaver's after the group's interval (1 s, KIP-1263).
    group.until(lambda: _assigned_up_to_date(group, broker.broker), "the last epoch's assignment")
    after = assignment_epochs(broker.broker, group.name)
    print(f"a death cost {len(after) - len(before)} assignment(s)")
    assert 0 <= len(after) - len(before) <= 2
    assert max(group.times_called().values()) <= 2

    start(group, "n1", revision="r2")
    epochs = group_epochs(broker.broker, group.name)
    group.hand_over(0, "r2")
    group.produce(80)
    group.drained()
    assert assignment_epochs(broker.broker, group.name) == after
    assert group_epochs(broker.broker, group.name) == epochs

    group.change_targets(lambda targets: replace(targets, leaving=frozenset({1}), plan_id="p"))
    group.until(lambda: not group.store.targets(group.name).leaving, "the leave to be completed")
    group.produce(80)
    group.drained()
    assert len(assignment_epochs(broker.broker, group.name)) == len(after) + 1
    assert sum(n - 1 for n in group.times_called().values()) <= 80, "the batch in hand, no more"
    with GroupLog({"bootstrap.servers": group.bootstrap}, clock=SystemClock()) as log:
        counted = count(log.read(group.name, 0))
    assert counted.rebalances == len(after) + 1, "our count of all this is Kafka's"


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
def test_a_member_without_partitions_is_ready_once_it_has_waited(group: Group):
    """KIP-848 tells nobody that they get nothing: the second member of one partition waits 15 s."""
    narrow = f"{group.name}-narrow"
    group.make(narrow, 1)
    group.standbys("w1", "w2", protocol="consumer", topics=[narrow])
    group.open(0, 1)
    (owner,) = {w for w in ("w1", "w2") if partitions_of(group, w)}
    idle = ({"w1", "w2"} - {owner}).pop()
    active = {e["worker"]: e["at"] for e in group.events("phase") if e["phase"] == "active"}
    joined = {r.worker: r.joined_at for r in group.store.reports(group.name)}
    took = {w: active[w] - joined[w] for w in (owner, idle)}
    print({w: f"ready {seconds:.1f} s after its join" for w, seconds in took.items()})
    assert took[owner] < IDLE_AFTER <= took[idle] < 2 * IDLE_AFTER
    assert not group.events("exit")


@pytest.mark.broker
@pytest.mark.spark
def test_a_stopped_owner_is_out(group: Group):
    """SIGSTOP beyond the lease, SIGCONT: no offset goes back, the stopped one ends [2, 16]."""
    start(group, "w1")
    group.open(0)
    start(group, "w2")
    group.produce(80)
    group.until(lambda: bool(group.journal()), "a batch to begin")
    group.processes["w1"].send_signal(signal.SIGSTOP)
    group.until(lambda: group.slot(0).owner == "w2", "the standby to take the slot")
    group.produce(200)
    group.drained()
    group.processes["w1"].send_signal(signal.SIGCONT)
    assert group.processes["w1"].wait(300) == 1
    group.produce(40)
    group.drained()
    offsets = committed_in_order(group)
    assert all(a <= b for of in offsets.values() for a, b in pairwise(of)), offsets


def committed_in_order(group: Group) -> dict[str, list[int]]:
    """Partition → every offset that was committed for it, by the coordinator's own records."""
    found: dict[str, list[int]] = {}
    with GroupLog({"bootstrap.servers": group.bootstrap}, clock=SystemClock()) as log:
        for record in log.read(group.name, 0):
            if isinstance(record, OffsetCommit):
                found.setdefault(str(record.tp), []).append(record.committed)
    return found


@pytest.mark.broker
@pytest.mark.spark
def test_a_foreign_owner_is_not_evicted(group: Group):
    """Somebody else's live process has our id: the slot is closed, the worker ends and says so."""
    theirs = Consumer(
        {
            "bootstrap.servers": group.bootstrap,
            "group.id": group.name,
            "group.instance.id": f"{group.name}-0",
            "group.protocol": "consumer",
            "client.id": "somebody-else",
            "enable.auto.commit": False,
        }
    )
    try:
        theirs.subscribe([group.topic])
        end = time.monotonic() + 120
        while not theirs.assignment() and time.monotonic() < end:
            theirs.poll(0.1)
        start(group, "w1")
        group.change_targets(lambda targets: replace(targets, open=frozenset({0})))
        group.until(
            lambda: 0 in group.store.targets(group.name).quarantined, "the slot to be closed"
        )
        assert group.processes["w1"].wait(300) == 1
        assert "somebody-else" in group.logs()
        for _ in range(70):  # longer than a heartbeat: it was left alone
            theirs.poll(0.1)
        assert len(theirs.assignment()) == group.partitions
        assert group.slot(0).phase is not Phase.ACTIVE
    finally:
        theirs.close()


# --- `start_from: latest`: a clean handover of an idle topic skips nothing [42] ---------------


VALUES_JOB = """
import json, os

def process(df, context):
    if not context.warm:
        values = [bytes(row.value).decode() for row in df.select("value").collect()]
        with open(os.environ["JOURNAL"], "a") as journal:
            journal.write(json.dumps({"values": values}) + "\\n")
"""


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize(
    "worker",
    [
        pytest.param({"assignor": "range"}, id="range"),
        pytest.param({"assignor": "cooperative-sticky"}, id="cooperative", marks=pytest.mark.long),
        pytest.param({"protocol": "consumer"}, id="consumer"),
    ],
)
def test_a_clean_handover_of_an_idle_topic_skips_nothing(group: Group, worker: dict[str, Any]):
    """What was there before the group began is not read; all that came since is, once."""
    (group.folder / "worker_job.py").write_text(VALUES_JOB)
    group.produce(40, b"old")
    for name, revision in (("w1", "r1"), ("w2", "r2")):
        group.start(name, revision=revision, start_from="latest", **worker)
    group.warm("w1", "w2")
    group.open(0, phase=Phase.ACTIVE)
    assert not group.journal()
    other = {"w1": "r2", "w2": "r1"}[group.slot(0).owner or ""]  # whichever was quicker
    began = {tp[-1]: of for tp, of in committed_in_order(group).items()}
    texts = metadata(group)

    stop = threading.Event()
    sent: list[str] = []

    def stream() -> None:
        while not stop.is_set():
            sent.append(f"new-{len(sent)}")
            group.produce(1, sent[-1].encode(), partition=len(sent) % group.partitions)
            time.sleep(0.005)

    streaming = threading.Thread(target=stream)
    handing = threading.Thread(target=group.hand_over, args=(0, other))
    handing.start()
    group.until(lambda: bool(group.events("closed")), "the owner to close")
    streaming.start()
    handing.join()
    stop.set()
    streaming.join(10)
    group.drained()
    values = [value for line in group.journal() for value in line["values"]]
    assert sorted(values) == sorted(sent)
    assert began == {str(number): [10] for number in range(group.partitions)}
    cluster = group.admin.list_topics(group.topic, timeout=10).cluster_id
    told = {(decode_cluster(text), decode_parts(text)) for text in texts}
    assert told == {(cluster, group.partitions)}


@pytest.mark.broker
@pytest.mark.spark
def test_what_came_while_kafka_had_deleted_the_commits_is_read(group: Group):
    """As after `offsets.retention.minutes` without members: log and report say where it goes on."""
    how = {"start_from": "latest", "membership": "dynamic"}
    group.standbys("w1", **how)
    group.open(0)
    group.produce(40)
    group.drained()
    assert group.end() == {"w1": 0}
    assert group.store.committed_topics(group.name) == {group.topic}, (
        "the store keeps it for longer"
    )

    def deleted() -> bool:
        try:
            group.admin.delete_consumer_groups([group.name])[group.name].result(60)
        except KafkaException:  # it is left only just now
            return False
        return True

    group.until(deleted, "the group to be deleted")
    group.produce(40)
    group.start("w2", **how)
    group.drained()
    assert set(group.times_called().values()) == {1}
    expired = {e["partition"]: (e["position"], e["end"]) for e in group.events("expired")}
    assert expired == {f"{group.topic}-{n}": (10, 20) for n in range(group.partitions)}
    (told,) = (r.gap for r in group.store.reports(group.name) if r.worker == "w2")
    assert "reading goes on at 10, its last commit, and not at the end 20" in told
    assert told.endswith(f"and the same for {group.partitions - 1} more partitions")


def metadata(group: Group) -> list[str | None]:
    """Of what the group has committed now."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    asked = group.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group.name)])
    found = asked[group.name].result(120).topic_partitions
    return [each.metadata for each in found]


# --- topics change under a running worker -----------------------------------------------------


SOON = {"metadata_refresh": "1s", "heartbeat_interval": "1s"}


def _id_of(group: Group, topic: str) -> str:
    return id_of(group.admin.describe_topics(TopicCollection([topic]))[topic].result(120))


def _read(group: Group, topic: str) -> dict[int, set[int]]:
    """Offsets of the topic that is there now that the entrypoint was called for."""
    topic_id, found = _id_of(group, topic), {}
    for line in group.journal():
        for name, partition, start, end, range_id in line["ranges"]:
            if name == topic and topic_id in range_id:
                found.setdefault(partition, set()).update(range(start, end))
    return found


def _whole(partitions: int, each: int) -> dict[int, set[int]]:
    return {partition: set(range(each)) for partition in range(partitions)}


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize(
    "records", [pytest.param(4 * 250, id="longer"), pytest.param(4 * 20, id="shorter")]
)
def test_a_topic_made_again_is_read_from_its_beginning(
    records: int, group: Group, broker: RunningBroker
):
    """While the worker is stopped its topic is deleted and recreated: nothing is skipped."""
    group.standbys("w1", **SOON)
    group.open(0)
    group.produce(400)
    group.drained()
    old = _id_of(group, group.topic)
    group.processes["w1"].send_signal(signal.SIGSTOP)
    group.admin.delete_topics([group.topic])[group.topic].result(120)
    group.make(group.topic, 4)
    group.produce(records)
    group.processes["w1"].send_signal(signal.SIGCONT)
    assert _id_of(group, group.topic) != old
    group.until(
        lambda: _read(group, group.topic) == _whole(4, records // 4), "the new topic to be read"
    )
    assert {e["partition"] for e in group.events("topic_made_again")} == {
        f"{group.topic}-{n}" for n in range(4)
    }
    group.produced.clear()
    group.produced.update(dict.fromkeys(range(4), records // 4))
    group.drained()
    assert group.processes["w1"].poll() is None, "no crash"
    assert group.store.stopped_partitions(group.name) == ()
    assert group.end() == {"w1": 0}


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
def test_offsets_of_a_deleted_topic_are_not_believed(group: Group):
    """A batch was in hand when its topic was recreated."""
    slow = {"env": {"SECONDS_EACH": "2"}, "metadata_refresh": "5m"}
    group.standbys("w1", **slow)
    group.open(0)
    group.produce(400)
    group.until(lambda: bool(group.journal()), "a batch to begin")
    w1 = group.processes["w1"]
    w1.send_signal(signal.SIGSTOP)
    group.admin.delete_topics([group.topic])[group.topic].result(120)
    group.make(group.topic, 4)
    group.produce(4 * 150)
    w1.send_signal(signal.SIGCONT)
    group.until(lambda: bool(group.events("committed")), "the late commit")
    w1.kill()
    group.start("w2", **SOON)
    group.until(lambda: _read(group, group.topic) == _whole(4, 150), "the new topic to be read")
    assert any(e["former"] for e in group.events("topic_made_again") if e["worker"] == "w2")
    assert group.end()["w2"] == 0


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
def test_a_deleted_topic_stops_nothing(group: Group):
    """Of two topics one is deleted in mid-batch: the other goes on, and so does the worker."""
    other = f"{group.name}-other"
    group.make(other, 2)
    group.standbys("w1", topics=[group.topic, other], env={"SECONDS_EACH": "1"}, **SOON)
    group.open(0)
    group.produce(40)
    group.until(lambda: bool(group.journal()), "a batch to begin")
    group.admin.delete_topics([other])[other].result(120)
    for _ in range(4):
        group.produce(40)
    group.drained()
    assert group.processes["w1"].poll() is None, "no crash"
    group.make(other, 2)
    group.until(
        lambda: any(f"{other}-0" in e["partitions"] for e in group.events("assigned")[1:]),
        "the topic recreated to be assigned",
    )
    assert group.end() == {"w1": 0}


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
def test_new_partitions_and_topics_of_a_pattern_are_picked_up(group: Group, broker: RunningBroker):
    """Within the metadata refresh; each is one rebalance, nothing of them is left out."""
    group.standbys("w1", topics=[f"^{group.name}-.*"], start_from="latest", **SOON)
    group.open(0)
    group.produce(40)
    group.drained()
    before = max(generations(broker.broker, group.name))
    group.admin.create_partitions([NewPartitions(group.topic, 6)])[group.topic].result(120)
    group.until(
        lambda: len(group.admin.list_topics(group.topic).topics[group.topic].partitions) == 6,
        "the new partitions to be there",
    )
    group.partitions, group._producer = 6, Producer({"bootstrap.servers": broker.bootstrap_servers})
    group.produce(60)  # before anybody has them: start_from is no reason to leave these out
    group.until(
        lambda: any(f"{group.topic}-5" in e["partitions"] for e in group.events("assigned")),
        "the new partitions to be assigned",
    )
    group.drained()
    assert max(generations(broker.broker, group.name)) == before + 1
    late = f"{group.name}-late"
    group.make(late, 2)
    group.until(
        lambda: any(f"{late}-1" in e["partitions"] for e in group.events("assigned")),
        "the new topic to be assigned",
    )
    assert max(generations(broker.broker, group.name)) == before + 2
    assert set(group.times_called().values()) == {1}
    assert group.end() == {"w1": 0}


# --- `worker.spark_ui` ------------------------------------------------------------------------


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
def test_status_has_an_address_that_answers(broker, unique, tmp_path, monkeypatch, capsys):
    """Spark's own page of the worker's JVM, on loopback; named once, while the worker runs."""
    home = tmp_path / "home"
    monkeypatch.setenv("FLEET_HOME", str(home))
    group = f"seen-{unique}"
    shop = Workshop(home, broker.bootstrap_servers, group, spark="local[1]", spark_ui=True)
    shop.declare(
        replicas={"min": 1, "max": 1, "standby": 0}, scaling={"policy": "fixed", "workers": 1}
    )
    shop.create_topic(1)
    with ending(shop):
        shop.apply(1)
        config = ("--config", str(shop.config))
        (told,) = answer(capsys, "status", group, *config)["groups"]
        (address,) = told["spark_uis"]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}/api/v1/applications", timeout=20) as page:
            (application,) = json.load(page)
        assert group in application["name"]
        assert address in said(capsys, "status", group, *config)[0]
